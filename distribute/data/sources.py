"""Nodes where datasets begin: arrays, ranges, files, and whatever can be iterated over."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain, count, islice
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array
from ...core.arrays.dtypes import in_native_order
from ..base.values import flatten, map_structure
from .node import DatasetNode
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


class ArraySource(DatasetNode):
    """Batches of nested arrays; see ``from_arrays``."""

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
        self._arrays = map_structure(lambda leaf: in_native_order(np.asarray(leaf)), arrays)
        self._examples = common_length(self._arrays)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if epochs is None and self._examples < (batch_size if drop_remainder else 1):
            raise ValueError(
                f"{self._examples} examples never fill a batch of {batch_size}: an endless dataset "
                "of them would never give one"
            )
        self._size, self._shuffle, self._seed, self._epochs = batch_size, shuffle, seed, epochs
        full = self._examples // batch_size
        self._per_epoch = full if drop_remainder else -(-self._examples // batch_size)
        self.varies = not drop_remainder

    def example(self) -> Any:
        """Make a batch of one, or a full one if all are: no order has to be drawn for it."""
        size = 1 if self.varies else self._size
        return map_structure(lambda array: array[:size].copy(), self._arrays)

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over batches from number ``start`` on; those before are not gathered."""
        if not self._per_epoch:
            return
        first, start = divmod(start, self._per_epoch)
        for epoch in count(first) if self._epochs is None else range(first, self._epochs):
            order = np.arange(self._examples)
            if self._shuffle and not this.in_order:
                order = this.repetition(epoch).generator(self._seed).permutation(self._examples)
            for number in range(start, self._per_epoch):
                rows = order[number * self._size : (number + 1) * self._size]
                yield map_structure(lambda array, rows=rows: array[rows], self._arrays)
            start = 0

    def cardinality(self) -> int:
        """Count the batches of all epochs."""
        return INFINITE_CARDINALITY if self._epochs is None else self._epochs * self._per_epoch


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
