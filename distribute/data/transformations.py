"""Nodes that make other elements: batch, map, filter, zip, concatenate, enumerate, unbatch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from ...core.arguments import whole_number
from ..base.values import flatten, map_structure
from .node import DatasetNode, Derived
from .options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from .passes import Pass
from .sharding import as_arrays, common_length


def call(function: Callable[..., Any], element: Any) -> Any:
    """Call a program's function with an element; the parts of a tuple are its arguments."""
    return function(*element) if type(element) is tuple else function(element)


def _check_callable(function: object, name: str) -> None:
    if not callable(function):
        raise ValueError(f"`{name}` must be a function, got {function!r}")


class Batched(Derived):
    """Elements stacked along a new first axis."""

    def __init__(self, source: DatasetNode, batch_size: int, *, drop_remainder: bool) -> None:
        super().__init__(source)
        batch_size = whole_number(batch_size, "batch_size")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._size, self._drop_remainder = batch_size, drop_remainder
        self.fresh = True
        self.varies = not drop_remainder

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over batches from number ``start`` on; rows of arrays are gathered at once."""
        table, size = self.source.table, self._size
        least = size if self._drop_remainder else 1
        if table is not None:
            positions = self.source.positions(start * size, this)
            while len(rows := np.fromiter(islice(positions, size), np.int64)) >= least:
                yield map_structure(lambda array, rows=rows: array[rows], table)
            return
        elements = self.source.iterate(start * size, this)
        while len(examples := list(islice(elements, size))) >= least:
            yield _stacked(examples)

    def example(self) -> Any:
        """Make a batch of one, if all are not of one size."""
        one = self.source.example()
        return None if one is None else _stacked([one] * (1 if self.varies else self._size))

    def cardinality(self) -> int:
        """Count full batches, and a last one that is not, unless it is dropped."""
        size = self.source.cardinality()
        if size < 0:
            return size
        return size // self._size if self._drop_remainder else -(-size // self._size)


def _stacked(examples: Sequence[Any]) -> Any:
    columns = zip(*(flatten(example)[0] for example in examples), strict=True)
    _, rebuild = flatten(examples[0])
    return rebuild([np.stack([np.asarray(item) for item in column]) for column in columns])


class Unbatched(Derived):
    """The examples of batches."""

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over examples from number ``start`` on."""
        return islice(chain.from_iterable(map(_rows, self.source.iterate(0, this))), start, None)

    def example(self) -> Any:
        """Return the first example of a batch."""
        return next(_rows(super().example()), None)

    def cardinality(self) -> int:
        """Say that the number is not known: batches may differ in size."""
        size = self.source.cardinality()
        return size if size in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY


def _rows(batch: Any) -> Iterator[Any]:
    arrays = as_arrays(batch)
    for i in range(common_length(arrays)):
        yield map_structure(lambda array, i=i: array[i], arrays)


class Mapped(Derived):
    """A function of every element."""

    def __init__(self, source: DatasetNode, function: Callable[..., Any]) -> None:
        super().__init__(source)
        _check_callable(function, "map_func")
        self._function = function
        self.fresh = False
        if source.index is not None:
            read = source.index.read
            self.index = replace(source.index, read=lambda rows: call(function, read(rows)))

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over results from ``start`` on; the function is not called for elements
        before.
        """
        return (call(self._function, element) for element in self.source.iterate(start, this))

    def example(self) -> Any:
        """Call the function with the source's example."""
        one = self.source.example()
        return None if one is None else call(self._function, one)

    def cardinality(self) -> int:
        """Count as many elements as the source has."""
        return self.source.cardinality()


class Filtered(Derived):
    """The elements of which a function is true."""

    def __init__(self, source: DatasetNode, predicate: Callable[..., Any]) -> None:
        super().__init__(source)
        _check_callable(predicate, "predicate")
        self._predicate = predicate

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate from number ``start`` on of those it is true of."""
        elements = self.source.iterate(0, this)
        return islice((e for e in elements if call(self._predicate, e)), start, None)


class Enumerated(Derived):
    """(number, element)."""

    def __init__(self, source: DatasetNode, first: int) -> None:
        super().__init__(source)
        self._first = whole_number(first, "start")

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over numbered elements; numbers are counted from the beginning."""
        numbered = enumerate(self.source.iterate(start, this), self._first + start)
        return ((np.int64(number), element) for number, element in numbered)

    def example(self) -> Any:
        """Return the source's example with the first number."""
        one = self.source.example()
        return None if one is None else (np.int64(self._first), one)

    def cardinality(self) -> int:
        """Count as many elements as the source has."""
        return self.source.cardinality()


class Zipped(Derived):
    """Elements of several datasets side by side, in their structure; ends with the first that
    ends.
    """

    def __init__(self, structure: Any) -> None:
        nodes, self._rebuild = flatten(structure)
        super().__init__(*nodes)

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over all in the same pass: what is shuffled with one seed stays side by side."""
        columns = [source.iterate(start, this) for source in self.sources]
        return (self._rebuild(list(elements)) for elements in zip(*columns, strict=False))

    def example(self) -> Any:
        """Join an example of each."""
        examples = [source.example() for source in self.sources]
        return None if any(one is None for one in examples) else self._rebuild(examples)

    def cardinality(self) -> int:
        """Count the elements of the shortest."""
        sizes = [source.cardinality() for source in self.sources]
        if UNKNOWN_CARDINALITY in sizes:
            return UNKNOWN_CARDINALITY
        return min((size for size in sizes if size >= 0), default=INFINITE_CARDINALITY)


class Concatenated(Derived):
    """The elements of one, then those of another."""

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over all from number ``start`` on."""
        parts = (s.iterate(0, this.repetition(i)) for i, s in enumerate(self.sources))
        return islice(chain.from_iterable(parts), start, None)

    def example(self) -> Any:
        """Return an example of the first that has one."""
        examples = (source.example() for source in self.sources)
        return next((one for one in examples if one is not None), None)

    def cardinality(self) -> int:
        """Count the elements of both."""
        sizes = [source.cardinality() for source in self.sources]
        if INFINITE_CARDINALITY in sizes:
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in sizes else sum(sizes)
