from google.protobuf import struct_pb2 as _struct_pb2
from . import common_pb2 as _common_pb2
from . import ps_pb2 as _ps_pb2
from . import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("position", "update", "complete", "registered", "step_raised", "log", "block", "tile", "binding", "copy_complete", "begin", "values", "checked", "table", "rows", "table_state", "handed_over", "segment", "epoch", "gone_segments")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    STEP_RAISED_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    COPY_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TABLE_STATE_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GONE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    position: int
    update: BlockUpdate
    complete: PushComplete
    registered: _common_pb2.Incarnation
    step_raised: int
    log: PushLog
    block: BlockCopy
    tile: Tile
    binding: RuleBinding
    copy_complete: bool
    begin: FollowBegin
    values: BlockValues
    checked: bool
    table: TableBegun
    rows: CopiedRows
    table_state: TableState
    handed_over: HandedOver
    segment: SegmentHandedOn
    epoch: int
    gone_segments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, position: _Optional[int] = ..., update: _Optional[_Union[BlockUpdate, _Mapping]] = ..., complete: _Optional[_Union[PushComplete, _Mapping]] = ..., registered: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., step_raised: _Optional[int] = ..., log: _Optional[_Union[PushLog, _Mapping]] = ..., block: _Optional[_Union[BlockCopy, _Mapping]] = ..., tile: _Optional[_Union[Tile, _Mapping]] = ..., binding: _Optional[_Union[RuleBinding, _Mapping]] = ..., copy_complete: bool = ..., begin: _Optional[_Union[FollowBegin, _Mapping]] = ..., values: _Optional[_Union[BlockValues, _Mapping]] = ..., checked: bool = ..., table: _Optional[_Union[TableBegun, _Mapping]] = ..., rows: _Optional[_Union[CopiedRows, _Mapping]] = ..., table_state: _Optional[_Union[TableState, _Mapping]] = ..., handed_over: _Optional[_Union[HandedOver, _Mapping]] = ..., segment: _Optional[_Union[SegmentHandedOn, _Mapping]] = ..., epoch: _Optional[int] = ..., gone_segments: _Optional[_Iterable[int]] = ...) -> None: ...

class FollowBegin(_message.Message):
    __slots__ = ("share", "leader", "goes_on")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    share: int
    leader: _common_pb2.Task
    goes_on: bool
    def __init__(self, share: _Optional[int] = ..., leader: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., goes_on: bool = ...) -> None: ...

class HandedOver(_message.Message):
    __slots__ = ("epoch", "chief", "address")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    chief: _common_pb2.Incarnation
    address: str
    def __init__(self, epoch: _Optional[int] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class SegmentHandedOn(_message.Message):
    __slots__ = ("number", "num_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    num_bytes: int
    def __init__(self, number: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class StepIdentity(_message.Message):
    __slots__ = ("sequence", "global_step", "gradient_scale", "closure")
    FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    global_step: int
    gradient_scale: float
    closure: _session_pb2.ClosureRun
    def __init__(self, sequence: _Optional[int] = ..., global_step: _Optional[int] = ..., gradient_scale: _Optional[float] = ..., closure: _Optional[_Union[_session_pb2.ClosureRun, _Mapping]] = ..., **kwargs) -> None: ...

class BlockUpdate(_message.Message):
    __slots__ = ("block", "step", "parts", "rules", "completes")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    COMPLETES_FIELD_NUMBER: _ClassVar[int]
    block: int
    step: StepIdentity
    parts: _containers.RepeatedCompositeFieldContainer[UpdatePart]
    rules: _containers.RepeatedCompositeFieldContainer[NumberedRule]
    completes: int
    def __init__(self, block: _Optional[int] = ..., step: _Optional[_Union[StepIdentity, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[UpdatePart, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[NumberedRule, _Mapping]]] = ..., completes: _Optional[int] = ...) -> None: ...

class NumberedRule(_message.Message):
    __slots__ = ("number", "rule")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    number: int
    rule: _struct_pb2.Struct
    def __init__(self, number: _Optional[int] = ..., rule: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class UpdatePart(_message.Message):
    __slots__ = ("first", "last", "start", "stop", "operation", "rule", "decay", "by_rows", "num_rows", "num_values", "segment", "offset")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    BY_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    start: int
    stop: int
    operation: _session_pb2.Operation
    rule: int
    decay: float
    by_rows: bool
    num_rows: int
    num_values: int
    segment: int
    offset: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., operation: _Optional[_Union[_session_pb2.Operation, str]] = ..., rule: _Optional[int] = ..., decay: _Optional[float] = ..., by_rows: bool = ..., num_rows: _Optional[int] = ..., num_values: _Optional[int] = ..., segment: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PushComplete(_message.Message):
    __slots__ = ("step", "step_increment")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_INCREMENT_FIELD_NUMBER: _ClassVar[int]
    step: StepIdentity
    step_increment: int
    def __init__(self, step: _Optional[_Union[StepIdentity, _Mapping]] = ..., step_increment: _Optional[int] = ...) -> None: ...

class TaskMark(_message.Message):
    __slots__ = ("task", "generation", "sequence")
    TASK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    generation: int
    sequence: int
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., generation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ClosureMark(_message.Message):
    __slots__ = ("lane", "coordinator", "turn", "oldest_attempt", "number")
    LANE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    lane: int
    coordinator: int
    turn: int
    oldest_attempt: int
    number: int
    def __init__(self, lane: _Optional[int] = ..., coordinator: _Optional[int] = ..., turn: _Optional[int] = ..., oldest_attempt: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class PushLog(_message.Message):
    __slots__ = ("pushes", "counted", "closures", "global_step", "contents")
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    pushes: _containers.RepeatedCompositeFieldContainer[TaskMark]
    counted: _containers.RepeatedCompositeFieldContainer[TaskMark]
    closures: _containers.RepeatedCompositeFieldContainer[ClosureMark]
    global_step: int
    contents: int
    def __init__(self, pushes: _Optional[_Iterable[_Union[TaskMark, _Mapping]]] = ..., counted: _Optional[_Iterable[_Union[TaskMark, _Mapping]]] = ..., closures: _Optional[_Iterable[_Union[ClosureMark, _Mapping]]] = ..., global_step: _Optional[int] = ..., contents: _Optional[int] = ...) -> None: ...

class BlockCopy(_message.Message):
    __slots__ = ("block", "shards", "slots", "applied", "closures")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    block: int
    shards: _containers.RepeatedCompositeFieldContainer[CopiedShard]
    slots: _containers.RepeatedScalarFieldContainer[str]
    applied: _containers.RepeatedCompositeFieldContainer[TaskMark]
    closures: _containers.RepeatedCompositeFieldContainer[ClosureMark]
    def __init__(self, block: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[CopiedShard, _Mapping]]] = ..., slots: _Optional[_Iterable[str]] = ..., applied: _Optional[_Iterable[_Union[TaskMark, _Mapping]]] = ..., closures: _Optional[_Iterable[_Union[ClosureMark, _Mapping]]] = ...) -> None: ...

class CopiedShard(_message.Message):
    __slots__ = ("shard", "defined_by", "bound_by", "restored_from", "version", "updates", "initialized")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DEFINED_BY_FIELD_NUMBER: _ClassVar[int]
    BOUND_BY_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    shard: _ps_pb2.ShardDefinition
    defined_by: _common_pb2.Incarnation
    bound_by: _common_pb2.Incarnation
    restored_from: str
    version: int
    updates: int
    initialized: bool
    def __init__(self, shard: _Optional[_Union[_ps_pb2.ShardDefinition, _Mapping]] = ..., defined_by: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., bound_by: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., restored_from: _Optional[str] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., initialized: bool = ...) -> None: ...

class Tile(_message.Message):
    __slots__ = ("block", "start", "stop", "slots", "segment", "offset")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    block: int
    start: int
    stop: int
    slots: _containers.RepeatedScalarFieldContainer[str]
    segment: int
    offset: int
    def __init__(self, block: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., slots: _Optional[_Iterable[str]] = ..., segment: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class BlockValues(_message.Message):
    __slots__ = ("block", "step", "tiles", "versions", "updates", "initialized", "completes")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    COMPLETES_FIELD_NUMBER: _ClassVar[int]
    block: int
    step: StepIdentity
    tiles: _containers.RepeatedCompositeFieldContainer[Tile]
    versions: _containers.RepeatedScalarFieldContainer[int]
    updates: _containers.RepeatedScalarFieldContainer[int]
    initialized: _containers.RepeatedScalarFieldContainer[bool]
    completes: int
    def __init__(self, block: _Optional[int] = ..., step: _Optional[_Union[StepIdentity, _Mapping]] = ..., tiles: _Optional[_Iterable[_Union[Tile, _Mapping]]] = ..., versions: _Optional[_Iterable[int]] = ..., updates: _Optional[_Iterable[int]] = ..., initialized: _Optional[_Iterable[bool]] = ..., completes: _Optional[int] = ...) -> None: ...

class TableBegun(_message.Message):
    __slots__ = ("block", "shard", "defined_by")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DEFINED_BY_FIELD_NUMBER: _ClassVar[int]
    block: int
    shard: _ps_pb2.ShardDefinition
    defined_by: _common_pb2.Incarnation
    def __init__(self, block: _Optional[int] = ..., shard: _Optional[_Union[_ps_pb2.ShardDefinition, _Mapping]] = ..., defined_by: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ...) -> None: ...

class CopiedRows(_message.Message):
    __slots__ = ("block", "num_removed", "columns", "anew")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_REMOVED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    block: int
    num_removed: int
    columns: _containers.RepeatedCompositeFieldContainer[NamedArray]
    anew: bool
    def __init__(self, block: _Optional[int] = ..., num_removed: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[NamedArray, _Mapping]]] = ..., anew: bool = ...) -> None: ...

class NamedArray(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: _common_pb2.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_common_pb2.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class TableState(_message.Message):
    __slots__ = ("block", "arrays", "version", "updates", "applied", "closures")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    block: int
    arrays: _containers.RepeatedCompositeFieldContainer[NamedArray]
    version: int
    updates: int
    applied: _containers.RepeatedCompositeFieldContainer[TaskMark]
    closures: _containers.RepeatedCompositeFieldContainer[ClosureMark]
    def __init__(self, block: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[NamedArray, _Mapping]]] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[TaskMark, _Mapping]]] = ..., closures: _Optional[_Iterable[_Union[ClosureMark, _Mapping]]] = ...) -> None: ...

class RuleBinding(_message.Message):
    __slots__ = ("block", "entry", "rule", "updates")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    block: int
    entry: int
    rule: _struct_pb2.Struct
    updates: int
    def __init__(self, block: _Optional[int] = ..., entry: _Optional[int] = ..., rule: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., updates: _Optional[int] = ..., **kwargs) -> None: ...
