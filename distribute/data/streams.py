"""Nodes that give other elements than one for each of their source's: flat_map, window, take_while.

A :class:`Streamed` node is a function of the streams of its sources. The functions here are pure:
iterators in, an iterator out.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array
from ...core.terminal import counted
from ..base.values import flatten
from .node import DatasetNode, Derived
from .options import UNKNOWN_CARDINALITY
from .passes import Pass
from .prefetch import copied
from .transformations import call

NodeOf = Callable[[Any], DatasetNode]
"""The node of the dataset that a program's function makes of an element."""


Stream = Callable[..., Iterator[Any]]
"""Called with a pass and the elements of each source in it; gives the elements made of them."""


class Streamed(Derived):
    """The stream that a function makes of the streams of other nodes.

    Args:
        stream: Called for each pass.
        sources: Nodes whose elements it gets; each is in a repetition of its own of the pass.
        size: Number of elements that it gives.
        keeps: The stream keeps elements while it asks for the next: they must not be overwritten.
    """

    def __init__(
        self,
        stream: Stream,
        *sources: DatasetNode,
        size: int = UNKNOWN_CARDINALITY,
        keeps: bool = False,
    ) -> None:
        super().__init__(*sources)
        self._stream, self._size, self._keeps = stream, size, keeps
        self.fresh, self.varies = False, True

    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate from the beginning: what comes before ``start`` is made, and left out."""
        one = len(self.sources) == 1
        passes = (this if one else this.repetition(number) for number in count())
        opened = [source.iterate(0, of) for source, of in zip(self.sources, passes, strict=False)]
        if self._keeps and not self.sources[0].fresh:
            opened[0] = map(copied, opened[0])
        return islice(self._stream(this, *opened), start, None)

    def example(self) -> Any:
        """Return the first element."""
        return DatasetNode.example(self)

    def cardinality(self) -> int:
        """Return the number of elements that it was given."""
        return self._size


def flattened(node_of: NodeOf, this: Pass, elements: Iterator[Any]) -> Iterator[Any]:
    """Yield the elements of one dataset after another."""
    for number, element in enumerate(elements):
        yield from node_of(element).iterate(0, this.repetition(number))


def interleaved(
    node_of: NodeOf, cycle_length: int, block_length: int, this: Pass, elements: Iterator[Any]
) -> Iterator[Any]:
    """Yield blocks of several datasets in turn; one that ends makes room for the next.

    Args:
        node_of: Makes the dataset of an element.
        cycle_length: Datasets that take turns.
        block_length: Elements of each turn.
        this: The pass.
        elements: Elements of which datasets are made.
    """
    opened = (
        node_of(element).iterate(0, this.repetition(number))
        for number, element in enumerate(elements)
    )
    cycle: list[Iterator[Any] | None] = [next(opened, None) for _ in range(cycle_length)]
    while any(stream is not None for stream in cycle):
        for place, stream in enumerate(cycle):
            if stream is None:
                continue
            block = list(islice(stream, block_length))
            yield from block
            if len(block) < block_length:
                cycle[place] = next(opened, None)


def windows(
    size: int, shift: int, stride: int, drop_remainder: bool, this: Pass, elements: Iterator[Any]
) -> Iterator[list[Any]]:
    """Yield lists of ``size`` elements, ``stride`` apart, each beginning ``shift`` after the one
    before.

    The last ones are shorter, unless ``drop_remainder`` leaves them out.
    """
    del this
    reach = (size - 1) * stride + 1
    held: deque[Any] = deque(islice(elements, reach))
    while held and (len(held) == reach or not drop_remainder):
        yield list(islice(held, 0, None, stride))
        for _ in range(min(shift, len(held))):
            held.popleft()
        skipped = shift - reach
        if skipped > 0:
            next(islice(elements, skipped, skipped), None)
        held.extend(islice(elements, reach - len(held)))


def taken_while(
    predicate: Callable[..., Any], this: Pass, elements: Iterator[Any]
) -> Iterator[Any]:
    """Yield the elements before the first of which ``predicate`` is false."""
    del this
    for element in elements:
        if not call(predicate, element):
            return
        yield element


def scanned(
    state: Any, function: Callable[[Any, Any], Any], this: Pass, elements: Iterator[Any]
) -> Iterator[Any]:
    """Yield outputs of ``function(state, element)``, which returns the next state and an output."""
    del this
    for element in elements:
        state, output = function(state, element)
        yield output


def distinct(this: Pass, elements: Iterator[Any]) -> Iterator[Any]:
    """Yield each element once, when it comes first."""
    del this
    seen: set[Any] = set()
    for element in elements:
        key = as_array(element)
        key = (key.shape, key.tobytes())
        if key not in seen:
            seen.add(key)
            yield element


def rebatched(
    sizes: Sequence[int], drop_remainder: bool, this: Pass, batches: Iterator[Any]
) -> Iterator[Any]:
    """Yield batches cut anew, to ``sizes`` in turn.

    Leaves are joined along the first axis and cut again, in the order of examples.
    """
    del this
    rows: deque[list[Any]] = deque()
    rebuild: Callable[[list[Any]], Any] = list
    for number in count():
        size = sizes[number % len(sizes)]
        while len(rows) < size and (batch := next(batches, None)) is not None:
            columns, rebuild = flatten(batch)
            rows.extend(map(list, zip(*columns, strict=True)))
        taken = [rows.popleft() for _ in range(min(size, len(rows)))]
        if not taken or (drop_remainder and len(taken) < size):
            return
        yield rebuild([np.stack(column) for column in zip(*taken, strict=True)])


def chosen(
    stop_on_empty: bool, this: Pass, choices: Iterator[Any], *streams: Iterator[Any]
) -> Iterator[Any]:
    """Yield the next element of the stream that each of ``choices`` numbers.

    Args:
        stop_on_empty: End with the first stream that has ended, instead of passing it over.
        this: The pass.
        choices: Numbers of streams.
        streams: Streams to choose from.

    Raises:
        ValueError: A choice is not the number of a stream.
    """
    del this
    for choice in choices:
        if not 0 <= choice < len(streams):
            raise ValueError(f"a choice of {choice} among {counted(len(streams), 'dataset')}")
        try:
            yield next(streams[choice])
        except StopIteration:
            if stop_on_empty:
                return


def sampled(
    weights: Sequence[float], seed: int, stop_on_empty: bool, this: Pass, *streams: Iterator[Any]
) -> Iterator[Any]:
    """Yield elements of streams drawn with probabilities ``weights``, until all have ended.

    A stream that has ended is not drawn from any more, unless ``stop_on_empty`` ends all with it.
    """
    generator = this.generator(seed)
    left = np.asarray(weights, np.float64)
    while (total := left.sum()) > 0:
        choice = int(generator.choice(len(left), p=left / total))
        try:
            yield next(streams[choice])
        except StopIteration:
            if stop_on_empty:
                return
            left[choice] = 0


def grouped(
    key_of: Callable[..., Any],
    size_of: Callable[[Any], int],
    node_of: Callable[[Any, list[Any]], DatasetNode],
    this: Pass,
    elements: Iterator[Any],
) -> Iterator[Any]:
    """Yield elements of one key together: of the dataset made of ``size_of(key)`` of them.

    Args:
        key_of: The group of an element.
        size_of: Number of elements of a group that are reduced together.
        node_of: Makes a dataset of a key and its elements.
        this: The pass.
        elements: Elements to group.
    """
    groups: dict[Any, list[Any]] = {}
    for element in elements:
        key = int(call(key_of, element))
        group = groups.setdefault(key, [])
        group.append(element)
        if len(group) >= size_of(key):
            yield from node_of(np.int64(key), groups.pop(key)).iterate(0, this)
    for key in sorted(groups):  # as TensorFlow
        yield from node_of(np.int64(key), groups[key]).iterate(0, this)
