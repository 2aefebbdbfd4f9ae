from . import common_pb2 as _common_pb2
from . import errors_pb2 as _errors_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProbeRequest(_message.Message):
    __slots__ = ("ring",)
    RING_FIELD_NUMBER: _ClassVar[int]
    ring: int
    def __init__(self, ring: _Optional[int] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("task", "calls", "doing", "waiting", "failure")
    TASK_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    calls: int
    doing: str
    waiting: bool
    failure: _errors_pb2.ErrorDetail
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., calls: _Optional[int] = ..., doing: _Optional[str] = ..., waiting: bool = ..., failure: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...
