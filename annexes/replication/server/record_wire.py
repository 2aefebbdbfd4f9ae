"""Records that stand alone as messages and back, and the values that all of them have."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ....core.arrays.dtypes import Array, DType
from ....core.errors import RefusedError
from ....core.task import TaskId
from ....core.wire import codec
from ....core.wire.closure_pushes import ClosureMarks
from ....engine.push_target import StepInfo
from ....proto.v1 import replication_pb2 as pb
from ....server.ps.push_marks import LogCopied
from .records import (
    BlockCopyBegun,
    HandedOver,
    PushCompleted,
    RowsCopied,
    RuleBound,
    TableCopied,
    TableCopyBegun,
)

_Marks = Mapping[TaskId, tuple[int, int]]


class RecordPayload:
    """The arrays that follow a message, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._start = 0

    def take(self, count: int, dtype: DType) -> Array:
        """Take the next elements.

        Raises:
            RefusedError: So many are not there.
        """
        stop = self._start + count * dtype.itemsize
        if count < 0 or stop > self._data.nbytes:
            raise RefusedError(
                f"a record announces {stop} bytes or more of arrays, and has {self._data.nbytes}"
            )
        taken = np.frombuffer(self._data[self._start : stop], dtype)
        self._start = stop
        return taken


def completed_from_wire(message: pb.PushComplete) -> PushCompleted:
    """Read that a push is complete."""
    return PushCompleted(step_from_wire(message.step), message.step_increment)


def log_to_wire(message: pb.PushLog, record: LogCopied) -> None:
    """Write the marks of complete pushes."""
    message.pushes.extend(_marks_to_wire(record.pushes))
    message.counted.extend(_marks_to_wire(record.counted))
    message.closures.extend(_closures_to_wire(record.closures))
    message.global_step = record.global_step
    message.contents = record.contents


def log_from_wire(message: pb.PushLog) -> LogCopied:
    """Read the marks of complete pushes."""
    return LogCopied(
        _marks_from_wire(message.pushes),
        _marks_from_wire(message.counted),
        _closures_from_wire(message.closures),
        message.global_step,
        message.contents,
    )


def block_to_wire(message: pb.BlockCopy, record: BlockCopyBegun) -> None:
    """Write that a block is copied."""
    message.block = record.block
    message.slots.extend(record.slots)
    message.applied.extend(_marks_to_wire(record.applied))
    message.closures.extend(_closures_to_wire(record.closures))
    for entry, shard in enumerate(record.shards):
        added = message.shards.add(
            shard=codec.shard_to_wire(shard),
            defined_by=codec.incarnation_to_wire(record.defined_by[entry]),
            restored_from=record.restored_from[entry],
            version=record.versions[entry],
            updates=record.updates[entry],
            initialized=record.initialized[entry],
        )
        rule, bound_by = record.rules[entry], record.bound_by[entry]
        if rule is not None:
            added.shard.rule.CopyFrom(codec.rule_to_wire(rule))
        if bound_by is not None:
            added.bound_by.CopyFrom(codec.incarnation_to_wire(bound_by))


def block_from_wire(message: pb.BlockCopy) -> BlockCopyBegun:
    """Read that a block is copied.

    Raises:
        RefusedError: It has no shards.
    """
    shards = [codec.shard_from_wire(each.shard) for each in message.shards]
    if not shards:
        raise RefusedError(f"block {message.block} has no shards")
    return BlockCopyBegun(
        block=message.block,
        shards=tuple(shards),
        defined_by=tuple(codec.incarnation_from_wire(each.defined_by) for each in message.shards),
        bound_by=tuple(
            codec.incarnation_from_wire(each.bound_by) if each.HasField("bound_by") else None
            for each in message.shards
        ),
        rules=tuple(shard.rule for shard in shards),
        slots=tuple(message.slots),
        restored_from=tuple(each.restored_from for each in message.shards),
        versions=tuple(each.version for each in message.shards),
        updates=tuple(each.updates for each in message.shards),
        initialized=tuple(each.initialized for each in message.shards),
        applied=_marks_from_wire(message.applied),
        closures=_closures_from_wire(message.closures),
    )


def table_to_wire(message: pb.TableBegun, record: TableCopyBegun) -> None:
    """Write that a part of a table is copied."""
    message.block = record.block
    message.shard.CopyFrom(codec.shard_to_wire(record.shard))
    message.defined_by.CopyFrom(codec.incarnation_to_wire(record.defined_by))


def table_from_wire(message: pb.TableBegun) -> TableCopyBegun:
    """Read that a part of a table is copied."""
    shard = codec.shard_from_wire(message.shard)
    return TableCopyBegun(message.block, shard, codec.incarnation_from_wire(message.defined_by))


def rows_to_wire(message: pb.CopiedRows, record: RowsCopied) -> list[Array]:
    """Write rows of a table; returns their arrays."""
    message.block, message.num_removed = record.block, record.removed.size
    message.anew = record.anew
    message.columns.extend(_arrays_to_wire(record.columns))
    return [record.removed, *record.columns.values()]


def rows_from_wire(message: pb.CopiedRows, payload: RecordPayload) -> RowsCopied:
    """Read rows of a table."""
    removed = payload.take(message.num_removed, np.dtype(np.int64))
    return RowsCopied(message.block, _take_arrays(message.columns, payload), removed, message.anew)


def state_to_wire(message: pb.TableState, record: TableCopied) -> list[Array]:
    """Write what a table has beside its rows; returns its arrays."""
    message.block, message.version, message.updates = record.block, record.version, record.updates
    message.arrays.extend(_arrays_to_wire(record.state))
    message.applied.extend(_marks_to_wire(record.applied))
    message.closures.extend(_closures_to_wire(record.closures))
    return list(record.state.values())


def state_from_wire(message: pb.TableState, payload: RecordPayload) -> TableCopied:
    """Read what a table has beside its rows."""
    return TableCopied(
        message.block,
        _take_arrays(message.arrays, payload),
        message.version,
        message.updates,
        _marks_from_wire(message.applied),
        _closures_from_wire(message.closures),
    )


def binding_to_wire(message: pb.RuleBinding, record: RuleBound) -> None:
    """Write the rule of a shard."""
    message.block, message.entry, message.updates = record.block, record.entry, record.updates
    message.rule.CopyFrom(codec.rule_to_wire(record.rule))
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(record.who))


def binding_from_wire(message: pb.RuleBinding) -> RuleBound:
    """Read the rule of a shard."""
    return RuleBound(
        message.block,
        message.entry,
        codec.rule_from_wire(message.rule),
        codec.incarnation_from_wire(getattr(message, "from")),
        message.updates,
    )


def handover_to_wire(message: pb.HandedOver, record: HandedOver) -> None:
    """Write the last record of a leader."""
    message.epoch, message.address = record.epoch, record.address
    message.chief.CopyFrom(codec.incarnation_to_wire(record.chief))


def handed_over(message: pb.HandedOver) -> HandedOver:
    """Read the last record of a leader."""
    chief = codec.incarnation_from_wire(message.chief)
    return HandedOver(message.epoch, chief, message.address)


def _arrays_to_wire(arrays: Mapping[str, Array]) -> list[pb.NamedArray]:
    return [
        pb.NamedArray(name=name, dtype=codec.dtype_to_wire(array.dtype), shape=array.shape)
        for name, array in arrays.items()
    ]


def _take_arrays(messages: Iterable[pb.NamedArray], payload: RecordPayload) -> dict[str, Array]:
    taken = {}
    for each in messages:
        count = math.prod(each.shape)
        taken[each.name] = payload.take(count, codec.dtype_from_wire(each.dtype)).reshape(
            tuple(each.shape)
        )
    return taken


def step_to_wire(message: pb.StepIdentity, info: StepInfo) -> None:
    """Write which push it is."""
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(info.who))
    message.sequence, message.global_step = info.sequence, info.global_step
    message.gradient_scale = info.gradient_scale
    if info.closure is not None:
        message.closure.CopyFrom(codec.closure_run_to_wire(info.closure))


def step_from_wire(message: pb.StepIdentity) -> StepInfo:
    """Read which push it is."""
    has_closure = message.HasField("closure")
    return StepInfo(
        codec.incarnation_from_wire(getattr(message, "from")),
        message.sequence,
        message.global_step,
        message.gradient_scale,
        codec.closure_run_from_wire(message.closure) if has_closure else None,
    )


def _marks_to_wire(marks: _Marks) -> list[pb.TaskMark]:
    return [
        pb.TaskMark(task=codec.task_to_wire(task), generation=generation, sequence=sequence)
        for task, (generation, sequence) in marks.items()
    ]


def _marks_from_wire(messages: Iterable[pb.TaskMark]) -> dict[TaskId, tuple[int, int]]:
    return {codec.task_from_wire(each.task): (each.generation, each.sequence) for each in messages}


def _closures_to_wire(marks: ClosureMarks) -> list[pb.ClosureMark]:
    return [
        pb.ClosureMark(
            lane=lane, coordinator=coordinator, turn=turn, oldest_attempt=oldest, number=number
        )
        for lane, coordinator, turn, oldest, number in marks.rows()
    ]


def _closures_from_wire(messages: Iterable[pb.ClosureMark]) -> ClosureMarks:
    return ClosureMarks.from_rows(
        (each.lane, each.coordinator, each.turn, each.oldest_attempt, each.number)
        for each in messages
    )
