"""What a set of variables means in bytes: which shard is where, in which order.

Worked out once per set and kept; a step then only cuts, sends and receives.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import codec
from ..core.arrays import Array, DType, row_shape, size_of
from ..core.definitions import ShardDefinition, VariableDefinition
from ..core.errors import ShapeMismatchError
from ..core.indexed_slices import IndexedSlices
from ..core.steps import LayoutEntry, Operation, WireLayout
from ..core.task import Incarnation


@dataclass(frozen=True, slots=True)
class PushItem:
    """One variable's part of a push: a gradient to apply, or a value to assign or add."""

    variable: str
    operation: Operation
    value: Array | IndexedSlices


@dataclass(frozen=True, slots=True)
class Placed:
    """A variable and where its shards are: (index of the transport, shard), by part."""

    definition: VariableDefinition
    shards: tuple[tuple[int, ShardDefinition], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How one variable of a push is cut over its shards."""

    placed: Placed
    sparse: bool


_Parts = dict[int, tuple[list[Array], list[memoryview]]]
"""Per ps: row numbers of the sparse entries, and the values as bytes."""


@dataclass(frozen=True, slots=True)
class PushPlan:
    """How a set of pushed variables travels: per ps a layout, per variable how it is cut."""

    layouts: dict[int, WireLayout]
    cuts: tuple[Cut, ...]

    def fill(self, pushes: Sequence[PushItem], who: Incarnation) -> _Parts:
        """Check the values of a push and cut them, without copying dense ones."""
        parts: _Parts = {ps: ([], []) for ps in self.layouts}
        for item, piece in zip(pushes, self.cuts, strict=True):
            if isinstance(item.value, IndexedSlices):
                _cut_rows(item.value, item.variable, piece.placed, parts, who)
            else:
                _cut_dense(item.value, item.variable, piece.placed, parts, who)
        return parts


def _cut_dense(value: Array, name: str, placed: Placed, parts: _Parts, who: Incarnation) -> None:
    definition = placed.definition
    value = np.asarray(value)
    if value.shape != definition.shape:
        raise ShapeMismatchError(
            f"{who.task}: push to {name!r} has shape {value.shape}, the variable has "
            f"{definition.shape}",
            task=who.task,
            variable=name,
            pushed=value.shape,
            expected=definition.shape,
        )
    value = _cast(value, definition, who)
    for ps, shard in placed.shards:
        whole = len(placed.shards) == 1
        rows = value if whole else value[shard.row_offset : shard.row_offset + shard.rows]
        parts[ps][1].append(codec.as_bytes(rows))


def _cut_rows(
    value: IndexedSlices, name: str, placed: Placed, parts: _Parts, who: Incarnation
) -> None:
    definition = placed.definition
    row = row_shape(definition.shape)
    rows = definition.shape[0] if definition.shape else 0
    if value.values.shape[1:] != row:
        raise ShapeMismatchError(
            f"{who.task}: rows pushed to {name!r} have shape {value.values.shape[1:]}, the variable's "
            f"rows have {row}",
            task=who.task,
            variable=name,
        )
    slices = value.combined()
    indices = slices.indices
    if indices.size and (indices[0] < 0 or indices[-1] >= rows):
        raise ShapeMismatchError(
            f"{who.task}: row {indices[0] if indices[0] < 0 else indices[-1]} pushed to {name!r} is out "
            f"of range: it has {rows} rows",
            task=who.task,
            variable=name,
        )
    values = _cast(slices.values, definition, who)
    for ps, shard in placed.shards:
        low, high = np.searchsorted(indices, (shard.row_offset, shard.row_offset + shard.rows))
        parts[ps][0].append(indices[low:high] - shard.row_offset)
        parts[ps][1].append(codec.as_bytes(values[low:high]))


def _cast(value: Array, definition: VariableDefinition, who: Incarnation) -> Array:
    if value.dtype != definition.dtype:
        if not np.can_cast(value.dtype, definition.dtype, "same_kind"):
            raise ShapeMismatchError(
                f"{who.task}: push to {definition.name!r} is {value.dtype.name}, the variable is "
                f"{definition.dtype.name}; convert it explicitly",
                task=who.task,
                variable=definition.name,
            )
        value = value.astype(definition.dtype)
    return np.ascontiguousarray(value)


@dataclass(frozen=True, slots=True)
class _View:
    """Where a pulled variable is in the buffer."""

    name: str
    start: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Where pulled bytes go: one buffer for the whole step, each variable a view of it.

    Whole variables on one ps stand in the order in which their bytes arrive, so that ten thousand of them are
    one copy; variables cut over several ps follow, each in one piece.
    """

    entries: dict[int, list[LayoutEntry]]
    spans: dict[int, list[tuple[int, int]]]
    views: tuple[_View, ...]
    num_bytes: int
    pool: "BufferPool"
    layouts: dict[int, WireLayout]

    def allocate(self) -> tuple[dict[str, Array], dict[int, list[memoryview]]]:
        """Values by name (unfilled), and per ps where its bytes go."""
        if not self.views:
            return {}, {}
        buffer = self.pool.take()
        targets = {
            ps: [buffer[start:stop].data for start, stop in spans]
            for ps, spans in self.spans.items()
        }
        values: dict[str, Array] = {}
        for view in self.views:
            stop = view.start + size_of(view.shape) * view.dtype.itemsize
            value = buffer[view.start : stop].view(view.dtype).reshape(view.shape)
            value.flags.writeable = False
            values[view.name] = value
        return values, targets


class BufferPool:
    """Buffers of one size, used again once nobody holds a view of them.

    Fresh memory costs a page fault per 4 KiB, more than copying into it; but values a program keeps
    must never change under it. A view holds a reference to its buffer, so the count tells.
    """

    _KEEP = 4

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._buffers: list[Array] = []

    def take(self) -> Array:
        """A buffer nobody looks at."""
        for index in range(len(self._buffers)):
            # Two references: the list's and the call's argument.
            if sys.getrefcount(self._buffers[index]) == 2:
                return self._buffers[index]
        buffer = np.empty(self._num_bytes, np.uint8)
        if len(self._buffers) < self._KEEP:
            self._buffers.append(buffer)
        return buffer


def plan_pull(variables: Sequence[Placed]) -> PullPlan:
    """Where the values of these variables go, without the layouts."""
    entries: dict[int, list[LayoutEntry]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    views: list[_View] = []
    offset = 0

    def land(ps: int, name: str, shard: ShardDefinition, start: int) -> None:
        entries.setdefault(ps, []).append(LayoutEntry(name, shard.part, Operation.PULL))
        own = spans.setdefault(ps, [])
        stop = start + shard.num_bytes
        if own and own[-1][1] == start:
            own[-1] = (own[-1][0], stop)
        else:
            own.append((start, stop))

    # Widest dtypes first: every view is aligned without gaps.
    by_width = sorted(variables, key=lambda placed: -placed.definition.dtype.itemsize)
    whole = [placed for placed in by_width if len(placed.shards) == 1]
    split = [placed for placed in by_width if len(placed.shards) != 1]
    for ps in sorted({placed.shards[0][0] for placed in whole}):
        offset += -offset % 64
        for placed in whole:
            if placed.shards[0][0] != ps:
                continue
            definition = placed.definition
            land(ps, definition.name, placed.shards[0][1], offset)
            views.append(_View(definition.name, offset, definition.shape, definition.dtype))
            offset += definition.num_bytes
    for placed in split:
        definition = placed.definition
        offset += -offset % 64
        row_bytes = size_of(row_shape(definition.shape)) * definition.dtype.itemsize
        for ps, shard in placed.shards:
            land(ps, definition.name, shard, offset + shard.row_offset * row_bytes)
        views.append(_View(definition.name, offset, definition.shape, definition.dtype))
        offset += definition.num_bytes
    return PullPlan(entries, spans, tuple(views), offset, BufferPool(offset), {})
