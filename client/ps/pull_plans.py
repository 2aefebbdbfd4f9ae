"""Plans for pulled bytes: one buffer for the whole step, each variable a view of it.

Worked out once per set of variables and kept; a step then only receives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...core.arrays.buffers import ALIGNMENT_BYTES, BufferPool
from ...core.arrays.dtypes import Array, DType, row_shape, size_of
from ...core.errors import RefusedError
from ...core.rules.definitions import ShardDefinition
from ...core.wire.steps import (
    SMALL_BYTES,
    LayoutEntry,
    Operation,
    PullTarget,
    StepReply,
    StepRequest,
    WireFormat,
    WireLayout,
)
from .definer import PlacedVariable

# -- Where a pull lands: what of it an answer has ----------------------------------------------


def runs_of(changed: Array, sizes: Array) -> Iterator[tuple[bool, int, int]]:
    """Yield runs of neighbouring entries that all changed, or all did not.

    Args:
        changed: bool, per entry.
        sizes: int64, bytes of each entry.

    Yields:
        (changed, start, stop) in bytes of the whole.
    """
    if not changed.size:
        return
    ends = np.concatenate(([0], np.cumsum(sizes))).tolist()
    turns = [0, *(np.flatnonzero(np.diff(changed)) + 1).tolist(), changed.size]
    for first, last in pairwise(turns):
        yield bool(changed[first]), ends[first], ends[last]


def cut_spans(spans: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the bytes ``[start, stop)`` of spans that count as one after another."""
    pieces, offset = [], 0
    for span in spans:
        low, high = max(start - offset, 0), min(stop - offset, len(span))
        if low < high:
            pieces.append(span[low:high])
        offset += len(span)
    return pieces


def changed_parts(
    request: StepRequest, reply: StepReply, target: PullTarget, peer: str
) -> Sequence[memoryview]:
    """Find the places of the payload, if it has some entries of the pull only; fill in the
    others.

    Raises:
        RefusedError: The reply is one to another pull.
    """
    into, previous = target.into, target.previous
    if not reply.changed or request.pull is None or previous is None:
        return into
    sizes = request.pull.sizes
    if len(reply.changed) != -(-sizes.size // 8):
        raise RefusedError(f"{peer} says what changed of another pull", peer=peer)
    changed = np.unpackbits(
        np.frombuffer(reply.changed, np.uint8), count=sizes.size, bitorder="little"
    ).astype(np.bool_)
    parts: list[memoryview] = []
    for moved, start, stop in runs_of(changed, sizes):
        for own, old in zip(
            cut_spans(into, start, stop), cut_spans(previous, start, stop), strict=True
        ):
            if moved:
                parts.append(own)
            elif previous is not into:
                own[:] = old
    return parts


# -- Plans ---------------------------------------------------------------------------------------

# Larger values begin at a multiple of 64 bytes, where frameworks can share their memory. Smaller
# ones have no gaps between them, so that many are one copy.


ValueSpan = tuple[int, int, tuple[int, ...], DType, DType]
"""A variable's place in the buffer: start, stop (bytes), shape, dtype there, its own dtype."""


class Values(Mapping[str, Array]):
    """Pulled variables by name, as read-only arrays that stay as they are.

    An array is made when it is asked for: ten thousand of them would cost more than their bytes.
    """

    __slots__ = ("_buffer", "_made", "_spans")

    def __init__(self, spans: Mapping[str, ValueSpan], buffer: Array) -> None:
        self._spans = spans
        self._buffer = buffer.view()
        self._buffer.flags.writeable = False  # and so is every array of it
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        value = self._made.get(name)
        if value is None:
            start, _, shape, wire, dtype = self._spans[name]
            # Half the time of a slice, its view and the view's shape.
            value = np.ndarray(shape, wire, self._buffer, start)
            if wire != dtype:
                value = value.astype(dtype)
                value.flags.writeable = False
            self._made[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


@dataclass(frozen=True, slots=True)
class PullPlan:
    """A plan for pulled bytes: one buffer for the whole step, each variable a view of it.

    Whole variables on one ps stand in the order in which their bytes arrive, so that ten thousand
    of them are one copy; variables cut over several ps follow, each in one buffer.
    """

    layouts: dict[int, WireLayout]
    spans: dict[int, list[tuple[int, int]]]
    places: dict[str, ValueSpan]
    pool: BufferPool

    def take_targets(self) -> tuple[Array, dict[int, PullTarget]]:
        """Take a buffer for the values, and the places in it of those of each ps."""
        buffer, latest = self.pool.take()
        targets: dict[int, PullTarget] = {}
        for ps, spans in self.spans.items():
            into = _cut(buffer, spans)
            previous = None if latest is None else into if latest is buffer else _cut(latest, spans)
            targets[ps] = PullTarget(into, previous)
        return buffer, targets

    def values(self, buffer: Array) -> Values:
        """Wrap the values that arrived in ``buffer``."""
        return Values(self.places, buffer)


def _cut(buffer: Array, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    whole = buffer.data
    return [whole[start:stop] for start, stop in spans]


def plan_pull(
    variables: Sequence[PlacedVariable],
    wire_formats: Sequence[WireFormat],
    new_layout: Callable[[Sequence[LayoutEntry]], WireLayout],
) -> PullPlan:
    """Plan where the values of these variables go.

    Args:
        variables: Variables that are pulled.
        wire_formats: Wire format of each ps.
        new_layout: Gives a layout its id.
    """
    entries: dict[int, list[LayoutEntry]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    places: dict[str, ValueSpan] = {}
    offset = 0

    # A variable cut over several ps travels in one format: the plainest of theirs.
    def wire_of(placed: PlacedVariable) -> np.dtype[np.generic]:
        dtype = placed.definition.dtype
        kinds = {wire_formats[ps].value_dtype(dtype) for ps, _ in placed.shards}
        return kinds.pop() if len(kinds) == 1 else dtype

    wires = {placed.definition.name: wire_of(placed) for placed in variables}

    def add_span(ps: int, placed: PlacedVariable, shard: ShardDefinition, start: int) -> None:
        name, dtype = placed.definition.name, placed.definition.dtype
        wire = wires[name]
        narrowed = wire if wire != dtype else None
        num_bytes = shard.size * wire.itemsize
        entry = LayoutEntry(name, shard.part, Operation.PULL, dtype=narrowed, num_bytes=num_bytes)
        entries.setdefault(ps, []).append(entry)
        own = spans.setdefault(ps, [])
        stop = start + num_bytes
        if own and own[-1][1] == start:
            own[-1] = (own[-1][0], stop)
        else:
            own.append((start, stop))

    def note(placed: PlacedVariable, start: int) -> int:
        definition, wire = placed.definition, wires[placed.definition.name]
        stop = start + definition.size * wire.itemsize
        places[definition.name] = (start, stop, definition.shape, wire, definition.dtype)
        return stop

    # Widest dtypes first: every view is aligned without gaps.
    by_width = sorted(variables, key=lambda placed: -wires[placed.definition.name].itemsize)
    whole = [placed for placed in by_width if len(placed.shards) == 1]
    split = [placed for placed in by_width if len(placed.shards) != 1]
    for ps in sorted({placed.shards[0][0] for placed in whole}):
        offset += -offset % ALIGNMENT_BYTES
        for placed in whole:
            if placed.shards[0][0] == ps:
                if placed.definition.num_bytes > SMALL_BYTES:
                    offset += -offset % ALIGNMENT_BYTES
                add_span(ps, placed, placed.shards[0][1], offset)
                offset = note(placed, offset)
    for placed in split:
        offset += -offset % ALIGNMENT_BYTES
        wire = wires[placed.definition.name]
        row_bytes = size_of(row_shape(placed.definition.shape)) * wire.itemsize
        for ps, shard in placed.shards:
            add_span(ps, placed, shard, offset + shard.row_offset * row_bytes)
        offset = note(placed, offset)
    layouts = {ps: new_layout(items) for ps, items in entries.items()}
    return PullPlan(layouts, spans, places, BufferPool(offset))
