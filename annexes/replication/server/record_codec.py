"""Records as messages and arrays, and back. Each end of a link has a codec of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ....core.arrays.dtypes import Array, DType, is_float
from ....core.errors import RefusedError
from ....core.rules.update_rules import UpdateRule
from ....core.wire import codec
from ....engine.push_target import Gradient, PushTarget, Range, RowsByKey, UpdatePart
from ....net.shared_memory import SharedSegment
from ....proto.v1 import replication_pb2 as pb
from ....server.ps.push_marks import LogCopied
from .follower import SegmentsReceived, SegmentsSent
from .record_wire import (
    RecordPayload,
    binding_from_wire,
    binding_to_wire,
    block_from_wire,
    block_to_wire,
    completed_from_wire,
    handed_over,
    handover_to_wire,
    log_from_wire,
    log_to_wire,
    rows_from_wire,
    rows_to_wire,
    state_from_wire,
    state_to_wire,
    step_from_wire,
    step_to_wire,
    table_from_wire,
    table_to_wire,
)
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

_MAX_RULES = 4096  # named by numbers at a time


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
            step_to_wire(message.complete.step, record.info)
            message.complete.step_increment = record.step_increment
        elif isinstance(record, TaskRegistered):
            message.registered.CopyFrom(codec.incarnation_to_wire(record.who))
        elif isinstance(record, StepRaised):
            message.step_raised = record.global_step
        elif isinstance(record, LogCopied):
            log_to_wire(message.log, record)
        elif isinstance(record, BlockCopyBegun):
            block_to_wire(message.block, record)
        elif isinstance(record, CopiedTile):
            arrays = self._encode_tile(message.tile, record)
        elif isinstance(record, TableCopyBegun):
            table_to_wire(message.table, record)
        elif isinstance(record, RowsCopied):
            arrays = rows_to_wire(message.rows, record)
        elif isinstance(record, TableCopied):
            arrays = state_to_wire(message.table_state, record)
        elif isinstance(record, RuleBound):
            binding_to_wire(message.binding, record)
        elif isinstance(record, Checked):
            message.checked = True
        elif isinstance(record, HandedOver):
            handover_to_wire(message.handed_over, record)
        else:
            message.copy_complete = True
        return message, arrays

    def _encode_update(self, message: pb.BlockUpdate, record: BlockUpdated) -> list[Array]:
        message.block = record.block
        step_to_wire(message.step, record.info)
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
        if kind == "update":  # by far the most
            return self._decode_update(message.update, RecordPayload(payload))
        if kind == "values":
            return self._decode_values(message.values, RecordPayload(payload))
        if kind == "tile":
            return self._decode_tile(message.tile, RecordPayload(payload))
        if kind == "block":
            return self._decode_block(message.block)
        if kind == "table":
            return self._decode_table(message.table)
        decode = _DECODERS.get(kind or "")
        if decode is None:
            raise RefusedError(f"a leader sends records, not {kind or 'an empty message'}")
        return decode(message, RecordPayload(payload))

    def _decode_update(self, message: pb.BlockUpdate, payload: RecordPayload) -> BlockUpdated:
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
        info = step_from_wire(message.step)
        return BlockUpdated(message.block, info, tuple(parts), completes=completes)

    def _decode_block(self, message: pb.BlockCopy) -> BlockCopyBegun:
        begun = block_from_wire(message)
        self.dtypes[begun.block] = _dtypes(begun.shards[0].variable.dtype, is_table=False)
        return begun

    def _decode_table(self, message: pb.TableBegun) -> TableCopyBegun:
        begun = table_from_wire(message)
        self.dtypes[begun.block] = _dtypes(begun.shard.variable.dtype, is_table=True)
        return begun

    def _decode_values(self, message: pb.BlockValues, payload: RecordPayload) -> BlockSet:
        return BlockSet(
            message.block,
            step_from_wire(message.step) if message.HasField("step") else None,
            tuple(self._decode_tile(each, payload) for each in message.tiles),
            tuple(message.versions),
            tuple(message.updates),
            tuple(message.initialized),
            message.completes if message.HasField("completes") else None,
        )

    def _decode_tile(self, message: pb.Tile, payload: RecordPayload) -> CopiedTile:
        dtype, wide = self._dtypes_of(message.block)
        count = message.stop - message.start
        if message.segment:
            size = count * (dtype.itemsize + len(message.slots) * wide.itemsize)
            payload = RecordPayload(self._segments.part(message.segment, message.offset, size).data)
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


_DECODERS: Mapping[str, Callable[[pb.Record, RecordPayload], Record]] = {
    "complete": lambda message, _: completed_from_wire(message.complete),
    "registered": lambda message, _: TaskRegistered(
        codec.incarnation_from_wire(message.registered)
    ),
    "step_raised": lambda message, _: StepRaised(message.step_raised),
    "log": lambda message, _: log_from_wire(message.log),
    "rows": lambda message, payload: rows_from_wire(message.rows, payload),
    "table_state": lambda message, payload: state_from_wire(message.table_state, payload),
    "binding": lambda message, _: binding_from_wire(message.binding),
    "checked": lambda *_: Checked(),
    "copy_complete": lambda *_: CopyCompleted(),
    "handed_over": lambda message, _: handed_over(message.handed_over),
}
"""Decode the records that need nothing of those before."""


def _offset_in(segment: SharedSegment, values: Array) -> int | None:
    """Find where some values are in a segment; None: they are elsewhere."""
    offset = values.ctypes.data - segment.memory.ctypes.data
    is_there = offset >= 0 and offset + values.nbytes <= segment.num_bytes
    return offset if is_there and values.flags.c_contiguous else None


def _encode_tile(message: pb.Tile, tile: CopiedTile) -> list[Array]:
    message.block, message.start, message.stop = tile.block, tile.start, tile.stop
    message.slots.extend(tile.slots)
    return [tile.value, *tile.slots.values()]


def _encode_values(message: pb.BlockValues, record: BlockSet) -> list[Array]:
    message.block = record.block
    if record.info is not None:
        step_to_wire(message.step, record.info)
    message.versions.extend(record.versions)
    message.updates.extend(record.updates)
    message.initialized.extend(record.initialized)
    if record.completes is not None:
        message.completes = record.completes
    return [array for tile in record.tiles for array in _encode_tile(message.tiles.add(), tile)]
