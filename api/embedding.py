"""``windlass.embedding``: embedding tables, growing or not, of several features together."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..core.rules.tables import Chance, Sightings, SketchedSightings
from ..distribute.embedding.config import FeatureConfig, TableConfig
from ..distribute.embedding.inputs import Ragged
from ..distribute.embedding.optimizers import GroupFtrl, RowwiseAdagrad
from ..distribute.embedding.string_keys import hash_strings
from ..distribute.embedding.tables import Embeddings, Lookup

__all__ = [
    "Chance",
    "Embeddings",
    "FeatureConfig",
    "GroupFtrl",
    "Lookup",
    "Ragged",
    "RowwiseAdagrad",
    "Sightings",
    "SketchedSightings",
    "TableConfig",
    "hash_strings",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("windlass.embedding", globals())
