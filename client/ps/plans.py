"""What a set of variables means in bytes: which shard is where, in which order.

Worked out once per set and kept; a step then only gathers, sends and receives.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, eq, is_, itemgetter
from typing import Any, Generic, TypeVar

import numpy as np

from ...core.arrays import Array, DType, narrow, row_shape, size_of
from ...core.buffers import BufferPool
from ...core.definitions import ShardDefinition, VariableDefinition
from ...core.errors import ShapeMismatchError
from ...core.gather_buffer import GatherBuffer
from ...core.indexed_slices import IndexedSlices
from ...core.steps import Encoding, LayoutEntry, Operation, WireLayout
from ...core.task import Incarnation
from ...core.wire_format import WireFormat
from .error_feedback import MIN_ELEMENTS, ErrorFeedback
from .values import Place, Values

_SMALL_BYTES = (
    64 * 1024
)  # values up to this are gathered with their neighbours, larger ones stand alone

_shape_of = attrgetter("shape")
_dtype_of = attrgetter("dtype")
_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True)
class Push:
    """What a step pushes: one operation, on one value for each variable.

    Attributes:
        values: By variable: gradients to apply, or values to assign or add.
        operation: What happens to the variables.
        kinds: The types of the values.
    """

    values: Mapping[str, Array | IndexedSlices]
    operation: Operation = Operation.APPLY
    kinds: frozenset[type] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", frozenset(map(type, self.values.values())))


@dataclass(frozen=True, slots=True)
class Placed:
    """A variable and where its shards are: (index of the transport, shard), by part."""

    definition: VariableDefinition
    shards: tuple[tuple[int, ShardDefinition], ...]


class Recent(Generic[_Plan]):
    """The plans used last, a bounded number.

    Args:
        size: How many.
        drop: Told of each plan that is thrown away.
    """

    def __init__(self, size: int, drop: Callable[[_Plan], None]) -> None:
        self._size = size
        self._drop = drop
        self._plans: OrderedDict[Hashable, _Plan] = OrderedDict()
        self._latest: tuple[Hashable, _Plan] | None = None

    def get(self, key: Hashable, make: Callable[[], _Plan]) -> _Plan:
        """The plan for ``key``, made if it is not there."""
        # The one from the last step, mostly; comparing ten thousand names is cheaper than hashing them.
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        plan = self._plans.get(key)
        if plan is None:
            plan = make()
            if len(self._plans) >= self._size:
                self._drop(self._plans.popitem(last=False)[1])
            self._plans[key] = plan
        else:
            self._plans.move_to_end(key)
        self._latest = (key, plan)
        return plan

    def clear(self) -> None:
        """Forget all."""
        for plan in self._plans.values():
            self._drop(plan)
        self._plans.clear()
        self._latest = None


# -- pushing ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Payload:
    """One ps's part of a push."""

    numbers: list[Array]
    pieces: list[GatherBuffer]


@dataclass(frozen=True, slots=True)
class _Run:
    """Whole dense variables on one ps that stand one after another, in one dtype."""

    ps: int
    pick: Callable[[Sequence[Any]], Sequence[Array]]
    dtype: DType
    num_bytes: int


@dataclass(slots=True)
class _OpenRun:
    indices: list[int]
    dtype: DType
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """A variable that is cut, or of which only a part travels."""

    index: int
    placed: Placed
    entries: tuple[tuple[int, ShardDefinition, LayoutEntry], ...]


@dataclass(frozen=True, slots=True)
class PushPlan:
    """How a set of pushed variables travels.

    Attributes:
        layouts: Per ps.
        placed: The variables, in order.
        shapes: Theirs.
        dtypes: Theirs.
        sparse: Whether some come as rows.
        parts: In the order of each layout.
    """

    layouts: dict[int, WireLayout]
    placed: tuple[Placed, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    sparse: bool
    parts: tuple[_Run | _Cut, ...]

    def fill(
        self, push: Push, who: Incarnation, feedback: ErrorFeedback | None
    ) -> dict[int, Payload]:
        """Check the values of a push and say what of them goes where. Dense ones are not copied.

        Raises:
            ShapeMismatchError: A value has another shape than its variable, or a dtype that does not fit.
        """
        values = _arrays(push)
        uniform = self._check(values, who)
        payloads = {ps: Payload([], []) for ps in self.layouts}
        for part in self.parts:
            if isinstance(part, _Run):
                piece = GatherBuffer(part.pick(values), part.dtype, part.num_bytes, uniform)
                payloads[part.ps].pieces.append(piece)
            elif isinstance(value := values[part.index], IndexedSlices):
                _cut_rows(value, part, payloads, who)
            else:
                _cut_dense(value, part, payloads, feedback)
        return payloads

    def _check(self, values: Sequence[Array | IndexedSlices], who: Incarnation) -> bool:
        """All at once where everything is as it should be; one by one to say what is not.

        Returns:
            Whether every value has its variable's dtype.
        """
        # Iterators, not lists: ten thousand shapes kept would wake the garbage collector.
        if (
            not self.sparse
            and all(map(eq, map(_shape_of, values), self.shapes))
            and all(map(is_, map(_dtype_of, values), self.dtypes))
        ):
            return True
        for value, placed in zip(values, self.placed, strict=True):
            if isinstance(value, IndexedSlices):
                _check_dtype(value.values, placed.definition, who)
            else:
                _check_dense(value, placed.definition, who)
        return False


def _arrays(push: Push) -> list[Array | IndexedSlices]:
    values = list(push.values.values())
    if push.kinds - {np.ndarray, IndexedSlices}:
        return [v if isinstance(v, IndexedSlices) else np.asarray(v) for v in values]
    return values


def _check_dense(value: Array, definition: VariableDefinition, who: Incarnation) -> None:
    if value.shape != definition.shape:
        raise ShapeMismatchError(
            f"{who.task}: push to {definition.name!r} has shape {value.shape}, the variable has "
            f"{definition.shape}",
            task=who.task,
            variable=definition.name,
            pushed=value.shape,
            expected=definition.shape,
        )
    _check_dtype(value, definition, who)


def _check_dtype(value: Array, definition: VariableDefinition, who: Incarnation) -> None:
    if not np.can_cast(value.dtype, definition.dtype, "same_kind"):
        raise ShapeMismatchError(
            f"{who.task}: push to {definition.name!r} is {value.dtype.name}, the variable is "
            f"{definition.dtype.name}; convert it explicitly",
            task=who.task,
            variable=definition.name,
        )


def _cut_dense(
    value: Array, cut: _Cut, payloads: dict[int, Payload], feedback: ErrorFeedback | None
) -> None:
    first = cut.entries[0][2]
    dtype = cut.placed.definition.dtype
    wire = first.dtype or dtype
    if first.encoding is Encoding.ELEMENTS and feedback is not None:
        width = size_of(row_shape(cut.placed.definition.shape))
        spans = [
            (ps, start := shard.row_offset * width, start + shard.size)
            for ps, shard, _ in cut.entries
        ]
        numbers, elements = feedback.choose(
            cut.placed.definition.name, value.astype(dtype, copy=False), wire, spans
        )
        for ps, start, stop in spans:
            low, high = np.searchsorted(numbers, (start, stop))
            payloads[ps].numbers.append(numbers[low:high] - start)
            payloads[ps].pieces.append(_piece(elements[low:high]))
        return
    value = narrow(value, wire)
    for ps, shard, _ in cut.entries:
        whole = len(cut.entries) == 1
        rows = value if whole else value[shard.row_offset : shard.row_offset + shard.rows]
        payloads[ps].pieces.append(_piece(rows))


def _cut_rows(
    value: IndexedSlices, cut: _Cut, payloads: dict[int, Payload], who: Incarnation
) -> None:
    definition = cut.placed.definition
    name, row = definition.name, row_shape(definition.shape)
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
    values = narrow(slices.values, cut.entries[0][2].dtype or definition.dtype)
    for ps, shard, _ in cut.entries:
        low, high = np.searchsorted(indices, (shard.row_offset, shard.row_offset + shard.rows))
        payloads[ps].numbers.append(indices[low:high] - shard.row_offset)
        payloads[ps].pieces.append(_piece(values[low:high]))


def _piece(array: Array) -> GatherBuffer:
    return GatherBuffer([array], array.dtype, array.nbytes)


def plan_push(
    variables: Sequence[Placed],
    sparse: Sequence[bool],
    operation: Operation,
    wire_formats: Sequence[WireFormat],
    new_layout: Callable[[Sequence[LayoutEntry]], WireLayout],
) -> PushPlan:
    """How values of these variables travel.

    Args:
        variables: In the order of the push.
        sparse: Which of them come as rows.
        operation: On all of them.
        wire_formats: Per ps.
        new_layout: Gives a layout its id.
    """
    entries: dict[int, list[LayoutEntry]] = {}
    parts: list[_Run | _Cut] = []
    runs: dict[int, _OpenRun] = {}

    def close(ps: int) -> None:
        run = runs.pop(ps, None)
        if run is not None:
            parts.append(_Run(ps, _picker(run.indices), run.dtype, run.num_bytes))

    for index, (placed, rows) in enumerate(zip(variables, sparse, strict=True)):
        definition = placed.definition
        # A variable cut over near and far ps travels as it is: its parts come of one gradient.
        kinds = {wire_formats[ps] for ps, _ in placed.shards}
        wire_format = kinds.pop() if len(kinds) == 1 else WireFormat()
        cut = []
        for ps, shard in placed.shards:
            entry = _entry(definition, shard, operation, wire_format, rows=rows)
            entries.setdefault(ps, []).append(entry)
            cut.append((ps, shard, entry))
        ps, shard, entry = cut[0]
        plain = entry.encoding is Encoding.DENSE and entry.dtype is None and len(cut) == 1
        if not plain:
            for ps, _, _ in cut:
                close(ps)
            parts.append(_Cut(index, placed, tuple(cut)))
            continue
        small = definition.num_bytes <= _SMALL_BYTES
        run = runs.get(ps)
        if run is not None and not (small and run.dtype == definition.dtype):
            close(ps)
            run = None
        if run is None:
            runs[ps] = _OpenRun([index], definition.dtype, definition.num_bytes)
        else:
            run.indices.append(index)
            run.num_bytes += definition.num_bytes
        if not small:
            close(ps)
    for ps in list(runs):
        close(ps)
    return PushPlan(
        layouts={ps: new_layout(items) for ps, items in entries.items()},
        placed=tuple(variables),
        shapes=tuple(placed.definition.shape for placed in variables),
        dtypes=tuple(placed.definition.dtype for placed in variables),
        sparse=any(sparse),
        parts=tuple(parts),
    )


def _entry(
    definition: VariableDefinition,
    shard: ShardDefinition,
    operation: Operation,
    wire_format: WireFormat,
    *,
    rows: bool,
) -> LayoutEntry:
    encoding, dtype = Encoding.ROWS if rows else Encoding.DENSE, definition.dtype
    if operation is Operation.APPLY:
        dtype = wire_format.gradient_dtype(dtype)
        if wire_format.top_k is not None and not rows and definition.size >= MIN_ELEMENTS:
            encoding = Encoding.ELEMENTS
    narrowed = dtype if dtype != definition.dtype else None
    return LayoutEntry(definition.name, shard.part, operation, encoding, narrowed)


def _picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Array]]:
    if len(indices) == 1:
        only = indices[0]
        return lambda values: (values[only],)
    if indices[-1] - indices[0] == len(indices) - 1:
        neighbours = slice(indices[0], indices[-1] + 1)
        return lambda values: values[neighbours]
    return itemgetter(*indices)


# -- pulling ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Landing:
    """Where the bytes of a pull go, and what is known of them already.

    Attributes:
        into: Per ps, in the layout's order.
        previous: The same of the values pulled last; None: there are none. May be the same memory.
    """

    into: dict[int, list[memoryview]]
    previous: dict[int, list[memoryview]] | None


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Where pulled bytes go: one buffer for the whole step, each variable a view of it.

    Whole variables on one ps stand in the order in which their bytes arrive, so that ten thousand of them are
    one copy; variables cut over several ps follow, each in one piece.
    """

    layouts: dict[int, WireLayout]
    spans: dict[int, list[tuple[int, int]]]
    places: dict[str, Place]
    pool: BufferPool

    def land(self) -> tuple[Array, Landing]:
        """A buffer for the values, and where they go in it."""
        buffer, latest = self.pool.take()
        into = self._cut(buffer)
        if latest is None:
            return buffer, Landing(into, None)
        return buffer, Landing(into, into if latest is buffer else self._cut(latest))

    def values(self, buffer: Array) -> Values:
        """What arrived."""
        return Values(self.places, buffer)

    def _cut(self, buffer: Array) -> dict[int, list[memoryview]]:
        whole = buffer.data
        return {
            ps: [whole[start:stop] for start, stop in spans] for ps, spans in self.spans.items()
        }


def plan_pull(
    variables: Sequence[Placed],
    wire_formats: Sequence[WireFormat],
    new_layout: Callable[[Sequence[LayoutEntry]], WireLayout],
) -> PullPlan:
    """Where the values of these variables go.

    Args:
        variables: What is pulled.
        wire_formats: Per ps.
        new_layout: Gives a layout its id.
    """
    entries: dict[int, list[LayoutEntry]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    places: dict[str, Place] = {}
    offset = 0

    # A variable cut over several ps travels in one format: the plainest of theirs.
    def wire_of(placed: Placed) -> np.dtype[np.generic]:
        dtype = placed.definition.dtype
        kinds = {wire_formats[ps].value_dtype(dtype) for ps, _ in placed.shards}
        return kinds.pop() if len(kinds) == 1 else dtype

    wires = {placed.definition.name: wire_of(placed) for placed in variables}

    def land(ps: int, placed: Placed, shard: ShardDefinition, start: int) -> None:
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

    def note(placed: Placed, start: int) -> int:
        definition, wire = placed.definition, wires[placed.definition.name]
        stop = start + definition.size * wire.itemsize
        places[definition.name] = (start, stop, definition.shape, wire, definition.dtype)
        return stop

    # Widest dtypes first: every view is aligned without gaps.
    by_width = sorted(variables, key=lambda placed: -wires[placed.definition.name].itemsize)
    whole = [placed for placed in by_width if len(placed.shards) == 1]
    split = [placed for placed in by_width if len(placed.shards) != 1]
    for ps in sorted({placed.shards[0][0] for placed in whole}):
        offset += -offset % 64
        for placed in whole:
            if placed.shards[0][0] == ps:
                land(ps, placed, placed.shards[0][1], offset)
                offset = note(placed, offset)
    for placed in split:
        offset += -offset % 64
        wire = wires[placed.definition.name]
        row_bytes = size_of(row_shape(placed.definition.shape)) * wire.itemsize
        for ps, shard in placed.shards:
            land(ps, placed, shard, offset + shard.row_offset * row_bytes)
        offset = note(placed, offset)
    layouts = {ps: new_layout(items) for ps, items in entries.items()}
    return PullPlan(layouts, spans, places, BufferPool(offset))
