from . import common_pb2 as _common_pb2
from . import errors_pb2 as _errors_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RingPlace(_message.Message):
    __slots__ = ("ring", "rank", "size", "life")
    RING_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ring: int
    rank: int
    size: int
    life: int
    def __init__(self, ring: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class JoinRingRequest(_message.Message):
    __slots__ = ("place", "versions")
    FROM_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    place: RingPlace
    versions: _common_pb2.Versions
    def __init__(self, place: _Optional[_Union[RingPlace, _Mapping]] = ..., versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., **kwargs) -> None: ...

class JoinRingResponse(_message.Message):
    __slots__ = ("versions", "local_socket", "session_port", "ticket")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SOCKET_FIELD_NUMBER: _ClassVar[int]
    SESSION_PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    versions: _common_pb2.Versions
    local_socket: str
    session_port: int
    ticket: bytes
    def __init__(self, versions: _Optional[_Union[_common_pb2.Versions, _Mapping]] = ..., local_socket: _Optional[str] = ..., session_port: _Optional[int] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class LinkFrame(_message.Message):
    __slots__ = ("hello", "head", "payload")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    hello: RingPlace
    head: bytes
    payload: bytes
    def __init__(self, hello: _Optional[_Union[RingPlace, _Mapping]] = ..., head: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

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
