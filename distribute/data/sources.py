"""Nodes where datasets begin: arrays, ranges, files, and whatever can be iterated over."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import chain, count, islice
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array
from ...core.arrays.dtypes import Array, in_native_order
from ..base.values import flatten, map_structure
from .node import DatasetNode, Index
from .options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from .passes import Pass
from .sharding import common_length


class IterableSource(DatasetNode):
    """Anything that can be iterated over; what can be only once, is.

    Args:
        open_source: Called for each pass.
        size: Number of elements that it gives.
        once: Whether it can be opened once only.
        varies: See :class:`DatasetNode`.
    """

    def __init__(
        self,
        open_source: Callable[[], Iterable[Any]],
        size: int = UNKNOWN_CARDINALITY,
        *,
        once: bool = False,
        varies: bool = True,
    ) -> None:
        self._open = open_source
        self._size = size
        self.once = once
        self.varies = varies

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate in the only order there is."""
        del this
        return islice(self._open(), start, None) if start else iter(self._open())

    def cardinality(self) -> int:
        """Return the number of elements that it was told."""
        return self._size


class RangeSource(DatasetNode):
    """Numbers, int64 unless told otherwise."""

    fresh = True
    varies = False

    def __init__(self, numbers: range, kind: type[Any] = np.int64) -> None:
        self._numbers, self._kind = numbers, kind

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over the numbers from one on."""
        del this
        return map(self._kind, self._numbers[start:])

    def example(self) -> Any:
        """Return a number, also of an empty range."""
        return self._kind(0)

    def cardinality(self) -> int:
        """Count the numbers."""
        return len(self._numbers)


class SliceSource(DatasetNode):
    """The rows of nested arrays."""

    fresh = True
    varies = False

    def __init__(self, arrays: Any) -> None:
        self.table = map_structure(as_array, arrays)
        self._size = common_length(self.table)

    def positions(self, start: int, this: Pass) -> Iterator[int]:
        """Iterate over all rows in order."""
        del this
        return iter(range(start, self._size))

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over copies: a step that wrote to a view would change the program's data."""
        leaves, rebuild = flatten(self.table)
        return (rebuild([a[i].copy() for a in leaves]) for i in self.positions(start, this))

    def cardinality(self) -> int:
        """Count the rows."""
        return self._size


class IndexSource(DatasetNode):
    """Batches of examples that are read by their numbers; see ``from_index``."""

    fresh = True

    def __init__(self, index: Index) -> None:
        if index.batch < 1:
            raise ValueError(f"batch_size must be at least 1, got {index.batch}")
        if index.epochs is None and index.examples < (index.batch if index.drop_remainder else 1):
            raise ValueError(
                f"{index.examples} examples never fill a batch of {index.batch}: an endless "
                "dataset of them would never give one"
            )
        self.index: Index = index
        full = index.examples // index.batch
        self._per_epoch = full if index.drop_remainder else -(-index.examples // index.batch)
        self.varies = not index.drop_remainder

    def example(self) -> Any:
        """Read a batch of one, or a full one if all are: no order has to be drawn for it."""
        size = 1 if self.varies else self.index.batch
        return self.index.read(np.arange(min(size, self.index.examples)))

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over batches from number ``start`` on; those before are not gathered."""
        if not self._per_epoch:
            return
        index = self.index
        first, start = divmod(start, self._per_epoch)
        for epoch in count(first) if index.epochs is None else range(first, index.epochs):
            order = np.arange(index.examples)
            if index.shuffle and not this.in_order:
                order = this.repetition(epoch).generator(index.seed).permutation(index.examples)
            for number in range(start, self._per_epoch):
                yield index.read(order[number * index.batch : (number + 1) * index.batch])
            start = 0

    def cardinality(self) -> int:
        """Count the batches of all epochs."""
        epochs = self.index.epochs
        return INFINITE_CARDINALITY if epochs is None else epochs * self._per_epoch


class ArraySource(IndexSource):
    """Batches of nested arrays; see ``from_arrays``."""

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        epochs: int | None,
        drop_remainder: bool,
    ) -> None:
        arrays = map_structure(lambda leaf: in_native_order(np.asarray(leaf)), arrays)

        examples, read = common_length(arrays), partial(_rows, arrays)
        super().__init__(Index(examples, read, batch_size, seed, shuffle, epochs, drop_remainder))


def _rows(arrays: Any, rows: Array) -> Any:
    return map_structure(lambda array: array[rows], arrays)


class FileSource(DatasetNode):
    """Contents of files, one after another; see ``from_files``."""

    def __init__(self, files: Sequence[str], read: Callable[[str], Iterable[Any]]) -> None:
        self.files: tuple[str, ...] = tuple(str(file) for file in files)
        self._everyones = self.files
        self._read = read

    def of_files(self, files: Sequence[str]) -> DatasetNode:
        """Copy the node for these files alone."""
        other = copy(self)
        other.files = tuple(files)
        return other

    def example(self) -> Any:
        """Read an example from a file of its own, or of another worker's if these hold nothing."""
        files = dict.fromkeys([*self.files, *self._everyones])
        return next(chain.from_iterable(map(self._read, files)), None)

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over the files; each is opened when the one before has ended."""
        del this
        return islice(chain.from_iterable(map(self._read, self.files)), start, None)
