"""Where datasets begin: arrays, files, and whatever else a program can iterate over.

``as_dataset`` takes what programs have: arrays, iterables, generator functions, PyTorch
DataLoaders, Hugging Face datasets, tf.data-like objects. ``from_arrays`` and ``from_files`` make
datasets of arrays and of files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any

import numpy as np

from ...core.arrays import Array
from ..base.values import flatten, map_structure
from .dataset import Dataset
from .sharding import common_length


class _IterableDataset(Dataset):
    """Anything that can be iterated over; what can be only once, is."""

    def __init__(
        self,
        open_source: Callable[[], Iterable[Any]],
        batch_size: int | None,
        *,
        once: bool = False,
    ) -> None:
        super().__init__()
        self._open = open_source
        self.once = once
        self.batch_size = batch_size

    def _elements(self) -> Iterator[Any]:
        return iter(self._open())


class ArrayDataset(Dataset):
    """See :func:`from_arrays`. Every iteration starts anew, with the same orders."""

    fresh = True

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        epochs: int | None,
        drop_remainder: bool,
    ) -> None:
        super().__init__()
        self._arrays = map_structure(np.asarray, arrays)
        self._examples = common_length(self._arrays)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if epochs is None and self._examples < (batch_size if drop_remainder else 1):
            raise ValueError(
                f"{self._examples} examples never fill a batch of {batch_size}: an endless dataset "
                "of them would never give one"
            )
        self.batch_size: int = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._epochs = epochs
        self._drop_remainder = drop_remainder
        self.infinite = epochs is None

    def example(self) -> Any:
        """A batch of one, if there is one: nothing has to be drawn for it."""
        return map_structure(lambda array: array[:1], self._arrays)

    def iterate(self, start: int) -> Iterator[Any]:
        """Batches from number ``start`` on; those before are not gathered."""
        rng = np.random.default_rng(self._seed)
        per_epoch = self._examples // self.batch_size
        if not self._drop_remainder and self._examples % self.batch_size:
            per_epoch += 1
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            order = rng.permutation(self._examples) if self._shuffle else np.arange(self._examples)
            epoch += 1
            if start >= per_epoch:
                start -= per_epoch
                continue
            for number in range(start, per_epoch):
                picked = order[number * self.batch_size : (number + 1) * self.batch_size]
                yield self._pick(picked)
            start = 0

    def _pick(self, rows: Array) -> Any:
        return map_structure(lambda array: array[rows], self._arrays)


class FileDataset(Dataset):
    """See :func:`from_files`."""

    def __init__(
        self, files: Sequence[str], read: Callable[[str], Iterable[Any]], batch_size: int | None
    ) -> None:
        super().__init__()
        self.files: tuple[str, ...] = tuple(str(file) for file in files)
        self._everyones = self.files
        self._read = read
        self.batch_size = batch_size

    def of_files(self, files: Sequence[str]) -> Dataset:
        """The same dataset, of these files alone."""
        other = copy(self)
        other.files = tuple(files)
        return other

    def example(self) -> Any:
        """From a file of its own, or of another worker's if these hold nothing."""
        files = dict.fromkeys([*self.files, *self._everyones])
        return next(chain.from_iterable(map(self._read, files)), None)

    def _elements(self) -> Iterator[Any]:
        for file in self.files:
            yield from self._read(file)


def from_arrays(
    arrays: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = 1,
    drop_remainder: bool = False,
) -> ArrayDataset:
    """A dataset of batches of arrays that fit in memory.

    Args:
        arrays: Nested arrays with one first axis: the examples.
        batch_size: Examples per global batch.
        shuffle: Draw a new order for every epoch.
        seed: Of the orders.
        epochs: How often the data is gone through; None: for ever.
        drop_remainder: Leave out a last batch that is not full.

    Raises:
        ValueError: First axes differ, or ``batch_size`` < 1.
    """
    return ArrayDataset(arrays, batch_size, shuffle, seed, epochs, drop_remainder)


def from_files(
    files: Sequence[str], read: Callable[[str], Iterable[Any]], *, batch_size: int | None = None
) -> FileDataset:
    """A dataset of what files hold; synchronous workers divide the files.

    Args:
        files: Paths, in the same order on every worker.
        read: Gives the elements of one file.
        batch_size: Examples per element, if they are batches of one size.
    """
    return FileDataset(files, read, batch_size)


def _read_only(leaf: Any) -> Array:
    array = np.asarray(leaf).view()
    array.flags.writeable = False
    return array


def as_dataset(source: Any) -> Dataset:
    """A dataset out of what programs have.

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
        # Elements are views: a step that wrote to one would change the program's data.
        arrays = map_structure(_read_only, source)
        count = common_length(arrays)
        first = flatten(arrays)[0][0]
        return _IterableDataset(
            lambda: (map_structure(lambda array: array[i], arrays) for i in range(count)),  # noqa: B023
            first.shape[1] if first.ndim > 1 else None,
        )
    if hasattr(source, "as_numpy_iterator"):
        return _IterableDataset(source.as_numpy_iterator, None)
    if hasattr(source, "with_format") and hasattr(source, "features"):
        return _IterableDataset(lambda: source.with_format("numpy"), None)
    if isinstance(source, Iterable):
        size = getattr(source, "batch_size", None)
        return _IterableDataset(
            lambda: source,
            size if isinstance(size, int) else None,
            once=isinstance(source, Iterator),
        )
    if callable(source):
        return _IterableDataset(source, None)
    raise TypeError(
        f"a dataset must be an iterable of batches or nested arrays, got {type(source).__name__}"
    )
