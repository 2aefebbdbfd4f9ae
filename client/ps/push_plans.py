"""Plans for pushing a set of variables: the place of every shard, and their order.

Worked out once per set and kept; a step then only gathers and sends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, eq, is_, itemgetter
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ...core.arrays.dtypes import Array, DType, narrow, row_shape, size_of
from ...core.arrays.gather_buffer import GatherBuffer, PayloadPart
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.arrays.scaled_rows import INT8, first_bad_scale, pack_rows, round_randomly
from ...core.errors import NonFiniteGradientError, ShapeMismatchError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.task import Incarnation
from ...core.wire.steps import SMALL_BYTES, Encoding, LayoutEntry, Operation, WireFormat, WireLayout
from .definer import PlacedVariable
from .distinct_rows import DistinctRowsCache
from .error_feedback import MIN_ELEMENTS, ErrorFeedback
from .step import Write, unpacked

_KINDS = (np.ndarray, IndexedSlices, bytes)

_shape_of = attrgetter("shape")
_dtype_of = attrgetter("dtype")


@dataclass(slots=True)
class PsPayload:
    """The part of a push that goes to one ps."""

    numbers: list[Array]
    buffers: list[PayloadPart]


@dataclass(frozen=True, slots=True)
class _Run:
    """Whole dense variables on one ps that stand one after another, in one dtype.

    Attributes:
        packed: Whether they come as bytes.
    """

    ps: int
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    dtype: DType
    num_bytes: int
    packed: bool


@dataclass(frozen=True, slots=True)
class _Cut:
    """A variable that is cut, or of which only a part travels.

    Attributes:
        rounds: Whether rows are rounded at random to the dtype in which they travel.
    """

    index: int
    placed: PlacedVariable
    entries: tuple[tuple[int, ShardDefinition, LayoutEntry], ...]
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class PushPlan:
    """A plan for pushing one set of variables.

    Attributes:
        layouts: Layout of the push, by ps.
        placed: The variables that come as arrays or rows, in order.
        pick: Picks the values of ``placed``.
        shapes: Shapes of ``placed``, in order.
        dtypes: Dtypes of ``placed``, in order.
        sparse: Whether some come as rows.
        converts: Whether some come as what is no array yet, such as a list.
        packed: The variables that come as bytes, in order.
        pick_packed: Picks the values of these.
        packed_sizes: Sizes of these. Unit: bytes.
        parts: Parts of the payload, in the order of each layout.
    """

    layouts: dict[int, WireLayout]
    placed: tuple[PlacedVariable, ...]
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    sparse: bool
    converts: bool
    packed: tuple[VariableDefinition, ...]
    pick_packed: Callable[[Sequence[Any]], Sequence[Any]]
    packed_sizes: tuple[int, ...]
    parts: tuple[_Run | _Cut, ...]

    def fill(
        self,
        writes: Sequence[Write],
        who: Incarnation,
        feedback: ErrorFeedback | None,
        distinct: DistinctRowsCache,
        number: int = 0,
    ) -> dict[int, PsPayload]:
        """Check the values of a push and say what of them goes where. Dense ones are not copied.

        Args:
            writes: Writes of the push.
            who: Incarnation of the calling task, for messages.
            feedback: Chooses elements of dense gradients.
            distinct: Knows which rows are distinct.
            number: Number of the push, for what is rounded at random.

        Raises:
            ShapeMismatchError: A value has another shape than its variable, or a dtype that does
                not fit.
        """
        values: list[Any] = []
        for write in writes:
            values += write.values.values()
        if self.converts:
            values = [v if isinstance(v, IndexedSlices | bytes) else np.asarray(v) for v in values]
        uniform = self._check(self.pick(values), who)
        if self.packed:
            self._check_packed(self.pick_packed(values), who)
        payloads = {ps: PsPayload([], []) for ps in self.layouts}
        for part in self.parts:
            if isinstance(part, _Run):
                picked = part.pick(values)
                buffer = (
                    _buffer_of(np.frombuffer(b"".join(picked), np.uint8))
                    if part.packed
                    else GatherBuffer(picked, part.dtype, part.num_bytes, uniform)
                )
                payloads[part.ps].buffers.append(buffer)
            elif isinstance(value := values[part.index], IndexedSlices):
                _cut_rows(value, part, payloads, who, distinct, number)
            else:
                if isinstance(value, bytes):
                    value = unpacked(value, part.placed.definition)
                _cut_dense(value, part, payloads, feedback)
        return payloads

    def _check(self, values: Sequence[Array | IndexedSlices], who: Incarnation) -> bool:
        """Check all at once where everything is as it should be; one by one to say what is not.

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

    def _check_packed(self, values: Sequence[bytes], who: Incarnation) -> None:
        if all(map(eq, map(len, values), self.packed_sizes)):
            return
        for value, definition in zip(values, self.packed, strict=True):
            if len(value) != definition.num_bytes:
                raise ShapeMismatchError(
                    f"{who.task}: {len(value)} bytes are assigned to {definition.name!r}, the "
                    f"variable has {definition.num_bytes}",
                    task=who.task,
                    variable=definition.name,
                )


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
    value: Array, cut: _Cut, payloads: dict[int, PsPayload], feedback: ErrorFeedback | None
) -> None:
    first = cut.entries[0][2]
    dtype = cut.placed.definition.dtype
    wire = first.dtype or dtype
    if first.encoding is Encoding.ELEMENTS and feedback is not None:
        width = size_of(row_shape(cut.placed.definition.shape))
        parts = [
            (ps, shard.row_offset * width, shard.row_offset * width + shard.size)
            for ps, shard, _ in cut.entries
        ]
        gradient = value.astype(dtype, copy=False)
        numbers, elements = feedback.choose(cut.placed.definition.name, gradient, wire, parts)
        for ps, start, stop in parts:
            low, high = np.searchsorted(numbers, (start, stop))
            payloads[ps].numbers.append(numbers[low:high] - start)
            payloads[ps].buffers.append(_buffer_of(elements[low:high]))
        return
    value = narrow(value, wire)
    for ps, shard, _ in cut.entries:
        whole = len(cut.entries) == 1
        rows = value if whole else value[shard.row_offset : shard.row_offset + shard.rows]
        payloads[ps].buffers.append(_buffer_of(rows))


def _cut_rows(
    value: IndexedSlices,
    cut: _Cut,
    payloads: dict[int, PsPayload],
    who: Incarnation,
    distinct: DistinctRowsCache,
    number: int,
) -> None:
    definition = cut.placed.definition
    name, row = definition.name, row_shape(definition.shape)
    if value.values.shape[1:] != row:
        raise ShapeMismatchError(
            f"{who.task}: rows pushed to {name!r} have shape {value.values.shape[1:]}, the "
            "variable's "
            f"rows have {row}",
            task=who.task,
            variable=name,
        )
    touched = distinct.of(cut.placed, value.indices)
    values = np.ascontiguousarray(value.values).reshape(touched.ids.size, size_of(row))
    sums = touched.sums(values, distinct.memory)
    wire = cut.entries[0][2].dtype or definition.dtype
    narrowed = None
    if cut.rounds:
        narrowed = _rounded(sums.array(), wire, name, who, number)
    elif values.dtype != wire:
        narrowed = narrow(sums.array(), wire)
    for ps, shard, _ in cut.entries:
        low, high, numbers = touched.of_shard(shard)
        payloads[ps].numbers.append(numbers)
        part = sums.part(low, high) if narrowed is None else _buffer_of(narrowed[low:high])
        payloads[ps].buffers.append(part)


def _rounded(rows: Array, wire: DType, table: str, who: Incarnation, number: int) -> Array:
    """Round a push's rows of a table to the dtype in which they travel, by draws that are their
    own.

    Raises:
        NonFiniteGradientError: A row that is to have a scale has NaN or infinity.
    """
    key = xxhash.xxh64_intdigest(f"{table} {who.task} {who.generation}".encode()), number
    if wire != INT8:
        return round_randomly(rows, wire, key)
    packed = pack_rows(rows, key)
    if first_bad_scale(packed) is not None:
        raise NonFiniteGradientError(
            f"{who.task}: the gradient of {table!r} has NaN or infinity, which rows of int8 cannot "
            "bring; leave wire_dtype out, or have such steps refused",
            task=who.task,
            variable=table,
        )
    return packed


def _buffer_of(array: Array) -> GatherBuffer:
    return GatherBuffer([array], array.dtype, array.nbytes)


class PushedVariable(NamedTuple):
    """A variable in a push.

    Attributes:
        placed: The variable.
        operation: Operation on it.
        kind: Type of its value.
        decay: Part of its old value that is taken off first.
    """

    placed: PlacedVariable
    operation: Operation
    kind: type = np.ndarray
    decay: float = 0.0


def plan_push(
    pushed: Sequence[PushedVariable],
    wire_formats: Sequence[WireFormat],
    new_layout: Callable[[Sequence[LayoutEntry]], WireLayout],
    row_dtype: Callable[[PlacedVariable], DType | None] = lambda _: None,
    gate: PlacedVariable | None = None,
) -> PushPlan:
    """Plan how values of variables are sent.

    Args:
        pushed: Variables in the order of the push.
        wire_formats: Wire format per ps.
        new_layout: Gives a layout its id.
        row_dtype: The dtype in which gradients of a variable's rows travel, if it states one.
        gate: Variable of which the push advances a row; None: it advances none.
    """
    entries: dict[int, list[LayoutEntry]] = {}
    parts = _PlanParts()
    for index, each in enumerate(pushed):
        is_gradient_of_rows = each.kind is IndexedSlices and each.operation is Operation.APPLY
        stated = row_dtype(each.placed) if is_gradient_of_rows else None
        cut = _shards(each, wire_formats, stated)
        for ps, _, entry in cut:
            entries.setdefault(ps, []).append(entry)
        ps, _, entry = cut[0]
        if entry.encoding is Encoding.DENSE and entry.dtype is None and len(cut) == 1:
            parts.add_whole(index, ps, each.placed.definition, packed=each.kind is bytes)
        else:
            parts.add_cut(_Cut(index, each.placed, cut, rounds=stated is not None))
    for ps, shard in gate.shards if gate is not None else ():
        advanced = LayoutEntry(shard.variable.name, shard.part, Operation.ADVANCE, Encoding.ROWS)
        entries.setdefault(ps, []).append(advanced)
    arrays = [index for index, each in enumerate(pushed) if each.kind is not bytes]
    placed = [pushed[index].placed for index in arrays]
    packed = [each.placed.definition for each in pushed if each.kind is bytes]
    return PushPlan(
        layouts={ps: new_layout(items) for ps, items in entries.items()},
        placed=tuple(placed),
        pick=_picker(arrays) if packed else _all,
        shapes=tuple(each.definition.shape for each in placed),
        dtypes=tuple(each.definition.dtype for each in placed),
        sparse=any(each.kind is IndexedSlices for each in pushed),
        converts=any(each.kind not in _KINDS for each in pushed),
        packed=tuple(packed),
        pick_packed=_picker([index for index, each in enumerate(pushed) if each.kind is bytes]),
        packed_sizes=tuple(definition.num_bytes for definition in packed),
        parts=parts.all(),
    )


@dataclass(slots=True)
class _OpenRun:
    indices: list[int]
    dtype: DType
    num_bytes: int
    packed: bool


class _PlanParts:
    """The parts of a plan, in the order of each layout: small neighbours on a ps are one run."""

    def __init__(self) -> None:
        self._parts: list[_Run | _Cut] = []
        self._open: dict[int, _OpenRun] = {}

    def add_cut(self, cut: _Cut) -> None:
        """Add a variable that is cut, or of which only a part travels."""
        for ps, _, _ in cut.entries:
            self._close(ps)
        self._parts.append(cut)

    def add_whole(
        self, index: int, ps: int, definition: VariableDefinition, *, packed: bool
    ) -> None:
        """Add a variable that travels as it is."""
        small = definition.num_bytes <= SMALL_BYTES
        run = self._open.get(ps)
        if run is not None and not (
            small and run.dtype == definition.dtype and run.packed == packed
        ):
            self._close(ps)
            run = None
        if run is None:
            self._open[ps] = _OpenRun([index], definition.dtype, definition.num_bytes, packed)
        else:
            run.indices.append(index)
            run.num_bytes += definition.num_bytes
        if not small:
            self._close(ps)

    def all(self) -> tuple[_Run | _Cut, ...]:
        """Return every part, once all variables were added."""
        for ps in list(self._open):
            self._close(ps)
        return tuple(self._parts)

    def _close(self, ps: int) -> None:
        run = self._open.pop(ps, None)
        if run is not None:
            picker = _picker(run.indices)
            self._parts.append(_Run(ps, picker, run.dtype, run.num_bytes, run.packed))


def _shards(
    pushed: PushedVariable, wire_formats: Sequence[WireFormat], stated: DType | None
) -> tuple[tuple[int, ShardDefinition, LayoutEntry], ...]:
    """Describe how each shard of a pushed variable travels.

    Args:
        pushed: The variable.
        wire_formats: Wire format per ps.
        stated: The dtype in which its rows travel; None: that of the wire format.
    """
    # A variable cut over near and far ps travels as it is: its parts come of one gradient.
    kinds = {wire_formats[ps] for ps, _ in pushed.placed.shards}
    wire_format = kinds.pop() if len(kinds) == 1 else WireFormat()
    cut = []
    for ps, shard in pushed.placed.shards:
        entry = _entry(pushed, shard, wire_format)
        if stated is not None:
            entry = replace(entry, dtype=stated)
        cut.append((ps, shard, entry))
    return tuple(cut)


def _entry(pushed: PushedVariable, shard: ShardDefinition, wire_format: WireFormat) -> LayoutEntry:
    definition, rows = pushed.placed.definition, pushed.kind is IndexedSlices
    encoding, dtype = Encoding.ROWS if rows else Encoding.DENSE, definition.dtype
    if rows and definition.table is not None:
        encoding = Encoding.KEYS
    if pushed.operation is Operation.APPLY:
        dtype = wire_format.gradient_dtype(dtype)
        if wire_format.top_k is not None and not rows and definition.size >= MIN_ELEMENTS:
            encoding = Encoding.ELEMENTS
    return LayoutEntry(
        definition.name,
        shard.part,
        pushed.operation,
        encoding,
        dtype if dtype != definition.dtype else None,
        decay=pushed.decay,
    )


def _all(values: Sequence[Any]) -> Sequence[Any]:
    return values


def _picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if not indices:
        return lambda _: ()
    if len(indices) == 1:
        only = indices[0]
        return lambda values: (values[only],)
    if indices[-1] - indices[0] == len(indices) - 1:
        neighbours = slice(indices[0], indices[-1] + 1)
        return lambda values: values[neighbours]
    return itemgetter(*indices)
