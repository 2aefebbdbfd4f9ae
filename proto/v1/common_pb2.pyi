from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

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
