"""Records of what happens to a store: whoever does the same in the same order has the same bits.

Arrays of a record are views of memory that is used again; a link sends or copies them before
:meth:`~ropewalk.annexes.replication.server.stream.RecordStream.post` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ....core.arrays.dtypes import Array
from ....core.rules.definitions import ShardDefinition
from ....core.rules.update_rules import UpdateRule
from ....core.task import Incarnation, TaskId
from ....core.wire.closure_pushes import ClosureMarks
from ....engine.push_target import Gradient, StepInfo, UpdatePart
from ....net.shared_memory import SharedSegment
from ....server.ps.push_marks import LogCopied


@dataclass(frozen=True, slots=True)
class BlockUpdated:
    """A push changes a block.

    Attributes:
        block: Number of the block.
        info: Numbers of the step, with the global step that the leader has resolved.
        segment: Segment of the worker in which values of gradients are; None: in memory of this
            process. They may be read until the worker's next push is answered, which waits for all
            who read this one.
        completes: Increment of the global step, if this is the last block of the push, which is
            complete with it; None: others follow.
    """

    block: int
    info: StepInfo
    parts: tuple[UpdatePart, ...]
    segment: SharedSegment | None = None
    completes: int | None = None


@dataclass(frozen=True, slots=True)
class BlockSet:
    """A push has changed a block by a rule that another processor may compute otherwise.

    All of it is one record: a follower that has half of it would have neither the old nor the new
    values.

    Attributes:
        block: Number of the block.
        info: The push; None: its rule failed, and these are the values that it left.
        tiles: Tiles that may have changed.
        versions: Versions of all shards of the block.
        updates: Numbers of updates of all shards.
        initialized: Whether each shard is initialized.
        completes: See :class:`BlockUpdated`.
    """

    block: int
    info: StepInfo | None
    tiles: tuple["CopiedTile", ...]
    versions: tuple[int, ...]
    updates: tuple[int, ...]
    initialized: tuple[bool, ...]
    completes: int | None = None


@dataclass(frozen=True, slots=True)
class PushCompleted:
    """All blocks of a push are updated: of one that has none, or whose last one had it already.

    Attributes:
        info: The push's step, with the global step at which the worker computed it.
        step_increment: Increment of the global step.
    """

    info: StepInfo
    step_increment: int


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A process of a task has opened a session: older ones are fenced."""

    who: Incarnation


@dataclass(frozen=True, slots=True)
class StepRaised:
    """The global step is at least this, by a restored checkpoint."""

    global_step: int


@dataclass(frozen=True, slots=True)
class BlockCopyBegun:
    """A block's shards, and everything of it but values and slots, at one moment.

    Attributes:
        block: Number of the block.
        defined_by: The task that first defined each shard.
        slots: Names of the slot arrays that it has.
        restored_from: Path of the checkpoint of each shard; empty: none.
        applied: Marks of pushes of tasks.
        closures: Marks of pushes of closures.
    """

    block: int
    shards: tuple[ShardDefinition, ...]
    defined_by: tuple[Incarnation, ...]
    bound_by: tuple[Incarnation | None, ...]
    rules: tuple[UpdateRule | None, ...]
    slots: tuple[str, ...]
    restored_from: tuple[str, ...]
    versions: tuple[int, ...]
    updates: tuple[int, ...]
    initialized: tuple[bool, ...]
    applied: Mapping[TaskId, tuple[int, int]]
    closures: ClosureMarks


@dataclass(frozen=True, slots=True)
class CopiedTile:
    """Elements ``[start, stop)`` of a block's value and slots, at one moment.

    Attributes:
        segment: Segment of this process in which they are, one after the other; None: elsewhere.
    """

    block: int
    start: int
    stop: int
    value: Array
    slots: Mapping[str, Array] = field(default_factory=dict)
    segment: SharedSegment | None = None


@dataclass(frozen=True, slots=True)
class TableCopyBegun:
    """A part of a growing table, whose rows come next.

    Attributes:
        block: Number of the block.
        defined_by: The task that first defined it.
    """

    block: int
    shard: ShardDefinition
    defined_by: Incarnation


@dataclass(frozen=True, slots=True)
class RowsCopied:
    """Rows of a part of a table.

    Attributes:
        block: Number of the block.
        columns: Columns by name as in ``RowsByKey.columns``.
        removed: Keys whose rows are removed first, int64.
        anew: All rows are removed first.
    """

    block: int
    columns: Mapping[str, Array]
    removed: Array
    anew: bool = False


@dataclass(frozen=True, slots=True)
class TableCopied:
    """All rows of a part of a table are there, as they were when this was sent.

    Attributes:
        block: Number of the block.
        state: State of the table beside its rows, by name.
        version: Version of the part.
        updates: Number of times that its rule was applied.
        applied: Marks of pushes of tasks.
        closures: Marks of pushes of closures.
    """

    block: int
    state: Mapping[str, Array]
    version: int
    updates: int
    applied: Mapping[TaskId, tuple[int, int]]
    closures: ClosureMarks


@dataclass(frozen=True, slots=True)
class RuleBound:
    """A shard has got its update rule, and slots with their first values."""

    block: int
    entry: int
    rule: UpdateRule
    who: Incarnation
    updates: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A record of no change: the leader asks whether it is followed still."""


@dataclass(frozen=True, slots=True)
class CopyCompleted:
    """The follower has everything."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The last record: the leader answers nothing any more, and the follower leads.

    Attributes:
        epoch: Epoch in which the follower leads.
        chief: Chief that has ordered that.
        address: Address of the leader, which follows without a copy; empty: it has not done all of
            this.
    """

    epoch: int
    chief: Incarnation
    address: str


Record = (
    BlockUpdated
    | BlockSet
    | PushCompleted
    | TaskRegistered
    | StepRaised
    | LogCopied
    | BlockCopyBegun
    | CopiedTile
    | TableCopyBegun
    | RowsCopied
    | TableCopied
    | RuleBound
    | Checked
    | CopyCompleted
    | HandedOver
)


def completion_of(record: Record) -> PushCompleted | None:
    """Extract that a push is complete, if a record about a block says so.

    The leader's global step was at least that of ``info`` then, so a later one makes no difference.
    """
    if not isinstance(record, (BlockUpdated, BlockSet)):
        return None
    if record.info is None or record.completes is None:
        return None
    return PushCompleted(record.info, record.completes)


def before(update: BlockUpdated, stop: int) -> BlockUpdated:
    """Cut an update to the elements before ``stop`` of a block that has one shard.

    It counts as the whole update does: the values of the other elements come later.

    Args:
        update: The whole.
        stop: The first element that is left out, of a row.
    """
    parts = []
    for part in update.parts:
        where, values, rows = part.where, part.gradient.values, part.gradient.rows
        end = min(where.stop, max(where.start, stop))
        if rows is None:
            where, gradient = replace(where, stop=end), Gradient(values[: end - where.start])
        else:
            width = values.size // max(1, rows.size)
            count = int(rows.searchsorted(stop // max(1, width)))
            gradient = Gradient(values[: count * width], rows[:count])
        parts.append(replace(part, where=where, gradient=gradient))
    is_empty = not any(part.gradient.values.size for part in parts)
    segment = None if is_empty else update.segment
    return replace(update, parts=tuple(parts), segment=segment)


BLOCK_RECORDS = (BlockUpdated, BlockSet, CopiedTile, RuleBound)
"""Records about a block that a follower has begun to copy; it is sent no others of that block."""
