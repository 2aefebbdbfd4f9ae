"""``windlass.data``: datasets, and how they are divided between workers and replicas."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..distribute.data.dataset import ArraySpec, Dataset
from ..distribute.data.factories import as_dataset, from_arrays, from_files
from ..distribute.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    AutoShardPolicy,
    DistributeOptions,
    Options,
)

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
    "from_arrays",
    "from_files",
]

if not TYPE_CHECKING:
    _FILES = "`wl.data.from_files(paths, read)`, where `read(path)` gives "
    _ITERATOR = "iter(dataset) has get_next and get_next_as_optional"
    __getattr__ = public_getattr(
        "windlass.data",
        globals(),
        instead={
            "DatasetSpec": "`dataset.element_spec` has shapes and dtypes, as ArraySpec",
            "FixedLengthRecordDataset": f"{_FILES}the records of a file",
            "Iterator": _ITERATOR,
            "IteratorSpec": _ITERATOR,
            "NumpyIterator": _ITERATOR,
            "TFRecordDataset": f"{_FILES}the records of a file: the `tfrecord` package reads them",
            "TextLineDataset": f"{_FILES}the lines of a file: `open(path)` does",
            "ThreadingOptions": "`options.threading` is there, of no effect",
            "experimental": "its names are those of wl.data: wl.data.AutoShardPolicy",
        },
    )
