from . import common_pb2 as _common_pb2
from . import ps_pb2 as _ps_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_DONE: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_LEFT: _ClassVar[Outcome]

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_MISSING: _ClassVar[TaskState]
    TASK_STATE_ALIVE: _ClassVar[TaskState]
    TASK_STATE_LOST: _ClassVar[TaskState]
    TASK_STATE_DONE: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
    TASK_STATE_LEFT: _ClassVar[TaskState]

class MovePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_PHASE_UNSPECIFIED: _ClassVar[MovePhase]
    MOVE_PHASE_COPYING: _ClassVar[MovePhase]
    MOVE_PHASE_HANDING_OVER: _ClassVar[MovePhase]
    MOVE_PHASE_DONE: _ClassVar[MovePhase]
    MOVE_PHASE_FAILED: _ClassVar[MovePhase]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_DONE: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_LEFT: Outcome
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_MISSING: TaskState
TASK_STATE_ALIVE: TaskState
TASK_STATE_LOST: TaskState
TASK_STATE_DONE: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_LEFT: TaskState
MOVE_PHASE_UNSPECIFIED: MovePhase
MOVE_PHASE_COPYING: MovePhase
MOVE_PHASE_HANDING_OVER: MovePhase
MOVE_PHASE_DONE: MovePhase
MOVE_PHASE_FAILED: MovePhase

class TaskReport(_message.Message):
    __slots__ = ("steps", "pushes", "bytes_pushed", "bytes_pulled", "refused_pushes", "global_step", "staleness", "metrics", "total_steps", "transports", "replicas", "serves", "step_parts", "usage")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PULLED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PUSHES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    STEP_PARTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    steps: int
    pushes: int
    bytes_pushed: int
    bytes_pulled: int
    refused_pushes: int
    global_step: int
    staleness: float
    metrics: _containers.ScalarMap[str, float]
    total_steps: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    replicas: int
    serves: bool
    step_parts: _containers.RepeatedCompositeFieldContainer[StepPart]
    usage: _common_pb2.ProcessUsage
    def __init__(self, steps: _Optional[int] = ..., pushes: _Optional[int] = ..., bytes_pushed: _Optional[int] = ..., bytes_pulled: _Optional[int] = ..., refused_pushes: _Optional[int] = ..., global_step: _Optional[int] = ..., staleness: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., total_steps: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., replicas: _Optional[int] = ..., serves: bool = ..., step_parts: _Optional[_Iterable[_Union[StepPart, _Mapping]]] = ..., usage: _Optional[_Union[_common_pb2.ProcessUsage, _Mapping]] = ...) -> None: ...

class StepPart(_message.Message):
    __slots__ = ("name", "seconds", "buckets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("task", "address", "versions", "pid", "host", "job", "serves")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    address: str
    versions: _common_pb2.Versions
    pid: int
    host: str
    job: str
    serves: bool
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., address: _Optional[str] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., job: _Optional[str] = ..., serves: bool = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("generation", "heartbeat_s", "phase", "versions", "reason", "job", "held")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    generation: int
    heartbeat_s: float
    phase: _common_pb2.JobPhase
    versions: _common_pb2.Versions
    reason: str
    job: str
    held: bool
    def __init__(self, generation: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., reason: _Optional[str] = ..., job: _Optional[str] = ..., held: bool = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("report", "knows", "trace")
    FROM_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    KNOWS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    report: TaskReport
    knows: _common_pb2.JobPhase
    trace: bytes
    def __init__(self, report: _Optional[_Union[TaskReport, _Mapping]] = ..., knows: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., trace: _Optional[bytes] = ..., **kwargs) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("phase", "reason", "cut", "held", "questions")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    phase: _common_pb2.JobPhase
    reason: str
    cut: int
    held: bool
    questions: _containers.RepeatedCompositeFieldContainer[Question]
    def __init__(self, phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., reason: _Optional[str] = ..., cut: _Optional[int] = ..., held: bool = ..., questions: _Optional[_Iterable[_Union[Question, _Mapping]]] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("outcome", "message", "report", "exit_code")
    FROM_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    message: str
    report: TaskReport
    exit_code: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., message: _Optional[str] = ..., report: _Optional[_Union[TaskReport, _Mapping]] = ..., exit_code: _Optional[int] = ..., **kwargs) -> None: ...

class FinishResponse(_message.Message):
    __slots__ = ("phase", "reason")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    phase: _common_pb2.JobPhase
    reason: str
    def __init__(self, phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ArriveRequest(_message.Message):
    __slots__ = ("call",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: int
    def __init__(self, call: _Optional[int] = ..., **kwargs) -> None: ...

class ArriveResponse(_message.Message):
    __slots__ = ("missing", "finished")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    finished: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, missing: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopJobResponse(_message.Message):
    __slots__ = ("phase",)
    PHASE_FIELD_NUMBER: _ClassVar[int]
    phase: _common_pb2.JobPhase
    def __init__(self, phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "state", "since_s", "address", "detail", "generation", "report", "counters", "pid", "host")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    state: TaskState
    since_s: float
    address: str
    detail: str
    generation: int
    report: TaskReport
    counters: _ps_pb2.PsCounters
    pid: int
    host: str
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., since_s: _Optional[float] = ..., address: _Optional[str] = ..., detail: _Optional[str] = ..., generation: _Optional[int] = ..., report: _Optional[_Union[TaskReport, _Mapping]] = ..., counters: _Optional[_Union[_ps_pb2.PsCounters, _Mapping]] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("phase", "reason", "since_s", "global_step", "total_steps", "tasks", "last_checkpoint", "last_checkpoint_step", "versions", "security", "shares", "ps_replicas", "failovers", "begins_with", "move", "wanted_ps", "handovers", "last_failover_s", "cuts", "findings", "ledgers")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    PS_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    FAILOVERS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_WITH_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    WANTED_PS_FIELD_NUMBER: _ClassVar[int]
    HANDOVERS_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILOVER_S_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    phase: _common_pb2.JobPhase
    reason: str
    since_s: float
    global_step: int
    total_steps: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    last_checkpoint: str
    last_checkpoint_step: int
    versions: _common_pb2.Versions
    security: str
    shares: _containers.RepeatedCompositeFieldContainer[ShareLeader]
    ps_replicas: int
    failovers: int
    begins_with: str
    move: ShareMove
    wanted_ps: int
    handovers: int
    last_failover_s: float
    cuts: CutCounts
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerStatus]
    def __init__(self, phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., reason: _Optional[str] = ..., since_s: _Optional[float] = ..., global_step: _Optional[int] = ..., total_steps: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., last_checkpoint: _Optional[str] = ..., last_checkpoint_step: _Optional[int] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., security: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[ShareLeader, _Mapping]]] = ..., ps_replicas: _Optional[int] = ..., failovers: _Optional[int] = ..., begins_with: _Optional[str] = ..., move: _Optional[_Union[ShareMove, _Mapping]] = ..., wanted_ps: _Optional[int] = ..., handovers: _Optional[int] = ..., last_failover_s: _Optional[float] = ..., cuts: _Optional[_Union[CutCounts, _Mapping]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., ledgers: _Optional[_Iterable[_Union[LedgerStatus, _Mapping]]] = ...) -> None: ...

class LedgerStatus(_message.Message):
    __slots__ = ("name", "epoch", "ranges", "done", "leased")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    ranges: int
    done: int
    leased: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., ranges: _Optional[int] = ..., done: _Optional[int] = ..., leased: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("kind", "subject", "text", "numbers")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    subject: str
    text: str
    numbers: _containers.ScalarMap[str, float]
    def __init__(self, kind: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., numbers: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: float
    def __init__(self, since: _Optional[float] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("names", "samples", "events")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    samples: _containers.RepeatedCompositeFieldContainer[HistorySample]
    events: _containers.RepeatedCompositeFieldContainer[HistoryEvent]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., samples: _Optional[_Iterable[_Union[HistorySample, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[HistoryEvent, _Mapping]]] = ...) -> None: ...

class HistoryEvent(_message.Message):
    __slots__ = ("at", "name", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    at: float
    name: str
    fields: _containers.ScalarMap[str, str]
    def __init__(self, at: _Optional[float] = ..., name: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HistorySample(_message.Message):
    __slots__ = ("at", "seconds", "values")
    AT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    at: float
    seconds: float
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, at: _Optional[float] = ..., seconds: _Optional[float] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class CutCounts(_message.Message):
    __slots__ = ("taken", "void", "last_s", "last_void")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    LAST_S_FIELD_NUMBER: _ClassVar[int]
    LAST_VOID_FIELD_NUMBER: _ClassVar[int]
    taken: int
    void: int
    last_s: float
    last_void: str
    def __init__(self, taken: _Optional[int] = ..., void: _Optional[int] = ..., last_s: _Optional[float] = ..., last_void: _Optional[str] = ...) -> None: ...

class MoveShareRequest(_message.Message):
    __slots__ = ("share", "to")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    share: int
    to: _common_pb2.Task
    def __init__(self, share: _Optional[int] = ..., to: _Optional[_Union[_common_pb2.Task, _Mapping]] = ...) -> None: ...

class MoveShareResponse(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: ShareMove
    def __init__(self, move: _Optional[_Union[ShareMove, _Mapping]] = ...) -> None: ...

class ShareMove(_message.Message):
    __slots__ = ("number", "share", "source", "to", "phase", "reason", "copied_bytes", "total_bytes", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    share: int
    source: _common_pb2.Task
    to: _common_pb2.Task
    phase: MovePhase
    reason: str
    copied_bytes: int
    total_bytes: int
    seconds: float
    def __init__(self, number: _Optional[int] = ..., share: _Optional[int] = ..., source: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., to: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., phase: _Optional[_Union[MovePhase, str]] = ..., reason: _Optional[str] = ..., copied_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class JoinPsRequest(_message.Message):
    __slots__ = ("task", "address", "job", "versions")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    address: str
    job: str
    versions: _common_pb2.Versions
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., address: _Optional[str] = ..., job: _Optional[str] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ...) -> None: ...

class JoinPsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _common_pb2.Versions
    def __init__(self, versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ...) -> None: ...

class ScalePsRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class ScalePsResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class WatchLeadersRequest(_message.Message):
    __slots__ = ("seen",)
    SEEN_FIELD_NUMBER: _ClassVar[int]
    seen: int
    def __init__(self, seen: _Optional[int] = ...) -> None: ...

class WatchLeadersResponse(_message.Message):
    __slots__ = ("changes", "leaders", "shares")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    changes: int
    leaders: _containers.RepeatedCompositeFieldContainer[ShareLeader]
    shares: int
    def __init__(self, changes: _Optional[int] = ..., leaders: _Optional[_Iterable[_Union[ShareLeader, _Mapping]]] = ..., shares: _Optional[int] = ...) -> None: ...

class ShareLeader(_message.Message):
    __slots__ = ("share", "epoch", "leader", "address", "followers")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    share: int
    epoch: int
    leader: _common_pb2.Task
    address: str
    followers: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, share: _Optional[int] = ..., epoch: _Optional[int] = ..., leader: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., address: _Optional[str] = ..., followers: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class JoinCutRequest(_message.Message):
    __slots__ = ("cut",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ..., **kwargs) -> None: ...

class JoinCutResponse(_message.Message):
    __slots__ = ("marks", "again_s")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_S_FIELD_NUMBER: _ClassVar[int]
    marks: bool
    again_s: float
    def __init__(self, marks: bool = ..., again_s: _Optional[float] = ...) -> None: ...

class TakeCutRequest(_message.Message):
    __slots__ = ("rows_only",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    ROWS_ONLY_FIELD_NUMBER: _ClassVar[int]
    rows_only: bool
    def __init__(self, rows_only: bool = ..., **kwargs) -> None: ...

class TakeCutResponse(_message.Message):
    __slots__ = ("cut", "global_step", "marks")
    CUT_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    cut: int
    global_step: int
    marks: _containers.RepeatedCompositeFieldContainer[_ps_pb2.CutMark]
    def __init__(self, cut: _Optional[int] = ..., global_step: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[_ps_pb2.CutMark, _Mapping]]] = ...) -> None: ...

class ReleaseCutRequest(_message.Message):
    __slots__ = ("cut",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ..., **kwargs) -> None: ...

class ReleaseCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Question(_message.Message):
    __slots__ = ("number", "kind", "argument", "tasks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    argument: str
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., argument: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class AskTasksRequest(_message.Message):
    __slots__ = ("kind", "argument", "tasks")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    argument: str
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, kind: _Optional[str] = ..., argument: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class AskTasksResponse(_message.Message):
    __slots__ = ("number", "tasks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, number: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class GetAnswersRequest(_message.Message):
    __slots__ = ("number", "seen")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    seen: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, number: _Optional[int] = ..., seen: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class GetAnswersResponse(_message.Message):
    __slots__ = ("answers", "missing")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[TaskAnswer]
    missing: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, answers: _Optional[_Iterable[_Union[TaskAnswer, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...

class TaskAnswer(_message.Message):
    __slots__ = ("task", "answer", "error")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    answer: bytes
    error: str
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., answer: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class AnswerQuestionRequest(_message.Message):
    __slots__ = ("number", "answer", "error")
    FROM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    answer: bytes
    error: str
    def __init__(self, number: _Optional[int] = ..., answer: _Optional[bytes] = ..., error: _Optional[str] = ..., **kwargs) -> None: ...

class AnswerQuestionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRangeRequest(_message.Message):
    __slots__ = ("ledger", "plan", "ranges", "epoch", "done", "held", "given_back", "takes", "progress")
    FROM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    TAKES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ledger: str
    plan: _containers.RepeatedScalarFieldContainer[int]
    ranges: int
    epoch: int
    done: _containers.RepeatedCompositeFieldContainer[LeasedRange]
    held: _containers.RepeatedCompositeFieldContainer[LeasedRange]
    given_back: _containers.RepeatedCompositeFieldContainer[LeasedRange]
    takes: bool
    progress: LedgerProgress
    def __init__(self, ledger: _Optional[str] = ..., plan: _Optional[_Iterable[int]] = ..., ranges: _Optional[int] = ..., epoch: _Optional[int] = ..., done: _Optional[_Iterable[_Union[LeasedRange, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[LeasedRange, _Mapping]]] = ..., given_back: _Optional[_Iterable[_Union[LeasedRange, _Mapping]]] = ..., takes: bool = ..., progress: _Optional[_Union[LedgerProgress, _Mapping]] = ..., **kwargs) -> None: ...

class LeasedRange(_message.Message):
    __slots__ = ("epoch", "number")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class LedgerProgress(_message.Message):
    __slots__ = ("epoch", "done", "begun")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    done: bytes
    begun: bytes
    def __init__(self, epoch: _Optional[int] = ..., done: _Optional[bytes] = ..., begun: _Optional[bytes] = ...) -> None: ...

class LeaseRangeResponse(_message.Message):
    __slots__ = ("range", "over", "tell", "wait", "begun")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    TELL_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    range: LeasedRange
    over: bool
    tell: bool
    wait: Holders
    begun: bool
    def __init__(self, range: _Optional[_Union[LeasedRange, _Mapping]] = ..., over: bool = ..., tell: bool = ..., wait: _Optional[_Union[Holders, _Mapping]] = ..., begun: bool = ...) -> None: ...

class Holders(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ...) -> None: ...
