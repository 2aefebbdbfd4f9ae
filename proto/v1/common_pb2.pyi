from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    D_TYPE_UNSPECIFIED: _ClassVar[DType]
    D_TYPE_FLOAT32: _ClassVar[DType]
    D_TYPE_FLOAT64: _ClassVar[DType]
    D_TYPE_FLOAT16: _ClassVar[DType]
    D_TYPE_BFLOAT16: _ClassVar[DType]
    D_TYPE_INT8: _ClassVar[DType]
    D_TYPE_INT16: _ClassVar[DType]
    D_TYPE_INT32: _ClassVar[DType]
    D_TYPE_INT64: _ClassVar[DType]
    D_TYPE_UINT8: _ClassVar[DType]
    D_TYPE_UINT16: _ClassVar[DType]
    D_TYPE_UINT32: _ClassVar[DType]
    D_TYPE_UINT64: _ClassVar[DType]
    D_TYPE_BOOL: _ClassVar[DType]

class JobPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_PHASE_UNSPECIFIED: _ClassVar[JobPhase]
    JOB_PHASE_RUNNING: _ClassVar[JobPhase]
    JOB_PHASE_STOPPING: _ClassVar[JobPhase]
    JOB_PHASE_DONE: _ClassVar[JobPhase]
    JOB_PHASE_STOPPED: _ClassVar[JobPhase]
    JOB_PHASE_FAILED: _ClassVar[JobPhase]
D_TYPE_UNSPECIFIED: DType
D_TYPE_FLOAT32: DType
D_TYPE_FLOAT64: DType
D_TYPE_FLOAT16: DType
D_TYPE_BFLOAT16: DType
D_TYPE_INT8: DType
D_TYPE_INT16: DType
D_TYPE_INT32: DType
D_TYPE_INT64: DType
D_TYPE_UINT8: DType
D_TYPE_UINT16: DType
D_TYPE_UINT32: DType
D_TYPE_UINT64: DType
D_TYPE_BOOL: DType
JOB_PHASE_UNSPECIFIED: JobPhase
JOB_PHASE_RUNNING: JobPhase
JOB_PHASE_STOPPING: JobPhase
JOB_PHASE_DONE: JobPhase
JOB_PHASE_STOPPED: JobPhase
JOB_PHASE_FAILED: JobPhase

class Task(_message.Message):
    __slots__ = ("type", "index")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    type: str
    index: int
    def __init__(self, type: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Incarnation(_message.Message):
    __slots__ = ("task", "generation", "job")
    TASK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    task: Task
    generation: int
    job: str
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., generation: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class Versions(_message.Message):
    __slots__ = ("protocol", "ropewalk", "python", "numpy")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROPEWALK_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    NUMPY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    ropewalk: str
    python: str
    numpy: str
    def __init__(self, protocol: _Optional[int] = ..., ropewalk: _Optional[str] = ..., python: _Optional[str] = ..., numpy: _Optional[str] = ...) -> None: ...

class ProcessUsage(_message.Message):
    __slots__ = ("memory_bytes", "memory_limit_bytes", "memory_left_bytes", "cpu_s", "cores", "machine_cpus", "machine_cores", "steal", "cpu_pressure", "memory_pressure", "gpus", "machine")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MACHINE_CPUS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_CORES_FIELD_NUMBER: _ClassVar[int]
    STEAL_FIELD_NUMBER: _ClassVar[int]
    CPU_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    memory_limit_bytes: int
    memory_left_bytes: int
    cpu_s: float
    cores: float
    machine_cpus: int
    machine_cores: float
    steal: float
    cpu_pressure: float
    memory_pressure: float
    gpus: _containers.RepeatedCompositeFieldContainer[GpuUsage]
    machine: str
    def __init__(self, memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., memory_left_bytes: _Optional[int] = ..., cpu_s: _Optional[float] = ..., cores: _Optional[float] = ..., machine_cpus: _Optional[int] = ..., machine_cores: _Optional[float] = ..., steal: _Optional[float] = ..., cpu_pressure: _Optional[float] = ..., memory_pressure: _Optional[float] = ..., gpus: _Optional[_Iterable[_Union[GpuUsage, _Mapping]]] = ..., machine: _Optional[str] = ...) -> None: ...

class GpuUsage(_message.Message):
    __slots__ = ("name", "busy", "own_bytes", "used_bytes", "total_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    OWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy: float
    own_bytes: int
    used_bytes: int
    total_bytes: int
    def __init__(self, name: _Optional[str] = ..., busy: _Optional[float] = ..., own_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...
