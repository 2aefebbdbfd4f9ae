"""Nodes that give some of another's elements, or in another order: shuffle, shard, take, repeat.

Which ones does not depend on what they are. So where elements are rows of arrays, the numbers of
the rows go through these nodes instead, and ``batch`` gathers them at once.
"""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain, count, islice
from math import ceil
from typing import Any

import numpy as np

from ...core.arguments import whole_number
from .node import DatasetNode, Derived, Opener
from .options import INFINITE_CARDINALITY, SHARD_HINT, UNKNOWN_CARDINALITY
from .passes import Pass
from .prefetch import Prefetcher, copied

_DRAWN_AT_ONCE = 1024


class Selection(Derived):
    """Elements of another node."""

    def __init__(self, source: DatasetNode) -> None:
        super().__init__(source)
        self.table = source.table

    @abstractmethod
    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select elements from number ``start`` on, out of what ``open_source`` gives."""

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over elements from number ``start`` on."""
        return self.select(self.source.iterate, start, this)

    def positions(self, start: int, this: Pass) -> Iterator[int]:
        """Iterate over the elements' rows."""
        return self.select(self.source.positions, start, this)


class Sharded(Selection):
    """Every n-th element. What comes before has the orders that all workers have in common."""

    def __init__(self, source: DatasetNode, num_shards: int, index: int) -> None:
        super().__init__(source)
        num_shards, index = whole_number(num_shards, "num_shards"), whole_number(index, "index")
        hint = num_shards == SHARD_HINT and index == SHARD_HINT
        if not hint and (num_shards < 1 or not 0 <= index < num_shards):
            raise ValueError(f"index must be in [0, num_shards), got {index} of {num_shards}")
        self._num_shards, self._index = num_shards, index

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select the elements of the shard; none of those before its first one is computed."""
        if self._num_shards == SHARD_HINT:
            raise ValueError(
                "shard(SHARD_HINT, SHARD_HINT) is filled in by a strategy whose policy is "
                "AutoShardPolicy.HINT; set it with `with_options`"
            )
        first = start * self._num_shards + self._index
        return islice(open_source(first, this.in_common()), 0, None, self._num_shards)

    def cardinality(self) -> int:
        """Count the elements of the shard."""
        size = self.source.cardinality()
        return size if size < 0 else max(0, ceil((size - self._index) / self._num_shards))

    def resolve_hint(self, workers: int, worker: int) -> DatasetNode:
        """Shard here, if this is the hint."""
        source = self.source.resolve_hint(workers, worker)
        if self._num_shards != SHARD_HINT:
            return self.on(source)
        return Sharded(source, workers, worker)


class Taken(Selection):
    """The first elements; a negative count: all."""

    def __init__(self, source: DatasetNode, count: int) -> None:
        super().__init__(source)
        self._count = whole_number(count, "count")

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select the first elements."""
        elements = open_source(start, this)
        return elements if self._count < 0 else islice(elements, max(0, self._count - start))

    def cardinality(self) -> int:
        """Count the elements: at most the count."""
        size = self.source.cardinality()
        if self._count < 0 or size == UNKNOWN_CARDINALITY:
            return size if self._count else 0
        return self._count if size == INFINITE_CARDINALITY else min(size, self._count)


class Skipped(Selection):
    """All but the first elements; a negative count: none."""

    def __init__(self, source: DatasetNode, count: int) -> None:
        super().__init__(source)
        self._count = whole_number(count, "count")

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select the elements after the first ones."""
        return iter(()) if self._count < 0 else open_source(start + self._count, this)

    def cardinality(self) -> int:
        """Count what is left."""
        size = self.source.cardinality()
        return 0 if self._count < 0 else size if size < 0 else max(0, size - self._count)


class Repeated(Selection):
    """Again from the beginning when it ends, each time as another repetition."""

    def __init__(self, source: DatasetNode, count: int | None) -> None:
        super().__init__(source)
        times = -1 if count is None else whole_number(count, "count")
        self._count = None if times < 0 else times

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select repetitions; of known length, those before ``start`` are not gone through."""
        size = self.source.cardinality()
        if size < 0:
            return islice(self._all(open_source, 0, 0, this), start, None)
        return self._all(open_source, *divmod(start, max(size, 1)), this)

    def _all(self, open_source: Opener, first: int, start: int, this: Pass) -> Iterator[Any]:
        for number in count(first) if self._count is None else range(first, self._count):
            elements = open_source(start, this.repetition(number))
            try:
                element = next(elements)
            except StopIteration:
                return  # again and again nothing
            yield element
            yield from elements
            start = 0

    def cardinality(self) -> int:
        """Count the source's elements, times the number of repetitions."""
        size = self.source.cardinality()
        if self._count is not None:
            return size * self._count if size > 0 else size if self._count else 0
        return UNKNOWN_CARDINALITY if self.source.once else INFINITE_CARDINALITY if size else 0


class Shuffled(Selection):
    """A shuffle: elements in an order drawn anew in each pass, out of a buffer. As
    ``tf.data.Dataset.shuffle``.
    """

    def __init__(self, source: DatasetNode, buffer_size: int, seed: int, *, anew: bool) -> None:
        super().__init__(source)
        buffer_size = whole_number(buffer_size, "buffer_size")
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least 1, got {buffer_size}")
        self._size, self._seed, self._anew = buffer_size, seed, anew
        self.fresh = True

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over copies where it is needed: what waits in the buffer must not be overwritten
        meanwhile.
        """
        source = self.source
        if source.fresh:
            return self.select(source.iterate, start, this)
        return self.select(lambda at, of: map(copied, source.iterate(at, of)), start, this)

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select out of the buffer, from the order's element ``start`` on."""
        if not self._anew:
            this = this.in_common().pinned()
        if this.in_order:
            return open_source(start, this)
        drawn = _through_buffer(open_source(0, this), self._size, this.generator(self._seed))
        return islice(drawn, start, None)

    def cardinality(self) -> int:
        """Count as many elements as the source has."""
        return self.source.cardinality()


def _through_buffer(
    elements: Iterator[Any], size: int, generator: np.random.Generator
) -> Iterator[Any]:
    """Yield an element of the buffer for each that comes; at the end what is in it, in a random
    order.
    """
    buffer = list(islice(elements, size))
    drawn = chain.from_iterable(
        generator.integers(size, size=_DRAWN_AT_ONCE).tolist() for _ in count()
    )
    for element, place in zip(elements, drawn, strict=False):
        yield buffer[place]
        buffer[place] = element
    yield from map(buffer.__getitem__, generator.permutation(len(buffer)).tolist())


class Cached(Selection):
    """The elements of the first whole pass, kept in memory for all others."""

    def __init__(self, source: DatasetNode) -> None:
        super().__init__(source)
        self.fresh = False
        self._kept: dict[Pass, list[Any]] = {}

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over memory if a pass was complete; else through the source, which is kept."""
        return islice(self._through_memory(this.pinned()), start, None)

    def _through_memory(self, this: Pass) -> Iterator[Any]:
        if this in self._kept:
            yield from self._kept[this]
            return
        elements = []
        for element in self.source.iterate(0, this):
            elements.append(element if self.source.fresh else copied(element))
            yield elements[-1]
        self._kept[this] = elements

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select rows, which are in memory already: only their order is kept."""
        return open_source(start, this.pinned())

    def cardinality(self) -> int:
        """Count as many elements as the source has."""
        return self.source.cardinality()

    def on(self, *sources: DatasetNode) -> "Cached":
        """Copy the node, with a memory of its own."""
        return Cached(*sources)

    def __reduce__(self) -> tuple[type["Cached"], tuple[DatasetNode]]:
        return Cached, (self.source,)  # what it keeps may be large, and can be had again


class Prefetched(Selection):
    """Elements are prepared ahead, in a thread."""

    def __init__(self, source: DatasetNode, depth: int) -> None:
        super().__init__(source)
        self._depth = depth
        self.fresh = True

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate in the thread."""
        return Prefetcher(self.source.iterate(start, this), self._depth, fresh=self.source.fresh)

    def select(self, open_source: Opener, start: int, this: Pass) -> Iterator[Any]:
        """Select rows, of which there is nothing to prepare."""
        return open_source(start, this)

    def cardinality(self) -> int:
        """Count as many elements as the source has."""
        return self.source.cardinality()
