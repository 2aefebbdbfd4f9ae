"""A step between a worker and one ps, whatever carries it: the vocabulary of client and server."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .arrays import Array
from .definitions import ShardDefinition
from .shared_memory import SegmentAddress


class Operation(StrEnum):
    """What a layout entry does to its shard."""

    PULL = "pull"
    APPLY = "apply"
    ASSIGN = "assign"
    ASSIGN_ADD = "assign_add"


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One shard in the payload of a step. ``sparse``: some of its rows."""

    variable: str
    part: int
    operation: Operation
    sparse: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WireLayout:
    """The order of shards in payloads to come; agreed on once, then named by its id.

    Attributes:
        layout_id: From 1, unique in a session.
    """

    layout_id: int
    entries: tuple[LayoutEntry, ...]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a worker asks of one ps in one round trip.

    Attributes:
        sequence: Of the push; 0 if nothing is pushed.
        push: Layout of ``values``, or None.
        pull: Layout of the answer, or None.
        push_rows: Per sparse entry of ``push``, ascending int64 row numbers of the shard.
        pull_rows: Per sparse entry of ``pull``, the same.
        values: What is pushed, in the layout's order, as bytes.
        segment: The row numbers and values are in this segment, after its header, and not in the message.
        segment_bytes: How many.
        direct_bytes: The worker reads so many from the ps's memory itself; for the counters.
        global_step: As of the values the gradients were computed from.
        step_increment: Added to the global step.
        gradient_scale: Multiplies every gradient.
    """

    sequence: int = 0
    push: WireLayout | None = None
    pull: WireLayout | None = None
    push_rows: Sequence[Array] = ()
    pull_rows: Sequence[Array] = ()
    values: Sequence[memoryview] = ()
    segment: SegmentAddress | None = None
    segment_bytes: int = 0
    direct_bytes: int = 0
    global_step: int = 0
    step_increment: int = 0
    gradient_scale: float = 1.0

    @property
    def payload_bytes(self) -> int:
        """Row numbers and values, wherever they travel. Unit: bytes."""
        if self.segment is not None:
            return self.segment_bytes
        rows = sum(numbers.nbytes for numbers in (*self.push_rows, *self.pull_rows))
        return rows + sum(len(buffer) for buffer in self.values)


@dataclass(frozen=True, slots=True)
class PushResult:
    """What became of a push.

    Attributes:
        global_step: After it.
        staleness: Steps applied between the pull it was computed from and itself.
        duplicate: It had been applied before and was not applied again.
    """

    global_step: int
    staleness: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """Where a shard's values are in memory that processes of one machine share.

    Attributes:
        segment: The segment.
        offset: Of the first value. Unit: bytes.
        sequence_offset: Of the int64 that is odd while they are being written. Unit: bytes.
    """

    segment: SegmentAddress
    offset: int
    sequence_offset: int


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A shard on a ps, and its state."""

    shard: ShardDefinition
    initialized: bool
    restored: bool
    memory: MemoryLocation | None = None
