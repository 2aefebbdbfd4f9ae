from . import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PollRequest(_message.Message):
    __slots__ = ("node", "instance", "host", "ports", "events", "first_event", "orders_taken", "wait_s", "versions", "running", "has_own_index", "gpus")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_EVENT_FIELD_NUMBER: _ClassVar[int]
    ORDERS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    HAS_OWN_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    node: _common_pb2.Task
    instance: str
    host: str
    ports: _containers.RepeatedScalarFieldContainer[int]
    events: _containers.RepeatedCompositeFieldContainer[TaskEvent]
    first_event: int
    orders_taken: int
    wait_s: float
    versions: _common_pb2.Versions
    running: RunningTasks
    has_own_index: bool
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., instance: _Optional[str] = ..., host: _Optional[str] = ..., ports: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[_Union[TaskEvent, _Mapping]]] = ..., first_event: _Optional[int] = ..., orders_taken: _Optional[int] = ..., wait_s: _Optional[float] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., running: _Optional[_Union[RunningTasks, _Mapping]] = ..., has_own_index: bool = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class RunningTasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[RunningTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[RunningTask, _Mapping]]] = ...) -> None: ...

class RunningTask(_message.Message):
    __slots__ = ("job", "task")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: _common_pb2.Task
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("orders", "events_taken", "gateway", "waits_for")
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    events_taken: int
    gateway: str
    waits_for: str
    def __init__(self, orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., events_taken: _Optional[int] = ..., gateway: _Optional[str] = ..., waits_for: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("number", "start", "stop")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    number: int
    start: StartTask
    stop: StopTask
    def __init__(self, number: _Optional[int] = ..., start: _Optional[_Union[StartTask, _Mapping]] = ..., stop: _Optional[_Union[StopTask, _Mapping]] = ...) -> None: ...

class StartTask(_message.Message):
    __slots__ = ("job", "task", "attempt", "tf_config", "digest", "command", "settings", "gpus")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TF_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: _common_pb2.Task
    attempt: int
    tf_config: str
    digest: str
    command: _containers.RepeatedScalarFieldContainer[str]
    settings: _containers.ScalarMap[str, str]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., attempt: _Optional[int] = ..., tf_config: _Optional[str] = ..., digest: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., settings: _Optional[_Mapping[str, str]] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class StopTask(_message.Message):
    __slots__ = ("job", "task", "kill")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: _common_pb2.Task
    kill: bool
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., kill: bool = ...) -> None: ...

class TaskEvent(_message.Message):
    __slots__ = ("job", "task", "line", "exit_code", "attempt")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: _common_pb2.Task
    line: LogLine
    exit_code: int
    attempt: int
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., line: _Optional[_Union[LogLine, _Mapping]] = ..., exit_code: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("task", "text", "is_error")
    TASK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    text: str
    is_error: bool
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., text: _Optional[str] = ..., is_error: bool = ...) -> None: ...

class GetPackageRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class PackagePiece(_message.Message):
    __slots__ = ("digest", "offset", "data", "total")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    data: bytes
    total: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., total: _Optional[int] = ...) -> None: ...

class PutPackageResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: int
    def __init__(self, held: _Optional[int] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("id", "name", "digest", "program", "arguments", "workers", "ps", "coordinator", "detached", "grace_s", "settings", "environment", "model", "gpus_per_worker")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_WORKER_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    digest: str
    program: _containers.RepeatedScalarFieldContainer[str]
    arguments: _containers.RepeatedScalarFieldContainer[str]
    workers: int
    ps: int
    coordinator: bool
    detached: bool
    grace_s: float
    settings: _containers.ScalarMap[str, str]
    environment: _containers.ScalarMap[str, str]
    model: str
    gpus_per_worker: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., program: _Optional[_Iterable[str]] = ..., arguments: _Optional[_Iterable[str]] = ..., workers: _Optional[int] = ..., ps: _Optional[int] = ..., coordinator: bool = ..., detached: bool = ..., grace_s: _Optional[float] = ..., settings: _Optional[_Mapping[str, str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., model: _Optional[str] = ..., gpus_per_worker: _Optional[int] = ...) -> None: ...

class JobTask(_message.Message):
    __slots__ = ("task", "node", "address", "has_ended", "exit_code", "gpus")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    node: _common_pb2.Task
    address: str
    has_ended: bool
    exit_code: int
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., node: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., address: _Optional[str] = ..., has_ended: bool = ..., exit_code: _Optional[int] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("id", "name", "state", "reason", "exit_code", "submitted", "started", "ended", "tasks", "cluster", "owner", "detached", "digest", "program", "warnings", "model_dir")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    state: str
    reason: str
    exit_code: int
    submitted: float
    started: float
    ended: float
    tasks: _containers.RepeatedCompositeFieldContainer[JobTask]
    cluster: str
    owner: str
    detached: bool
    digest: str
    program: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    model_dir: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., submitted: _Optional[float] = ..., started: _Optional[float] = ..., ended: _Optional[float] = ..., tasks: _Optional[_Iterable[_Union[JobTask, _Mapping]]] = ..., cluster: _Optional[str] = ..., owner: _Optional[str] = ..., detached: bool = ..., digest: _Optional[str] = ..., program: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., model_dir: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "nodes")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("task", "host", "is_lost", "running", "gpus")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    host: str
    is_lost: bool
    running: int
    gpus: int
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., host: _Optional[str] = ..., is_lost: bool = ..., running: _Optional[int] = ..., gpus: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("job", "offset", "wait_s", "drives")
    JOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DRIVES_FIELD_NUMBER: _ClassVar[int]
    job: str
    offset: int
    wait_s: float
    drives: bool
    def __init__(self, job: _Optional[str] = ..., offset: _Optional[int] = ..., wait_s: _Optional[float] = ..., drives: bool = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("lines", "offset", "job", "dropped")
    LINES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    offset: int
    job: JobInfo
    dropped: int
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., offset: _Optional[int] = ..., job: _Optional[_Union[JobInfo, _Mapping]] = ..., dropped: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("job", "reason", "kill")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    job: str
    reason: str
    kill: bool
    def __init__(self, job: _Optional[str] = ..., reason: _Optional[str] = ..., kill: bool = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("job", "ps")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    job: str
    ps: int
    def __init__(self, job: _Optional[str] = ..., ps: _Optional[int] = ...) -> None: ...

class OpenRouteRequest(_message.Message):
    __slots__ = ("job", "destination")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    destination: _common_pb2.Task
    def __init__(self, job: _Optional[str] = ..., destination: _Optional[_Union[_common_pb2.Task, _Mapping]] = ...) -> None: ...

class OpenRouteResponse(_message.Message):
    __slots__ = ("ticket", "address")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    address: str
    def __init__(self, ticket: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...
