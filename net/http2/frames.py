"""Frames of HTTP/2 as bytes. Pure.

Source: RFC 9113, sections 4 to 7.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
DEFAULT_FRAME_BYTES = 16_384
LARGEST_FRAME_BYTES = 2**24 - 1

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

_HEAD = struct.Struct(">BHBBI")
_STREAM_BITS = 0x7FFF_FFFF


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Parameters of a connection."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(ConnectionError):
    """The peer breaks the protocol, or asks for too much: the connection ends.

    Attributes:
        code: Code that the peer is told.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameHead(NamedTuple):
    """The first nine bytes of a frame.

    Attributes:
        length: Payload, in bytes.
        kind: Type of the frame; an unknown one is to be ignored.
        flags: Flags, whose meaning depends on the type.
        stream: Number of the stream that it is for; 0: the connection.
    """

    length: int
    kind: int
    flags: int
    stream: int


def read_head(data: bytes | memoryview, at: int) -> FrameHead:
    """Read the head of the frame that begins at an offset."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return FrameHead(high << 16 | low, kind, flags, stream & _STREAM_BITS)


def head(length: int, kind: Kind, flags: int, stream: int) -> bytes:
    """Make the head of a frame with ``length`` bytes of payload."""
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Make a whole frame."""
    return head(len(payload), kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """Make a SETTINGS frame."""
    payload = b"".join(struct.pack(">HI", key, value) for key, value in values.items())
    return frame(Kind.SETTINGS, 0, 0, payload)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Read the parameters of a SETTINGS frame, in their order.

    Raises:
        Http2Error: Its size is wrong.
    """
    if len(payload) % 6:
        raise Http2Error(Code.FRAME_SIZE_ERROR, f"a SETTINGS frame has {len(payload)} bytes")
    return list(struct.iter_unpack(">HI", payload))


def window_update(stream: int, increment: int) -> bytes:
    """Make a WINDOW_UPDATE frame; the increment is in bytes."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, increment.to_bytes(4))


def reset(stream: int, code: Code) -> bytes:
    """Make a RST_STREAM frame."""
    return frame(Kind.RST_STREAM, 0, stream, int(code).to_bytes(4))


def go_away(last_stream: int, code: Code) -> bytes:
    """Make a GOAWAY frame: streams with numbers above ``last_stream`` are not served."""
    return frame(Kind.GOAWAY, 0, 0, last_stream.to_bytes(4) + int(code).to_bytes(4))


def read_number(payload: bytes, kind: Kind) -> int:
    """Read the number that is the whole payload of a RST_STREAM or WINDOW_UPDATE frame.

    Raises:
        Http2Error: Its size is wrong.
    """
    if len(payload) != 4:
        raise Http2Error(Code.FRAME_SIZE_ERROR, f"a {kind.name} frame has {len(payload)} bytes")
    return int.from_bytes(payload) & _STREAM_BITS


def header_block(flags: int, payload: bytes) -> bytes:
    """Read the compressed fields of a HEADERS frame, without padding and priority.

    Raises:
        Http2Error: The padding is longer than the frame.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - (payload[0] if payload else 0)
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise Http2Error(Code.PROTOCOL_ERROR, "the padding of a frame is longer than the frame")
    return payload[start:end]
