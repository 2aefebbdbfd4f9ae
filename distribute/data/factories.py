"""Datasets of what programs have: arrays, files, iterables, loaders of other libraries."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ..base.values import map_structure
from .dataset import Dataset
from .node import Index
from .options import UNKNOWN_CARDINALITY
from .sources import ArraySource, FileSource, IndexSource, IterableSource, SliceSource


def from_arrays(
    arrays: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = 1,
    drop_remainder: bool = False,
) -> Dataset:
    """Make a dataset of batches of arrays that fit in memory, shuffled as Keras' ``fit`` does.

    ``Dataset.from_tensor_slices(arrays).batch(batch_size)`` is the same in order, as is this with
    ``shuffle=False``: what is evaluated, or put beside its labels, needs that.

    Args:
        arrays: Nested arrays with one first axis: the examples.
        batch_size: Examples per global batch.
        shuffle: Draw a new order for every epoch, and every time it is iterated over. Synchronous
            workers share the batches of one order; each worker of a parameter-server job has its
            own; an evaluator reads in order.
        seed: Seed of the random orders: runs with the same seed draw the same orders.
        epochs: Number of times that the data is gone through; None: for ever.
        drop_remainder: Leave out a last batch that is not full.

    Raises:
        ValueError: First axes differ, or ``batch_size`` < 1.
    """
    return Dataset(ArraySource(arrays, batch_size, shuffle, seed, epochs, drop_remainder))


def from_index(
    examples: int,
    read: Callable[[Array], Any],
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = 1,
    drop_remainder: bool = False,
) -> Dataset:
    """Make a dataset of batches of examples that are read by their numbers, wherever they are: rows
    of a Parquet file, records of an indexed file, images of a folder.

    Args:
        examples: Number of examples.
        read: Called with numbers of examples (int64, shape ``(n,)``); returns them as a batch of
            nested arrays with ``n`` on the first axis.
        batch_size: Examples per global batch.
        shuffle: Draw a new order for every epoch, as :func:`from_arrays` does.
        seed: Seed of the random orders.
        epochs: Number of times that the data is gone through; None: for ever.
        drop_remainder: Leave out a last batch that is not full.

    Raises:
        ValueError: ``batch_size`` < 1, or an endless dataset has no batch.
    """
    return Dataset(
        IndexSource(Index(examples, read, batch_size, seed, shuffle, epochs, drop_remainder))
    )


def from_files(files: Sequence[str], read: Callable[[str], Iterable[Any]]) -> Dataset:
    """Make a dataset of what files hold; synchronous workers divide the files.

    Args:
        files: Paths, in the same order on every worker.
        read: Gives the elements of one file.
    """
    return Dataset(FileSource(files, read))


def as_dataset(source: Any) -> Dataset:
    """Make a dataset out of what programs have.

    Elements are as the source gives them: tensors of a DataLoader stay tensors, whatever the
    strategy, and are cut as tensors.

    Args:
        source: A Dataset; nested arrays, whose first axis counts elements; a PyTorch DataLoader; a
            Hugging Face dataset (examples: call ``batch``); what has ``as_numpy_iterator``
            (tf.data); a function without arguments that returns an iterable; any iterable. A
            generator or iterator can be gone through once.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, np.ndarray | tuple | dict):
        return Dataset(SliceSource(map_structure(np.asarray, source)))
    if hasattr(source, "as_numpy_iterator"):
        return Dataset(IterableSource(source.as_numpy_iterator))
    if hasattr(source, "with_format") and hasattr(source, "features"):
        return Dataset(IterableSource(partial(source.with_format, "numpy")))
    if isinstance(source, Iterable):
        once = isinstance(source, Iterator)
        return Dataset(IterableSource(partial(iter, source), _length(source), once=once))
    if callable(source):
        return Dataset(IterableSource(source))
    raise TypeError(
        f"a dataset must be an iterable of batches or nested arrays, got {type(source).__name__}"
    )


def _length(source: Iterable[Any]) -> int:
    try:
        return len(source) if isinstance(source, Sized) else UNKNOWN_CARDINALITY
    except TypeError:  # a DataLoader of what has no length has the method all the same
        return UNKNOWN_CARDINALITY
