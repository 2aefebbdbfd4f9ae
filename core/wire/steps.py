"""A step between a worker and one ps, whatever carries it: the vocabulary of client and server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from ..arrays.dtypes import BFLOAT16, Array, DType, as_dtype
from ..arrays.gather_buffer import PayloadPart
from ..errors import RopewalkError
from ..rules.definitions import ShardDefinition
from .closure_pushes import ClosureRun

# -- Places of values in memory that a ps shares with workers of its machine -------------------

HEADER_BYTES = 64
"""A cache line of counters, with which every segment of shared memory begins."""

MOST_SEGMENTS = 2
"""Largest number of segments that a worker has in a session."""


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """The beginning of a shard's values.

    Attributes:
        slab: Number of the ps's segment that holds them.
        offset: Offset of the first value. Unit: bytes.
        sequence_offset: Offset of the int64 that is odd during a write of the values. Unit: bytes.
    """

    slab: int
    offset: int
    sequence_offset: int


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """A shard's values in shared memory.

    Attributes:
        memory: Beginning of the values.
        num_bytes: Size of all of them. Unit: bytes.
        dtype: Dtype of the values.
        row_bytes: Size of one row. Unit: bytes.
    """

    memory: MemoryLocation
    num_bytes: int
    dtype: DType
    row_bytes: int = 0

    @property
    def block(self) -> tuple[int, int]:
        """Names the block: shards of one block are changed together."""
        return self.memory.slab, self.memory.sequence_offset

    def values(self, slab: Array) -> Array:
        """View the bytes of the values."""
        return slab[self.memory.offset : self.memory.offset + self.num_bytes]

    def sequence(self, slab: Array) -> Array:
        """View the block's sequence, one int64."""
        start = self.memory.sequence_offset
        return slab[start : start + 8].view("int64")


# -- Compression of values between a worker and its parameter servers --------------------------

_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class WireFormat:
    """The format of values on the network; in shared memory they are not changed.

    Variables, slots and arithmetic keep their dtype.

    Args:
        gradients: ``"bfloat16"`` (8 bits of precision, the range of float32) or ``"float16"`` (11
            bits, up to 65504; larger values become 65504). None: as they are.
        values: Dtype for pulled values, as for ``gradients``.
        top_k: Share of the elements of each dense gradient that is sent, the largest ones, in (0,
            1). The rest is added to the next gradient (error feedback; Stich, Cordonnier
            and Jaggi, "Sparsified SGD with Memory", 2018). None: all. Gradients below 1024 elements
            are sent whole.

    Raises:
        ValueError: Another dtype, or a share out of range.
    """

    gradients: str | None = None
    values: str | None = None
    top_k: float | None = None

    def __post_init__(self) -> None:
        for what in ("gradients", "values"):
            name = getattr(self, what)
            if name is not None and name not in _NARROW:
                raise ValueError(f"{what}={name!r}: travels as {' or '.join(_NARROW)}, or None")
        if self.top_k is not None and not 0 < self.top_k < 1:
            raise ValueError(f"top_k={self.top_k!r} is no share between 0 and 1; None sends all")

    def gradient_dtype(self, dtype: DType) -> DType:
        """Return the dtype in which a gradient of ``dtype`` is sent."""
        return _narrower(dtype, self.gradients)

    def value_dtype(self, dtype: DType) -> DType:
        """Return the dtype in which a value of ``dtype`` is sent."""
        return _narrower(dtype, self.values)


def _narrower(dtype: DType, name: str | None) -> DType:
    narrow = as_dtype(name) if name is not None else dtype
    wide = dtype.kind == "f" and dtype.itemsize > 2 and dtype != BFLOAT16
    return narrow if wide else dtype


# -- Steps: layouts, requests, answers -----------------------------------------------------------

SMALL_BYTES = 64 * 1024
"""Values up to this are small: to gather, copy or send them costs less than to find out whether
that can be left out. Unit: bytes."""

SESSION_SERVICE = "ps"
"""The service that a session greets a ps with."""


class Operation(StrEnum):
    """The operation of a layout entry on its shard, or on rows of it; see ``ROW_OPERATIONS``.

    ``ADVANCE`` raises one row of an int64 variable, which is the last entry of a push; where that
    row is as large already, nothing of the push is applied (ADR 114).
    """

    PULL = "pull"
    APPLY = "apply"
    ASSIGN = "assign"
    ASSIGN_ADD = "assign_add"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    ADVANCE = "advance"


ROW_OPERATIONS = (
    Operation.MULTIPLY,
    Operation.DIVIDE,
    Operation.MINIMUM,
    Operation.MAXIMUM,
    Operation.ADVANCE,
)
"""Operations that there are on rows alone."""


class Encoding(StrEnum):
    """The encoding of a shard's values in a payload.

    ``ROWS``: some rows, with their numbers. ``KEYS``: some rows of a table, with their keys, which
    are any int64. ``STATES``: the same, each row with its slots and its number of pushes; for pulls
    alone. ``ELEMENTS``: some elements of a gradient that is zero elsewhere, with their numbers; an
    update rule sees the whole gradient.
    """

    DENSE = "dense"
    ROWS = "rows"
    ELEMENTS = "elements"
    KEYS = "keys"
    STATES = "states"

    @property
    def is_by_key(self) -> bool:
        """Whether rows are named by keys, which are those of a table."""
        return self in (Encoding.KEYS, Encoding.STATES)


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """A shard in the payload of a step.

    Attributes:
        variable: Name of the variable.
        part: Number of the shard in the variable.
        operation: Operation of the step on the shard.
        encoding: Encoding of its values in the payload.
        dtype: Dtype of the values in the payload; None: the variable's. int8 for rows of
            floating-point numbers: with a scale each (``core/arrays/scaled_rows.py``).
        num_bytes: Size of the values in the payload, if the worker knows it; not sent. Unit: bytes.
        decay: Part of the shard that a dense ASSIGN_ADD takes off first, in [0, 1]: the shard is
            multiplied by ``1 - decay`` before the values are added.
    """

    variable: str
    part: int
    operation: Operation
    encoding: Encoding = Encoding.DENSE
    dtype: DType | None = None
    num_bytes: int = 0
    decay: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class WireLayout:
    """The order of shards in payloads to come; agreed on once, then named by its id.

    Attributes:
        layout_id: Id of the layout, from 1. A session may use it again for another layout, and
            sends that first.
        entries: The shards, in order.
        sizes: int64, bytes of each dense entry in the payload.
    """

    layout_id: int
    entries: tuple[LayoutEntry, ...]
    sizes: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.array([e.num_bytes for e in self.entries], np.int64))


@dataclass(frozen=True, slots=True)
class PullTarget:
    """The memory into which the pulled bytes of one ps go.

    Attributes:
        into: Memory for the values, in the layout's order. They are whole afterwards.
        previous: Values that the last pull of the same layout brought, as they came; may be the
            same memory as ``into``. What did not change since is taken from there. None: it is not
            at hand.
    """

    into: Sequence[memoryview] = ()
    previous: Sequence[memoryview] | None = None


NO_TARGET = PullTarget()


class Advanced(NamedTuple):
    """A row that a push advances.

    Attributes:
        row: Number of the row in its shard.
        to: Number that the row is raised to, at least 1.
        settled_row: A second row of the shard, raised with the push; it decides nothing.
        settled_to: Number that this one is raised to; 0: there is none.
    """

    row: int
    to: int
    settled_row: int = 0
    settled_to: int = 0


@dataclass(frozen=True, slots=True)
class StepRequest:
    """The request of a worker to one ps, in one round trip.

    Attributes:
        sequence: Sequence number of the push; 0 if nothing is pushed.
        push: Layout of ``values``, or None.
        pull: Layout of the answer, or None.
        push_rows: Numbers in the shard, ascending int64, or keys, for each entry of ``push`` that
            is not dense.
        pull_rows: Row numbers or keys for each entry of ``pull`` that is not dense.
        values: The pushed values, in the layout's order.
        in_segment: Whether the row numbers and values are in a segment of the worker's, after its
            header.
        segment: Number of that segment.
        segment_bytes: Size of the row numbers and values there. Unit: bytes.
        answer_bytes: Size of the pulled rows, which may be put into that segment; 0: they may not.
            Unit: bytes.
        direct_bytes: Bytes that the worker reads from the ps's memory itself; for the counters.
        global_step: Global step of the values from which the gradients were computed.
        step_increment: Added to the global step.
        gradient_scale: Multiplies every gradient.
        hyperparameters: Fields of the update rules of this push, where they differ from the bound
            rules. None: as bound.
        has_previous: Whether the result of the last pull of the same layout is at hand.
        detached: Whether the caller may change the memory of ``values`` once the step is sent.
        closure: Closure in which the push is made; ``sequence`` is its number there.
        advance: Row that the last entry of ``push`` advances; None: it advances none.
        trace: Place of the span that the exchange is (``core/spans.py``), of a sampled step; empty:
            it is not sampled.
        value_bytes: Size of the pushed values alone. Unit: bytes.
        payload_bytes: Size of row numbers and values, wherever they travel. Unit: bytes.
    """

    sequence: int = 0
    push: WireLayout | None = None
    pull: WireLayout | None = None
    push_rows: Sequence[Array] = ()
    pull_rows: Sequence[Array] = ()
    values: Sequence[PayloadPart] = ()
    in_segment: bool = False
    segment: int = 0
    segment_bytes: int = 0
    answer_bytes: int = 0
    direct_bytes: int = 0
    global_step: int = 0
    step_increment: int = 0
    gradient_scale: float = 1.0
    hyperparameters: Mapping[str, Any] | None = None
    has_previous: bool = False
    detached: bool = False
    closure: ClosureRun | None = None
    advance: Advanced | None = None
    trace: bytes = b""
    value_bytes: int = field(init=False)
    payload_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        value_bytes = sum(buffer.num_bytes for buffer in self.values)
        payload_bytes = self.segment_bytes
        if not self.in_segment:
            rows = sum(numbers.nbytes for numbers in (*self.push_rows, *self.pull_rows))
            payload_bytes = rows + value_bytes
        object.__setattr__(self, "value_bytes", value_bytes)
        object.__setattr__(self, "payload_bytes", payload_bytes)

    def with_values(self, values: Sequence[PayloadPart]) -> "StepRequest":
        """Make the same request with values that nobody changes any more."""
        return replace(self, values=values, detached=False)

    def kept(self) -> "StepRequest":
        """Put the values into memory of their own, if the caller may change what they are made
        of.
        """
        return self.with_values([v.detached() for v in self.values]) if self.detached else self

    def again(self) -> "StepRequest":
        """Make the request that repeats this one over another connection."""
        return replace(self.kept(), has_previous=False)

    def read_directly(self, num_bytes: int) -> "StepRequest":
        """Make the request of a worker that reads what it pulls from the ps's memory itself."""
        return replace(self, pull=None, pull_rows=(), answer_bytes=0, direct_bytes=num_bytes)


@dataclass(frozen=True, slots=True)
class PushResult:
    """The outcome of a push.

    Attributes:
        global_step: Global step after the push.
        staleness: Steps applied between the pull it was computed from and itself.
        duplicate: Whether it had been applied before and was not applied again.
        pulled_bytes: Values that came with it; less than the pull's size where nothing had changed.
    """

    global_step: int
    staleness: int
    duplicate: bool
    pulled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A shard on a ps, and its state."""

    shard: ShardDefinition
    initialized: bool
    restored: bool


@dataclass(slots=True)
class StepReply:
    """The answer of a ps's session to a step, before the pulled values.

    Attributes:
        request_id: Number of the step that it answers.
        payload_bytes: Size of the values that follow. Unit: bytes.
        global_step: Global step after the step, as far as this ps knows.
        staleness: Steps applied between the pull of this push and itself.
        duplicate: Whether the push had been applied before.
        error: Why the step was refused; nothing of it was applied. None: it was not.
        changed: Entries of the pull that follow, a bit each, lowest first; empty: all.
        outcome_follows: Whether the values come before the push is over; its outcome comes later.
        values_in_segment: Whether the values are in the worker's segment, and do not follow.
    """

    request_id: int
    payload_bytes: int = 0
    global_step: int = 0
    staleness: int = 0
    duplicate: bool = False
    error: RopewalkError | None = None
    changed: bytes = b""
    outcome_follows: bool = False
    values_in_segment: bool = False

    def put_result(self, result: PushResult) -> None:
        """Note what became of the push."""
        self.global_step = result.global_step
        self.staleness = result.staleness
        self.duplicate = result.duplicate
