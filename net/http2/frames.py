"""Frames of HTTP/2: as bytes, their compressed fields, and taking them out of the bytes of a
connection. Pure.

Payloads of DATA frames are passed on as they come, so a frame of megabytes needs no memory of its
own; all other frames are short, and are collected first. What is sent is never put into the dynamic
table of fields, so blocks can be made by any thread and sent in any order.

Source: RFC 9113, sections 4 to 7.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

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

Buffer = bytes | memoryview

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


Fields = list[tuple[str, str]]

_ENCODER = Encoder()  # without a dynamic table it has no state


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode fields as a header block."""
    return bytes(
        _ENCODER.encode([NeverIndexedHeaderTuple(*pair) for pair in fields], huffman=False)
    )


def fields_frames(number: int, fields: Fields, most_bytes: int, *, end: bool) -> bytes:
    """Make the frames of a block of fields, to be sent in one piece.

    Args:
        number: The stream's.
        fields: Names and values.
        most_bytes: Largest payload of one frame.
        end: Whether this side of the stream ends with them.
    """
    block = encode_fields(fields)
    pieces = [block[at : at + most_bytes] for at in range(0, len(block), most_bytes)]
    kinds = [Kind.HEADERS] + [Kind.CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [END_HEADERS]
    flags[0] |= END_STREAM if end else 0
    return b"".join(
        frame(kind, flag, number, piece)
        for kind, flag, piece in zip(kinds, flags, pieces, strict=True)
    )


class FieldsDecoder:
    """Reads the header blocks of one connection, in their order.

    Args:
        most_bytes: Longest block: bytes of names and values, and 32 for each field.
    """

    def __init__(self, most_bytes: int) -> None:
        self._decoder = Decoder(most_bytes)

    def read(self, block: bytes) -> Fields:
        """Decode the fields of a block.

        Raises:
            Http2Error: It cannot be decoded, or is too long.
        """
        try:
            pairs = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Http2Error(Code.COMPRESSION_ERROR, f"fields cannot be read: {error}") from error
        return [(_text(name), _text(value)) for name, value in pairs]


def _text(data: bytes) -> str:
    return bytes(data).decode("latin-1")


_MOST_CONTROL_BYTES = 32 * 1024  # one frame that is not DATA
_NAMES = {int(kind): kind.name for kind in Kind}


class FrameSink(Protocol):
    """Handles the frames of a connection."""

    def on_control(self, head: FrameHead, payload: bytes) -> None:
        """Handle a whole frame that is not DATA."""
        ...

    def on_data_begin(self, head: FrameHead) -> None:
        """Handle the beginning of a DATA frame; its length counts against the windows."""
        ...

    def on_data(self, piece: memoryview) -> None:
        """Handle some bytes of a DATA frame, without padding."""
        ...

    def on_data_end(self) -> None:
        """Handle the end of a DATA frame."""
        ...


class FrameReader:
    """Takes frames out of bytes.

    Args:
        sink: Handles them.
        largest_frame_bytes: The limit that the peer was told.

    Attributes:
        data_left: Bytes of the current DATA frame that are still to come.
    """

    def __init__(self, sink: FrameSink, largest_frame_bytes: int = LARGEST_FRAME_BYTES) -> None:
        self.data_left = 0
        self._sink = sink
        self._largest = largest_frame_bytes
        self._padding_left = 0
        self._in_data = False
        self._rest = b""

    @property
    def is_inside_data(self) -> bool:
        """Whether the very next byte is one of a DATA frame's."""
        return self.data_left > 0 and not self._rest

    def took_data(self, count: int) -> None:
        """Count bytes of the current DATA frame that were read without this reader."""
        self.data_left -= count
        self._end_data()

    def forget(self) -> None:
        """Drop an incomplete frame."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Handle bytes that came.

        Raises:
            Http2Error: They are not HTTP/2, or a frame is too long.
        """
        view = memoryview(self._rest + data if self._rest else data)
        self._rest = b""
        at, size = 0, len(view)
        while True:
            if self._in_data:
                at = self._feed_data(view, at)
                if self._in_data:
                    return
            if size - at < HEAD_BYTES:
                break
            head = read_head(view, at)
            self._check(head)
            if head.kind == Kind.DATA:
                padded = bool(head.flags & PADDED)
                if size - at < HEAD_BYTES + padded:
                    break
                self._begin_data(head, view[at + HEAD_BYTES] if padded else -1)
                at += HEAD_BYTES + padded
                continue
            end = at + HEAD_BYTES + head.length
            if size < end:
                break
            self._sink.on_control(head, bytes(view[at + HEAD_BYTES : end]))
            at = end
        self._rest = bytes(view[at:])

    def _check(self, head: FrameHead) -> None:
        most = self._largest if head.kind == Kind.DATA else _MOST_CONTROL_BYTES
        if head.length > most:
            name = _NAMES.get(head.kind, f"type {head.kind}")
            raise Http2Error(
                Code.FRAME_SIZE_ERROR,
                f"a frame ({name}) announces {head.length} bytes, more than {most}",
            )

    def _begin_data(self, head: FrameHead, padding: int) -> None:
        self.data_left = head.length - (padding + 1 if padding >= 0 else 0)
        self._padding_left = max(0, padding)
        if self.data_left < 0:
            raise Http2Error(Code.PROTOCOL_ERROR, "the padding of a frame is longer than the frame")
        self._in_data = True
        self._sink.on_data_begin(head)
        self._end_data()

    def _feed_data(self, view: memoryview, at: int) -> int:
        """Pass on bytes of the current DATA frame; returns where they end."""
        piece = view[at : at + self.data_left]
        if piece:
            self.data_left -= len(piece)
            self._sink.on_data(piece)
            at += len(piece)
        if not self.data_left and self._padding_left:
            skipped = min(self._padding_left, len(view) - at)
            self._padding_left -= skipped
            at += skipped
        self._end_data()
        return at

    def _end_data(self) -> None:
        if self._in_data and not self.data_left and not self._padding_left:
            self._in_data = False
            self._sink.on_data_end()
