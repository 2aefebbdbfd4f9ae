"""``ropewalk.data.experimental``: names TensorFlow has there."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..distribute.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    AutoShardPolicy,
    DistributeOptions,
)

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "DistributeOptions",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.data.experimental", globals())
