"""``windlass.data``: datasets, and how they are divided between workers and replicas."""

from .dataset import ArraySpec, Dataset
from .options import SHARD_HINT, AutoShardPolicy, DistributeOptions, Options
from .sources import as_dataset, from_arrays, from_files

__all__ = [
    "SHARD_HINT",
    "ArraySpec",
    "AutoShardPolicy",
    "Dataset",
    "DistributeOptions",
    "Options",
    "as_dataset",
    "from_arrays",
    "from_files",
]
