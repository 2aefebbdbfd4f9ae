"""``ropewalk.data``: datasets, and how they are divided between workers and replicas."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..distribute.data.dataset import ArraySpec, Dataset
from ..distribute.data.factories import as_dataset, from_arrays, from_files, from_index
from ..distribute.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    AutoShardPolicy,
    DistributeOptions,
    Options,
)
from . import data_experimental as experimental

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "ArraySpec",
    "AutoShardPolicy",
    "Dataset",
    "DistributeOptions",
    "Options",
    "as_dataset",
    "experimental",
    "from_arrays",
    "from_files",
    "from_index",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.data", globals())
