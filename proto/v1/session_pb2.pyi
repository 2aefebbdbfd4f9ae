from google.protobuf import struct_pb2 as _struct_pb2
from . import common_pb2 as _common_pb2
from . import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_PULL: _ClassVar[Operation]
    OPERATION_APPLY: _ClassVar[Operation]
    OPERATION_ASSIGN: _ClassVar[Operation]
    OPERATION_ASSIGN_ADD: _ClassVar[Operation]
    OPERATION_MULTIPLY: _ClassVar[Operation]
    OPERATION_DIVIDE: _ClassVar[Operation]
    OPERATION_MINIMUM: _ClassVar[Operation]
    OPERATION_MAXIMUM: _ClassVar[Operation]
    OPERATION_ADVANCE: _ClassVar[Operation]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_DENSE: _ClassVar[Encoding]
    ENCODING_ROWS: _ClassVar[Encoding]
    ENCODING_ELEMENTS: _ClassVar[Encoding]
    ENCODING_KEYS: _ClassVar[Encoding]
    ENCODING_STATES: _ClassVar[Encoding]
OPERATION_UNSPECIFIED: Operation
OPERATION_PULL: Operation
OPERATION_APPLY: Operation
OPERATION_ASSIGN: Operation
OPERATION_ASSIGN_ADD: Operation
OPERATION_MULTIPLY: Operation
OPERATION_DIVIDE: Operation
OPERATION_MINIMUM: Operation
OPERATION_MAXIMUM: Operation
OPERATION_ADVANCE: Operation
ENCODING_UNSPECIFIED: Encoding
ENCODING_DENSE: Encoding
ENCODING_ROWS: Encoding
ENCODING_ELEMENTS: Encoding
ENCODING_KEYS: Encoding
ENCODING_STATES: Encoding

class ClientMessage(_message.Message):
    __slots__ = ("hello", "layout", "step", "segment", "map_slab", "begin_link", "define_function", "make_resource", "run_closure", "change_optimizer", "forget", "find_memory", "follow_rows", "keep_rows", "read_kept_rows")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    MAP_SLAB_FIELD_NUMBER: _ClassVar[int]
    BEGIN_LINK_FIELD_NUMBER: _ClassVar[int]
    DEFINE_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    MAKE_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RUN_CLOSURE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    FIND_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_ROWS_FIELD_NUMBER: _ClassVar[int]
    KEEP_ROWS_FIELD_NUMBER: _ClassVar[int]
    READ_KEPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    layout: Layout
    step: Step
    segment: Segment
    map_slab: MapSlab
    begin_link: BeginLink
    define_function: DefineFunction
    make_resource: MakeResource
    run_closure: RunClosure
    change_optimizer: ChangeOptimizer
    forget: ForgetThings
    find_memory: FindMemory
    follow_rows: FollowRows
    keep_rows: KeepRows
    read_kept_rows: ReadKeptRows
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ..., map_slab: _Optional[_Union[MapSlab, _Mapping]] = ..., begin_link: _Optional[_Union[BeginLink, _Mapping]] = ..., define_function: _Optional[_Union[DefineFunction, _Mapping]] = ..., make_resource: _Optional[_Union[MakeResource, _Mapping]] = ..., run_closure: _Optional[_Union[RunClosure, _Mapping]] = ..., change_optimizer: _Optional[_Union[ChangeOptimizer, _Mapping]] = ..., forget: _Optional[_Union[ForgetThings, _Mapping]] = ..., find_memory: _Optional[_Union[FindMemory, _Mapping]] = ..., follow_rows: _Optional[_Union[FollowRows, _Mapping]] = ..., keep_rows: _Optional[_Union[KeepRows, _Mapping]] = ..., read_kept_rows: _Optional[_Union[ReadKeptRows, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "step", "failure", "slab", "closure", "acknowledged", "found_memory", "followed_rows", "kept_rows")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FOUND_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_ROWS_FIELD_NUMBER: _ClassVar[int]
    KEPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step: StepReply
    failure: _errors_pb2.ErrorDetail
    slab: Segment
    closure: ClosureAnswer
    acknowledged: Acknowledged
    found_memory: FoundMemory
    followed_rows: FollowedRows
    kept_rows: KeptRows
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step: _Optional[_Union[StepReply, _Mapping]] = ..., failure: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., slab: _Optional[_Union[Segment, _Mapping]] = ..., closure: _Optional[_Union[ClosureAnswer, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., found_memory: _Optional[_Union[FoundMemory, _Mapping]] = ..., followed_rows: _Optional[_Union[FollowedRows, _Mapping]] = ..., kept_rows: _Optional[_Union[KeptRows, _Mapping]] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("service", "versions", "max_message_bytes", "expected_ps_generation", "ring", "authorization", "unix_ticket", "share")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    UNIX_TICKET_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    service: str
    versions: _common_pb2.Versions
    max_message_bytes: int
    expected_ps_generation: int
    ring: RingMember
    authorization: str
    unix_ticket: bytes
    share: int
    def __init__(self, service: _Optional[str] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., expected_ps_generation: _Optional[int] = ..., ring: _Optional[_Union[RingMember, _Mapping]] = ..., authorization: _Optional[str] = ..., unix_ticket: _Optional[bytes] = ..., share: _Optional[int] = ..., **kwargs) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("versions", "max_message_bytes", "unix_sockets", "ps_generation", "max_step_bytes", "instance", "authorization", "unix_ticket", "task", "replicas", "confirms_reads")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNIX_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    PS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    UNIX_TICKET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMS_READS_FIELD_NUMBER: _ClassVar[int]
    versions: _common_pb2.Versions
    max_message_bytes: int
    unix_sockets: _containers.RepeatedScalarFieldContainer[str]
    ps_generation: int
    max_step_bytes: int
    instance: int
    authorization: str
    unix_ticket: bytes
    task: _common_pb2.Task
    replicas: int
    confirms_reads: bool
    def __init__(self, versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., unix_sockets: _Optional[_Iterable[str]] = ..., ps_generation: _Optional[int] = ..., max_step_bytes: _Optional[int] = ..., instance: _Optional[int] = ..., authorization: _Optional[str] = ..., unix_ticket: _Optional[bytes] = ..., task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., replicas: _Optional[int] = ..., confirms_reads: bool = ...) -> None: ...

class RingMember(_message.Message):
    __slots__ = ("ring", "rank", "size")
    RING_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ring: int
    rank: int
    size: int
    def __init__(self, ring: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("number", "num_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    num_bytes: int
    def __init__(self, number: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class BeginLink(_message.Message):
    __slots__ = ("segment_bytes",)
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    segment_bytes: int
    def __init__(self, segment_bytes: _Optional[int] = ...) -> None: ...

class FindMemory(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardName]
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardName, _Mapping]]] = ...) -> None: ...

class ShardName(_message.Message):
    __slots__ = ("variable", "part")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    variable: str
    part: int
    def __init__(self, variable: _Optional[str] = ..., part: _Optional[int] = ...) -> None: ...

class FoundMemory(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[MemoryRegion]
    def __init__(self, regions: _Optional[_Iterable[_Union[MemoryRegion, _Mapping]]] = ...) -> None: ...

class MemoryRegion(_message.Message):
    __slots__ = ("dtype", "slab", "offset", "sequence_offset", "num_bytes", "row_bytes")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    dtype: _common_pb2.DType
    slab: int
    offset: int
    sequence_offset: int
    num_bytes: int
    row_bytes: int
    def __init__(self, dtype: _Optional[_Union[_common_pb2.DType, str]] = ..., slab: _Optional[int] = ..., offset: _Optional[int] = ..., sequence_offset: _Optional[int] = ..., num_bytes: _Optional[int] = ..., row_bytes: _Optional[int] = ...) -> None: ...

class MapSlab(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class FollowRows(_message.Message):
    __slots__ = ("variable", "part", "log", "since", "cursor", "ranges")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    variable: str
    part: int
    log: int
    since: int
    cursor: int
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    def __init__(self, variable: _Optional[str] = ..., part: _Optional[int] = ..., log: _Optional[int] = ..., since: _Optional[int] = ..., cursor: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class FollowedRows(_message.Message):
    __slots__ = ("log", "position", "next", "unknown", "payload_bytes", "error")
    LOG_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    log: int
    position: int
    next: int
    unknown: bool
    payload_bytes: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, log: _Optional[int] = ..., position: _Optional[int] = ..., next: _Optional[int] = ..., unknown: bool = ..., payload_bytes: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class KeepRows(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KeptEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[KeptEntry, _Mapping]]] = ...) -> None: ...

class KeptEntry(_message.Message):
    __slots__ = ("variable", "part", "rows")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    variable: str
    part: int
    rows: int
    def __init__(self, variable: _Optional[str] = ..., part: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class ReadKeptRows(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class KeptRows(_message.Message):
    __slots__ = ("payload_bytes", "error")
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    payload_bytes: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, payload_bytes: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class LayoutEntry(_message.Message):
    __slots__ = ("variable", "part", "operation", "encoding", "dtype", "decay")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    variable: str
    part: int
    operation: Operation
    encoding: Encoding
    dtype: _common_pb2.DType
    decay: float
    def __init__(self, variable: _Optional[str] = ..., part: _Optional[int] = ..., operation: _Optional[_Union[Operation, str]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., dtype: _Optional[_Union[_common_pb2.DType, str]] = ..., decay: _Optional[float] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("layout_id", "entries")
    LAYOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    layout_id: int
    entries: _containers.RepeatedCompositeFieldContainer[LayoutEntry]
    def __init__(self, layout_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LayoutEntry, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("request_id", "sequence", "push_layout", "pull_layout", "push_rows", "pull_rows", "payload_bytes", "global_step", "step_increment", "gradient_scale", "payload_in_segment", "direct_bytes", "known_request", "early_reply", "hyperparameters", "closure", "answer_room", "segment", "advance_row", "advance_to", "settle_row", "settle_to", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUSH_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PULL_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PUSH_ROWS_FIELD_NUMBER: _ClassVar[int]
    PULL_ROWS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_INCREMENT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_IN_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DIRECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EARLY_REPLY_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_ROOM_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_ROW_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_TO_FIELD_NUMBER: _ClassVar[int]
    SETTLE_ROW_FIELD_NUMBER: _ClassVar[int]
    SETTLE_TO_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    sequence: int
    push_layout: int
    pull_layout: int
    push_rows: _containers.RepeatedScalarFieldContainer[int]
    pull_rows: _containers.RepeatedScalarFieldContainer[int]
    payload_bytes: int
    global_step: int
    step_increment: int
    gradient_scale: float
    payload_in_segment: bool
    direct_bytes: int
    known_request: int
    early_reply: bool
    hyperparameters: _struct_pb2.Struct
    closure: ClosureRun
    answer_room: int
    segment: int
    advance_row: int
    advance_to: int
    settle_row: int
    settle_to: int
    trace: bytes
    def __init__(self, request_id: _Optional[int] = ..., sequence: _Optional[int] = ..., push_layout: _Optional[int] = ..., pull_layout: _Optional[int] = ..., push_rows: _Optional[_Iterable[int]] = ..., pull_rows: _Optional[_Iterable[int]] = ..., payload_bytes: _Optional[int] = ..., global_step: _Optional[int] = ..., step_increment: _Optional[int] = ..., gradient_scale: _Optional[float] = ..., payload_in_segment: bool = ..., direct_bytes: _Optional[int] = ..., known_request: _Optional[int] = ..., early_reply: bool = ..., hyperparameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., closure: _Optional[_Union[ClosureRun, _Mapping]] = ..., answer_room: _Optional[int] = ..., segment: _Optional[int] = ..., advance_row: _Optional[int] = ..., advance_to: _Optional[int] = ..., settle_row: _Optional[int] = ..., settle_to: _Optional[int] = ..., trace: _Optional[bytes] = ...) -> None: ...

class ClosureRun(_message.Message):
    __slots__ = ("coordinator", "lane", "turn", "attempt", "oldest_attempt")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    lane: int
    turn: int
    attempt: int
    oldest_attempt: int
    def __init__(self, coordinator: _Optional[int] = ..., lane: _Optional[int] = ..., turn: _Optional[int] = ..., attempt: _Optional[int] = ..., oldest_attempt: _Optional[int] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("request_id", "payload_bytes", "global_step", "staleness", "duplicate", "error", "changed", "outcome_follows", "values_in_segment")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    VALUES_IN_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    payload_bytes: int
    global_step: int
    staleness: int
    duplicate: bool
    error: _errors_pb2.ErrorDetail
    changed: bytes
    outcome_follows: bool
    values_in_segment: bool
    def __init__(self, request_id: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., global_step: _Optional[int] = ..., staleness: _Optional[int] = ..., duplicate: bool = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., changed: _Optional[bytes] = ..., outcome_follows: bool = ..., values_in_segment: bool = ...) -> None: ...

class DefineFunction(_message.Message):
    __slots__ = ("id", "part_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    part_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., part_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class MakeResource(_message.Message):
    __slots__ = ("id", "function", "iterates")
    ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ITERATES_FIELD_NUMBER: _ClassVar[int]
    id: int
    function: int
    iterates: int
    def __init__(self, id: _Optional[int] = ..., function: _Optional[int] = ..., iterates: _Optional[int] = ...) -> None: ...

class RunClosure(_message.Message):
    __slots__ = ("id", "attempt", "function", "part_bytes", "run", "deadline_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    function: int
    part_bytes: _containers.RepeatedScalarFieldContainer[int]
    run: ClosureRun
    deadline_s: float
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., function: _Optional[int] = ..., part_bytes: _Optional[_Iterable[int]] = ..., run: _Optional[_Union[ClosureRun, _Mapping]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class ChangeOptimizer(_message.Message):
    __slots__ = ("id", "part_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    part_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., part_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class ForgetThings(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ClosureAnswer(_message.Message):
    __slots__ = ("id", "attempt", "structure", "part_bytes", "failure", "began")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    structure: bytes
    part_bytes: _containers.RepeatedScalarFieldContainer[int]
    failure: ClosureFailure
    began: bool
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., structure: _Optional[bytes] = ..., part_bytes: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[ClosureFailure, _Mapping]] = ..., began: bool = ...) -> None: ...

class ClosureFailure(_message.Message):
    __slots__ = ("type", "message", "traceback", "detail")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    traceback: str
    detail: _errors_pb2.ErrorDetail
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., detail: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...
