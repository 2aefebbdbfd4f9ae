"""Records as messages and arrays, and back. Each end of a link has a codec of its own."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ....core.arrays.dtypes import Array, DType, is_float
from ....core.errors import RefusedError
from ....core.rules.update_rules import UpdateRule
from ....core.task import TaskId
from ....core.wire import codec
from ....core.wire.closure_pushes import ClosureMarks
from ....engine.push_target import Gradient, PushTarget, Range, RowsByKey, StepInfo, UpdatePart
from ....net.shared_memory import SharedSegment
from ....proto.v1 import replication_pb2 as pb
from ..push_marks import LogCopied
from .records import (
    BlockCopyBegun,
    BlockSet,
    BlockUpdated,
    Checked,
    CopiedTile,
    CopyCompleted,
    HandedOver,
    PushCompleted,
    Record,
    RowsCopied,
    RuleBound,
    StepRaised,
    TableCopied,
    TableCopyBegun,
    TaskRegistered,
)
from .segments import SegmentsReceived, SegmentsSent

_MAX_RULES = 4096  # named by numbers at a time
_Marks = Mapping[TaskId, tuple[int, int]]


class RecordEncoder:
    """Encodes the records of one link.

    Args:
        epoch: Epoch in which the leader leads.
        segments: Segments that the follower has; None: it can have none.

    Attributes:
        epoch: Epoch in which the leader leads.
    """

    def __init__(self, epoch: int = 1, segments: SegmentsSent | None = None) -> None:
        self.epoch = epoch
        self._segments = segments
        # By identity, which is quick; the rules are kept, so that none is another one's number.
        self._rules: dict[int, tuple[UpdateRule, int]] = {}

    def encode(self, position: int, record: Record) -> tuple[pb.Record, Sequence[Array]]:
        """Encode a record as a message, and the arrays that follow it."""
        message, arrays = pb.Record(position=position, epoch=self.epoch), []
        if isinstance(record, BlockUpdated):
            arrays = self._encode_update(message.update, record)
        elif isinstance(record, BlockSet):
            arrays = _encode_values(message.values, record)
        elif isinstance(record, PushCompleted):
            _step_to_wire(message.complete.step, record.info)
            message.complete.step_increment = record.step_increment
        elif isinstance(record, TaskRegistered):
            message.registered.CopyFrom(codec.incarnation_to_wire(record.who))
        elif isinstance(record, StepRaised):
            message.step_raised = record.global_step
        elif isinstance(record, LogCopied):
            message.log.pushes.extend(_marks_to_wire(record.pushes))
            message.log.counted.extend(_marks_to_wire(record.counted))
            message.log.closures.extend(_closures_to_wire(record.closures))
            message.log.global_step = record.global_step
            message.log.contents = record.contents
        elif isinstance(record, BlockCopyBegun):
            _encode_block(message.block, record)
        elif isinstance(record, CopiedTile):
            arrays = self._encode_tile(message.tile, record)
        elif isinstance(record, TableCopyBegun):
            message.table.block = record.block
            message.table.shard.CopyFrom(codec.shard_to_wire(record.shard))
            message.table.defined_by.CopyFrom(codec.incarnation_to_wire(record.defined_by))
        elif isinstance(record, RowsCopied):
            message.rows.block, message.rows.num_removed = record.block, record.removed.size
            message.rows.anew = record.anew
            message.rows.columns.extend(_arrays_to_wire(record.columns))
            arrays = [record.removed, *record.columns.values()]
        elif isinstance(record, TableCopied):
            arrays = _encode_state(message.table_state, record)
        elif isinstance(record, RuleBound):
            binding = message.binding
            binding.block, binding.entry, binding.updates = (
                record.block,
                record.entry,
                record.updates,
            )
            binding.rule.CopyFrom(codec.rule_to_wire(record.rule))
            getattr(binding, "from").CopyFrom(codec.incarnation_to_wire(record.who))
        elif isinstance(record, Checked):
            message.checked = True
        elif isinstance(record, HandedOver):
            message.handed_over.epoch, message.handed_over.address = record.epoch, record.address
            message.handed_over.chief.CopyFrom(codec.incarnation_to_wire(record.chief))
        else:
            message.copy_complete = True
        return message, arrays

    def _encode_update(self, message: pb.BlockUpdate, record: BlockUpdated) -> list[Array]:
        message.block = record.block
        _step_to_wire(message.step, record.info)
        if record.completes is not None:
            message.completes = record.completes
        if len(self._rules) + len(record.parts) > _MAX_RULES:
            self._rules.clear()  # hyperparameters change in every step
        arrays: list[Array] = []
        segment, number = record.segment, 0
        if segment is not None and self._segments is not None:
            number = self._segments.number_of(segment)
        for part in record.parts:
            where, gradient = part.where, part.gradient
            added = message.parts.add(
                first=where.first,
                last=where.last,
                start=where.start,
                stop=where.stop,
                operation=codec.OPERATIONS.to_wire(part.operation),
                rule=self._number(part.rule, message) if part.rule is not None else 0,
                decay=part.decay,
                num_values=gradient.values.size,
            )
            if gradient.rows is not None:
                added.by_rows, added.num_rows = True, gradient.rows.size
                arrays.append(gradient.rows)
            offset = _offset_in(segment, gradient.values) if segment and number else None
            if offset is None:
                arrays.append(gradient.values)
            else:
                added.segment, added.offset = number, offset
        return arrays

    def _encode_tile(self, message: pb.Tile, tile: CopiedTile) -> list[Array]:
        arrays = _encode_tile(message, tile)
        number = self._segments.number_of(tile.segment) if self._segments and tile.segment else 0
        offset = _offset_in(tile.segment, tile.value) if tile.segment and number else None
        if offset is None:
            return arrays
        message.segment, message.offset = number, offset
        return []

    def _number(self, rule: UpdateRule, message: pb.BlockUpdate) -> int:
        known = self._rules.get(id(rule))
        if known is not None:
            return known[1]
        number = len(self._rules) + 1
        self._rules[id(rule)] = rule, number
        message.rules.add(number=number, rule=codec.rule_to_wire(rule))
        return number


def has_arrived(message: pb.Record) -> bool:
    """Return whether a record is about a push, whose values came along or stay where they are,
    or is the last one.

    It may be acknowledged before it is carried out: this ps leads only after that. Whoever has the
    acknowledgement of a record knows that those before it are carried out, so values in a worker's
    segment, which stay until its next push is answered, stay long enough.
    """
    return message.WhichOneof("kind") in ("update", "values", "complete", "handed_over")


def handed_over(message: pb.HandedOver) -> HandedOver:
    """Read the last record of a leader."""
    chief = codec.incarnation_from_wire(message.chief)
    return HandedOver(message.epoch, chief, message.address)


class RecordDecoder:
    """Decodes the records of one link.

    Args:
        segments: Segments that the leader has handed on.
        targets: Blocks and tables that are here already.

    Attributes:
        dtypes: Dtypes of each block: that of its values, and that of its slots.
    """

    def __init__(
        self, segments: SegmentsReceived | None = None, targets: Iterable[PushTarget] = ()
    ) -> None:
        self._segments = segments or SegmentsReceived(0)
        self._rules: dict[int, UpdateRule] = {}
        self.dtypes = {
            each.number: _dtypes(each.dtype, is_table=isinstance(each, RowsByKey))
            for each in targets
        }

    def decode(self, message: pb.Record, payload: memoryview) -> Record:
        """Decode the record of a message.

        Args:
            message: Message that came.
            payload: Arrays of the message; the record's are views of it.

        Raises:
            RefusedError: It is no record, or has too few bytes.
        """
        kind = message.WhichOneof("kind")
        if kind == "update":
            return self._decode_update(message.update, _Payload(payload))
        if kind == "values":
            return self._decode_values(message.values, _Payload(payload))
        if kind == "complete":
            step = _step_from_wire(message.complete.step)
            return PushCompleted(step, message.complete.step_increment)
        if kind == "registered":
            return TaskRegistered(codec.incarnation_from_wire(message.registered))
        if kind == "step_raised":
            return StepRaised(message.step_raised)
        if kind == "log":
            log = message.log
            return LogCopied(
                _marks_from_wire(log.pushes),
                _marks_from_wire(log.counted),
                _closures_from_wire(log.closures),
                log.global_step,
                log.contents,
            )
        if kind == "block":
            return self._decode_block(message.block)
        if kind == "tile":
            return self._decode_tile(message.tile, _Payload(payload))
        if kind == "table":
            shard = codec.shard_from_wire(message.table.shard)
            dtype = shard.variable.dtype
            self.dtypes[message.table.block] = _dtypes(dtype, is_table=True)
            defined_by = codec.incarnation_from_wire(message.table.defined_by)
            return TableCopyBegun(message.table.block, shard, defined_by)
        if kind == "rows":
            taken = _Payload(payload)
            removed = taken.take(message.rows.num_removed, np.dtype(np.int64))
            columns = _take_arrays(message.rows.columns, taken)
            return RowsCopied(message.rows.block, columns, removed, message.rows.anew)
        if kind == "table_state":
            state = message.table_state
            return TableCopied(
                state.block,
                _take_arrays(state.arrays, _Payload(payload)),
                state.version,
                state.updates,
                _marks_from_wire(state.applied),
                _closures_from_wire(state.closures),
            )
        if kind == "binding":
            binding = message.binding
            return RuleBound(
                binding.block,
                binding.entry,
                codec.rule_from_wire(binding.rule),
                codec.incarnation_from_wire(getattr(binding, "from")),
                binding.updates,
            )
        if kind == "checked":
            return Checked()
        if kind == "copy_complete":
            return CopyCompleted()
        if kind == "handed_over":
            return handed_over(message.handed_over)
        raise RefusedError(f"a leader sends records, not {kind or 'an empty message'}")

    def _decode_update(self, message: pb.BlockUpdate, payload: "_Payload") -> BlockUpdated:
        for each in message.rules:
            if each.number > _MAX_RULES:
                raise RefusedError(f"rule number {each.number} is over {_MAX_RULES}")
            self._rules[each.number] = codec.rule_from_wire(each.rule)
        dtype, _ = self._dtypes_of(message.block)
        parts = []
        for part in message.parts:
            rows = payload.take(part.num_rows, np.dtype(np.int64)) if part.by_rows else None
            if part.segment:
                size = part.num_values * dtype.itemsize
                data = self._segments.part(part.segment, part.offset, size)
                values = np.frombuffer(data, dtype)
            else:
                values = payload.take(part.num_values, dtype)
            parts.append(
                UpdatePart(
                    Range(part.first, part.last, part.start, part.stop),
                    codec.OPERATIONS.from_wire(part.operation),
                    self._rules[part.rule] if part.rule else None,
                    Gradient(values, rows),
                    part.decay,
                )
            )
        completes = message.completes if message.HasField("completes") else None
        info = _step_from_wire(message.step)
        return BlockUpdated(message.block, info, tuple(parts), completes=completes)

    def _decode_block(self, message: pb.BlockCopy) -> BlockCopyBegun:
        shards = [codec.shard_from_wire(each.shard) for each in message.shards]
        if not shards:
            raise RefusedError(f"block {message.block} has no shards")
        dtype = shards[0].variable.dtype
        self.dtypes[message.block] = _dtypes(dtype, is_table=False)
        return BlockCopyBegun(
            block=message.block,
            shards=tuple(shards),
            defined_by=tuple(
                codec.incarnation_from_wire(each.defined_by) for each in message.shards
            ),
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

    def _decode_values(self, message: pb.BlockValues, payload: "_Payload") -> BlockSet:
        return BlockSet(
            message.block,
            _step_from_wire(message.step) if message.HasField("step") else None,
            tuple(self._decode_tile(each, payload) for each in message.tiles),
            tuple(message.versions),
            tuple(message.updates),
            tuple(message.initialized),
            message.completes if message.HasField("completes") else None,
        )

    def _decode_tile(self, message: pb.Tile, payload: "_Payload") -> CopiedTile:
        dtype, wide = self._dtypes_of(message.block)
        count = message.stop - message.start
        if message.segment:
            size = count * (dtype.itemsize + len(message.slots) * wide.itemsize)
            payload = _Payload(self._segments.part(message.segment, message.offset, size).data)
        value = payload.take(count, dtype)
        slots = {name: payload.take(count, wide) for name in message.slots}
        return CopiedTile(message.block, message.start, message.stop, value, slots)

    def _dtypes_of(self, block: int) -> tuple[DType, DType]:
        if block not in self.dtypes:
            raise RefusedError(f"a record of block {block} came before its copy")
        return self.dtypes[block]


def _dtypes(dtype: DType, *, is_table: bool) -> tuple[DType, DType]:
    """Choose the dtype of a block's values, and that of its slots."""
    is_narrow = is_float(dtype) and dtype.itemsize < 4 and not is_table
    return dtype, np.dtype(np.float32) if is_narrow else dtype


class _Payload:
    """The arrays that follow a message, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._start = 0

    def take(self, count: int, dtype: DType) -> Array:
        stop = self._start + count * dtype.itemsize
        if count < 0 or stop > self._data.nbytes:
            raise RefusedError(
                f"a record announces {stop} bytes or more of arrays, and has {self._data.nbytes}"
            )
        taken = np.frombuffer(self._data[self._start : stop], dtype)
        self._start = stop
        return taken


def _offset_in(segment: SharedSegment, values: Array) -> int | None:
    """Find where some values are in a segment; None: they are elsewhere."""
    offset = values.ctypes.data - segment.memory.ctypes.data
    is_there = offset >= 0 and offset + values.nbytes <= segment.num_bytes
    return offset if is_there and values.flags.c_contiguous else None


def _encode_tile(message: pb.Tile, tile: CopiedTile) -> list[Array]:
    message.block, message.start, message.stop = tile.block, tile.start, tile.stop
    message.slots.extend(tile.slots)
    return [tile.value, *tile.slots.values()]


def _encode_state(message: pb.TableState, record: TableCopied) -> list[Array]:
    message.block, message.version, message.updates = record.block, record.version, record.updates
    message.arrays.extend(_arrays_to_wire(record.state))
    message.applied.extend(_marks_to_wire(record.applied))
    message.closures.extend(_closures_to_wire(record.closures))
    return list(record.state.values())


def _arrays_to_wire(arrays: Mapping[str, Array]) -> list[pb.NamedArray]:
    return [
        pb.NamedArray(name=name, dtype=codec.dtype_to_wire(array.dtype), shape=array.shape)
        for name, array in arrays.items()
    ]


def _take_arrays(messages: Iterable[pb.NamedArray], payload: "_Payload") -> dict[str, Array]:
    taken = {}
    for each in messages:
        count = math.prod(each.shape)
        taken[each.name] = payload.take(count, codec.dtype_from_wire(each.dtype)).reshape(
            tuple(each.shape)
        )
    return taken


def _encode_values(message: pb.BlockValues, record: BlockSet) -> list[Array]:
    message.block = record.block
    if record.info is not None:
        _step_to_wire(message.step, record.info)
    message.versions.extend(record.versions)
    message.updates.extend(record.updates)
    message.initialized.extend(record.initialized)
    if record.completes is not None:
        message.completes = record.completes
    return [array for tile in record.tiles for array in _encode_tile(message.tiles.add(), tile)]


def _encode_block(message: pb.BlockCopy, record: BlockCopyBegun) -> None:
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


def _step_to_wire(message: pb.StepIdentity, info: StepInfo) -> None:
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(info.who))
    message.sequence, message.global_step = info.sequence, info.global_step
    message.gradient_scale = info.gradient_scale
    if info.closure is not None:
        message.closure.CopyFrom(codec.closure_run_to_wire(info.closure))


def _step_from_wire(message: pb.StepIdentity) -> StepInfo:
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
