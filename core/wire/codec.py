"""Conversion between messages and our values. Nothing else parses or builds protocol messages'
contents.

Arrays travel as raw little-endian bytes beside the messages, never inside a description of
themselves: both sides know the layout, so a frame is checked by its length alone.
"""

import sys
from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2

from ...proto.v1 import chief_pb2, common_pb2, ps_pb2, session_pb2
from .. import annexes
from ..arrays.dtypes import DTYPES, DType
from ..errors import RefusedError
from ..report import GpuUsage, ProcessUsage, PsCounters, ShardCounters, TableCounters, TaskReport
from ..rules.definitions import RowOptions, ShardDefinition, VariableDefinition
from ..rules.initializers import Initializer
from ..rules.known_rules import rule_from_dict
from ..rules.update_rules import UpdateRule
from ..step_times import NUM_BUCKETS, StepPart
from ..task import MAX_TASK_INDEX, Incarnation, Outcome, Phase, State, TaskId
from ..versions import Versions
from . import bounds, error_table
from .bounds import check_count, check_number, check_text
from .closure_pushes import ClosureRun
from .same_fields import EnumCodes, from_message, to_message
from .steps import (
    Encoding,
    HeldShard,
    LayoutEntry,
    MemoryLocation,
    MemoryRegion,
    Operation,
    StepReply,
    StepRequest,
    WireLayout,
)

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("ropewalk sends arrays as little-endian bytes; this machine is big-endian")

# Of every step: looked up fast.
_MAX_STEP, _MAX_INCREMENT = bounds.MAX_STEP, bounds.MAX_STEP_INCREMENT
_MAX_SCALE, _MAX_DIRECT_BYTES = sys.float_info.max, bounds.MAX_DIRECT_BYTES
_MAX_COUNT = bounds.MAX_COUNT

_TO_WIRE: dict[DType, Any] = {
    dtype: getattr(common_pb2, f"D_TYPE_{dtype.name.upper()}") for dtype in DTYPES
}
_NO_DTYPE: Any = common_pb2.D_TYPE_UNSPECIFIED
_FROM_WIRE: dict[int, DType] = {int(value): dtype for dtype, value in _TO_WIRE.items()}


def dtype_to_wire(dtype: DType) -> Any:
    """Encode a dtype as its enum value."""
    return _TO_WIRE[dtype]


def dtype_from_wire(value: int) -> DType:
    """Decode the dtype of an enum value.

    Raises:
        RefusedError: An unknown value, e.g. of a newer version.
    """
    try:
        return _FROM_WIRE[value]
    except KeyError:
        raise RefusedError(f"unknown dtype number {value} in a message", value=value) from None


def incarnation_to_wire(who: Incarnation) -> common_pb2.Incarnation:
    """Encode an incarnation as a message."""
    return common_pb2.Incarnation(
        task=task_to_wire(who.task), generation=who.generation, job=who.job
    )


def incarnation_from_wire(message: common_pb2.Incarnation) -> Incarnation:
    """Decode the incarnation a message stands for.

    Raises:
        RefusedError: Its generation cannot have been given to it yet, or its names are too long.
    """
    task = task_from_wire(message.task)
    bounds.check_generation(task, message.generation)
    job = check_text(message.job, bounds.MAX_JOB_ID_BYTES, "the id of its job", task)
    return Incarnation(task, message.generation, job)


def set_sender(message: Any, who: Incarnation) -> None:
    """Have a message say who sends it, in its field ``from``."""
    getattr(message, "from").CopyFrom(incarnation_to_wire(who))


def sender_of(message: Any) -> Incarnation:
    """Return the sender of a message, by its field ``from``.

    Raises:
        RefusedError: As :func:`incarnation_from_wire`.
    """
    return incarnation_from_wire(getattr(message, "from"))


def task_to_wire(task: TaskId) -> common_pb2.Task:
    """Encode a task as a message."""
    return common_pb2.Task(type=task.type, index=task.index)


def task_from_wire(message: common_pb2.Task) -> TaskId:
    """Decode the task a message stands for.

    Raises:
        RefusedError: No task can have such a name.
    """
    check_text(message.type, bounds.MAX_TYPE_BYTES, "the type of a task", "a message")
    task = TaskId(message.type, message.index)
    check_number(message.index, MAX_TASK_INDEX, "the index of the task", task)
    return task


def versions_to_wire(versions: Versions) -> common_pb2.Versions:
    """Return versions as a message."""
    return to_message(common_pb2.Versions, versions)


def versions_from_wire(message: common_pb2.Versions) -> Versions:
    """Decode the versions a message stands for."""
    return from_message(Versions, message)


def rule_to_wire(rule: UpdateRule) -> struct_pb2.Struct:
    """Encode an update rule as its fields."""
    message = struct_pb2.Struct()
    message.update(rule.model_dump(mode="json"))
    return message


def rule_from_wire(message: struct_pb2.Struct) -> UpdateRule:
    """Decode the update rule of these fields.

    Raises:
        RefusedError: They are no rule's.
    """
    try:
        return rule_from_dict(_struct_from_wire(message))
    except ValueError as error:  # pydantic's
        names = ", ".join(sorted(message.fields))
        raise RefusedError(f"{error} (an update rule with the fields {names})") from error


def _struct_from_wire(message: struct_pb2.Struct) -> dict[str, Any]:
    """Decode the fields of an update rule.

    Raises:
        RefusedError: They are too many, too deep, or hold NaN or infinity.
    """
    check_count(message.fields, bounds.MAX_HYPERPARAMETERS, "hyperparameters", "a message")
    check_number(message.ByteSize(), bounds.MAX_STRUCT_BYTES, "the size of them", "a message")
    from google.protobuf import json_format  # late: it loads more than all other messages need

    try:
        return json_format.MessageToDict(message)
    except (json_format.Error, ValueError, RecursionError) as error:
        names = ", ".join(sorted(message.fields))
        raise RefusedError(f"{error} (an update rule with the fields {names})") from error


def shard_to_wire(shard: ShardDefinition) -> ps_pb2.ShardDefinition:
    """Encode a shard's definition as a message."""
    variable = shard.variable
    message = ps_pb2.ShardDefinition(
        variable=variable.name,
        full_shape=variable.shape,
        dtype=dtype_to_wire(variable.dtype),
        part=shard.part,
        num_parts=shard.num_parts,
        row_offset=shard.row_offset,
        rows=shard.rows,
        trainable=variable.trainable,
    )
    if variable.initializer is not None:
        message.initializer.CopyFrom(
            ps_pb2.Initializer(
                name=variable.initializer.name,
                seed=variable.initializer.seed,
                arguments=variable.initializer.arguments,
            )
        )
    if shard.rule is not None:
        message.rule.CopyFrom(rule_to_wire(shard.rule))
    if variable.table is not None:
        message.table.CopyFrom(
            _tables().table_to_wire(variable.table, rule_to_wire(variable.table.rule))
        )
    return message


def shard_from_wire(message: ps_pb2.ShardDefinition) -> ShardDefinition:
    """Decode the definition a message stands for.

    Raises:
        RefusedError: It describes no possible shard.
    """
    label = repr(bounds.shorten(message.variable, bounds.MAX_FIELD_BYTES))
    check_count(message.full_shape, bounds.MAX_DIMENSIONS, "dimensions", label)
    try:
        initializer = None
        if message.HasField("initializer"):
            initializer = Initializer(
                message.initializer.name,
                message.initializer.seed,
                dict(message.initializer.arguments),
            )
        variable = VariableDefinition(
            message.variable,
            tuple(message.full_shape),
            dtype_from_wire(message.dtype),
            initializer,
            message.trainable,
            _table_from_wire(message.table) if message.HasField("table") else None,
        )
    except ValueError as error:
        raise RefusedError(f"definition of {label}: {error}") from error
    check_number(variable.num_bytes, bounds.MAX_COUNT, "the number of bytes", label)
    if message.rows < 0:  # ShardDefinition would read it as "all"
        raise RefusedError(f"{variable.name!r}: {message.rows} rows", variable=variable.name)
    shard = ShardDefinition(
        variable,
        message.part,
        message.num_parts,
        message.row_offset,
        message.rows,
        rule_from_wire(message.rule) if message.HasField("rule") else None,
    )
    whole = variable.shape[0] if variable.shape else 1
    if not (shard.row_offset >= 0 and 0 <= shard.rows <= whole - shard.row_offset):
        raise RefusedError(
            f"{shard.label}: rows [{shard.row_offset}, {shard.row_offset + shard.rows}) are not in "
            f"a variable of {whole} rows",
            variable=variable.name,
        )
    if not 0 <= shard.part < shard.num_parts:
        raise RefusedError(f"{variable.name!r}: part {shard.part} of {shard.num_parts}")
    return shard


def _table_from_wire(message: ps_pb2.TableOptions) -> RowOptions:
    options: RowOptions = _tables().table_from_wire(message, rule_from_wire(message.rule))
    return options


def _tables() -> Any:
    return annexes.the("wire", "embedding", "a table that grows")


def held_to_wire(held: HeldShard) -> ps_pb2.HeldShard:
    """Encode a shard and its state as a message."""
    return ps_pb2.HeldShard(
        shard=shard_to_wire(held.shard), initialized=held.initialized, restored=held.restored
    )


def held_from_wire(message: ps_pb2.HeldShard) -> HeldShard:
    """Decode the shard and state a message stands for."""
    return HeldShard(shard_from_wire(message.shard), message.initialized, message.restored)


def region_to_wire(region: MemoryRegion | None) -> session_pb2.MemoryRegion:
    """Encode a region as a message; None: an empty one."""
    if region is None:
        return session_pb2.MemoryRegion()
    at = region.memory
    return session_pb2.MemoryRegion(
        slab=at.slab,
        offset=at.offset,
        sequence_offset=at.sequence_offset,
        num_bytes=region.num_bytes,
        row_bytes=region.row_bytes,
        dtype=dtype_to_wire(region.dtype),
    )


def region_from_wire(message: session_pb2.MemoryRegion) -> MemoryRegion | None:
    """Decode the region that a message stands for; None: the values are in no shared memory.

    Raises:
        RefusedError: It has a dtype that does not exist.
    """
    if not message.dtype:
        return None
    location = MemoryLocation(message.slab, message.offset, message.sequence_offset)
    dtype = dtype_from_wire(message.dtype)
    return MemoryRegion(location, message.num_bytes, dtype, message.row_bytes)


def layout_to_wire(layout: WireLayout) -> session_pb2.Layout:
    """Encode a layout as a message."""
    return session_pb2.Layout(
        layout_id=layout.layout_id,
        entries=[
            session_pb2.LayoutEntry(
                variable=item.variable,
                part=item.part,
                operation=OPERATIONS.to_wire(item.operation),
                encoding=_ENCODINGS.to_wire(item.encoding),
                dtype=_NO_DTYPE if item.dtype is None else _TO_WIRE[item.dtype],
                decay=item.decay,
            )
            for item in layout.entries
        ],
    )


def layout_from_wire(message: session_pb2.Layout) -> list[LayoutEntry]:
    """Decode the entries of a layout.

    Raises:
        RefusedError: One has an operation, encoding or dtype that does not exist.
    """
    return [
        LayoutEntry(
            item.variable,
            item.part,
            OPERATIONS.from_wire(item.operation),
            _ENCODINGS.from_wire(item.encoding),
            dtype_from_wire(item.dtype) if item.dtype else None,
            decay=item.decay,
        )
        for item in message.entries
    ]


def step_to_wire(
    request: StepRequest, request_id: int, known_request: int, *, early_reply: bool
) -> session_pb2.Step:
    """Encode a step as a message; its payload travels beside it."""
    message = session_pb2.Step(
        request_id=request_id,
        sequence=request.sequence,
        push_layout=request.push.layout_id if request.push is not None else 0,
        pull_layout=request.pull.layout_id if request.pull is not None else 0,
        push_rows=[numbers.size for numbers in request.push_rows],
        pull_rows=[numbers.size for numbers in request.pull_rows],
        payload_bytes=request.payload_bytes,
        global_step=request.global_step,
        step_increment=request.step_increment,
        gradient_scale=request.gradient_scale,
        payload_in_segment=request.in_segment,
        segment=request.segment,
        answer_room=request.answer_bytes if request.in_segment else 0,
        direct_bytes=request.direct_bytes,
        known_request=known_request,
        early_reply=early_reply,
    )
    if request.trace:
        message.trace = request.trace
    if request.hyperparameters is not None:
        message.hyperparameters.update(dict(request.hyperparameters))
    if request.closure is not None:
        message.closure.CopyFrom(closure_run_to_wire(request.closure))
    if request.advance is not None:
        message.advance_row, message.advance_to = request.advance[:2]
        message.settle_row, message.settle_to = request.advance[2:]
    return message


def closure_run_to_wire(run: ClosureRun) -> session_pb2.ClosureRun:
    """Encode an attempt at a closure as a message."""
    return session_pb2.ClosureRun(
        coordinator=run.coordinator,
        lane=run.lane,
        turn=run.turn,
        attempt=run.attempt,
        oldest_attempt=run.oldest_attempt,
    )


def closure_run_from_wire(message: session_pb2.ClosureRun, who: object = "a peer") -> ClosureRun:
    """Decode the attempt at a closure that a message stands for.

    Raises:
        RefusedError: A number in it is not possible.
    """
    check_number(message.coordinator, bounds.MAX_GENERATION, "a coordinator's generation", who)
    check_number(message.lane, bounds.MAX_LANES - 1, "a closure's lane", who)
    check_number(message.turn, bounds.MAX_COUNT, "a closure's turn", who, least=1)
    check_number(message.attempt, bounds.MAX_ATTEMPTS, "a closure's attempt", who, least=1)
    check_number(message.oldest_attempt, message.attempt, "the oldest attempt", who)
    return ClosureRun(
        message.coordinator, message.lane, message.turn, message.attempt, message.oldest_attempt
    )


def check_step(message: session_pb2.Step, who: object = "a worker") -> None:
    """Check the numbers of a step.

    Args:
        message: Message to check.
        who: Sent it, for messages.

    Raises:
        RefusedError: One is not possible.
    """
    step, increment = message.global_step, message.step_increment
    scale, direct_bytes = message.gradient_scale, message.direct_bytes
    advance_to, settle_to = message.advance_to, message.settle_to
    if not (
        step <= _MAX_STEP
        and increment <= _MAX_INCREMENT
        and 0.0 <= scale <= _MAX_SCALE
        and direct_bytes <= _MAX_DIRECT_BYTES
        and advance_to <= _MAX_COUNT
        and settle_to <= _MAX_COUNT
    ):
        check_number(step, bounds.MAX_STEP, "the global step", who)
        check_number(increment, bounds.MAX_STEP_INCREMENT, "step_increment", who)
        check_number(scale, _MAX_SCALE, "gradient_scale", who)
        check_number(direct_bytes, bounds.MAX_DIRECT_BYTES, "direct_bytes", who)
        check_number(advance_to, bounds.MAX_COUNT, "advance_to", who)
        check_number(settle_to, bounds.MAX_COUNT, "settle_to", who)


def hyperparameters_of(message: session_pb2.Step) -> dict[str, Any] | None:
    """Decode the fields of update rules that a step changes; None: as bound.

    Raises:
        RefusedError: They are too many, too deep, or hold NaN or infinity.
    """
    return (
        _struct_from_wire(message.hyperparameters) if message.HasField("hyperparameters") else None
    )


def closure_of(message: session_pb2.Step, who: object = "a worker") -> ClosureRun | None:
    """Decode the attempt at a closure in which a step is made; None: outside closures.

    Raises:
        RefusedError: A number in it is not possible.
    """
    return closure_run_from_wire(message.closure, who) if message.HasField("closure") else None


def reply_to_wire(reply: StepReply) -> session_pb2.StepReply:
    """Encode the answer to a step as a message."""
    return session_pb2.StepReply(
        request_id=reply.request_id,
        payload_bytes=reply.payload_bytes,
        global_step=reply.global_step,
        staleness=reply.staleness,
        duplicate=reply.duplicate,
        error=error_table.to_detail(reply.error) if reply.error is not None else None,
        changed=reply.changed,
        outcome_follows=reply.outcome_follows,
        values_in_segment=reply.values_in_segment,
    )


def reply_from_wire(message: session_pb2.StepReply) -> StepReply:
    """Decode the answer a message stands for."""
    return StepReply(
        message.request_id,
        message.payload_bytes,
        message.global_step,
        message.staleness,
        message.duplicate,
        error_table.from_detail(message.error) if message.HasField("error") else None,
        message.changed,
        message.outcome_follows,
        message.values_in_segment,
    )


_COUNTS = ("steps", "pushes", "bytes_pushed", "bytes_pulled", "refused_pushes")


def report_to_wire(report: TaskReport) -> chief_pb2.TaskReport:
    """Encode a task's report as a message."""
    transports = [
        bounds.shorten(transport, bounds.MAX_NAME_BYTES) for transport in report.transports
    ]
    parts = [to_message(chief_pb2.StepPart, part) for part in report.step_parts]
    return to_message(
        chief_pb2.TaskReport,
        report,
        transports=transports,
        step_parts=parts,
        usage=_usage_to_wire(report.usage),
    )


def report_from_wire(message: chief_pb2.TaskReport, who: object = "a task") -> TaskReport:
    """Decode the report a message stands for.

    Args:
        message: Message to read.
        who: Sent it, for messages.

    Raises:
        RefusedError: A number in it is not possible, or it is too long.
    """
    for name in _COUNTS:
        check_number(getattr(message, name), bounds.MAX_COUNT, name, who)
    for name in ("global_step", "total_steps"):
        check_number(getattr(message, name), bounds.MAX_STEP, name, who)
    check_number(message.staleness, bounds.MAX_STEP, "staleness", who)
    bounds.check_metrics(message.metrics, who)
    check_count(message.transports, bounds.MAX_TRANSPORTS, "transports", who)
    for transport in message.transports:
        check_text(transport, bounds.MAX_NAME_BYTES, "a transport", who)
    return from_message(
        TaskReport,
        message,
        metrics=dict(message.metrics),
        transports=tuple(message.transports),
        step_parts=_step_parts_from_wire(message.step_parts, who),
        usage=_usage_from_wire(message.usage, who),
    )


def _step_parts_from_wire(
    messages: Sequence[chief_pb2.StepPart], who: object
) -> tuple[StepPart, ...]:
    check_count(messages, bounds.MAX_STEP_PARTS, "parts of a step", who)
    for message in messages:
        check_text(message.name, bounds.MAX_TYPE_BYTES, "the name of a part of a step", who)
        check_number(message.seconds, bounds.MAX_SECONDS, "the seconds of a part", who)
        check_count(message.buckets, NUM_BUCKETS, "buckets", who)
        check_number(max(message.buckets, default=0), bounds.MAX_COUNT, "a bucket", who)
    return tuple(
        from_message(StepPart, message, buckets=tuple(message.buckets)) for message in messages
    )


def _usage_to_wire(usage: ProcessUsage) -> common_pb2.ProcessUsage:
    gpus = [to_message(common_pb2.GpuUsage, gpu) for gpu in usage.gpus[: bounds.MAX_GPUS]]
    return to_message(common_pb2.ProcessUsage, usage, gpus=gpus)


def _usage_from_wire(message: common_pb2.ProcessUsage, who: object) -> ProcessUsage:
    check_count(message.gpus, bounds.MAX_GPUS, "GPUs", who)
    for part in (message, *message.gpus):
        for field, value in part.ListFields():
            if isinstance(value, str):
                check_text(value, bounds.MAX_NAME_BYTES, f"its {field.name}", who)
            elif isinstance(value, int | float):
                check_number(value, bounds.MAX_COUNT, f"its {field.name}", who, least=-1)
    gpus = tuple(from_message(GpuUsage, gpu) for gpu in message.gpus)
    return from_message(ProcessUsage, message, gpus=gpus)


def counters_to_wire(counters: PsCounters) -> ps_pb2.PsCounters:
    """Encode a ps's counters as a message; what is too large for it is as large as it can be."""
    tables = [to_message(ps_pb2.TableCounters, bounds.capped(table)) for table in counters.tables]
    return to_message(
        ps_pb2.PsCounters,
        bounds.capped(counters),
        tables=tables,
        usage=_usage_to_wire(counters.usage),
        busiest=[to_message(ps_pb2.ShardCounters, shard) for shard in counters.busiest],
    )


def counters_from_wire(message: ps_pb2.PsCounters) -> PsCounters:
    """Decode the counters a message stands for."""
    tables = tuple(from_message(TableCounters, table) for table in message.tables)
    return from_message(
        PsCounters,
        message,
        labels=tuple(message.labels),
        tables=tables,
        usage=_usage_from_wire(message.usage, "a ps"),
        busiest=tuple(from_message(ShardCounters, shard) for shard in message.busiest),
    )


PHASES = EnumCodes(Phase, common_pb2, "JOB_PHASE")
STATES = EnumCodes(State, chief_pb2, "TASK_STATE")
OUTCOMES = EnumCodes(Outcome, chief_pb2, "OUTCOME")
OPERATIONS = EnumCodes(Operation, session_pb2, "OPERATION")
_ENCODINGS = EnumCodes(Encoding, session_pb2, "ENCODING")
