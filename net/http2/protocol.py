"""The state of an HTTP/2 connection as the frames of a peer change it: streams, windows, settings.
Without I/O.

Immediate answers (acknowledgements, windows) go to a function that must not wait; events of streams
go to their handler.

Source: RFC 9113. Server push, priorities and upgrades are not supported; gRPC uses none of them.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import frames
from .frames import (
    ACK,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    Code,
    Fields,
    FieldsDecoder,
    FrameHead,
    FrameReader,
    Http2Error,
    Kind,
    Setting,
)


@dataclass(slots=True, eq=False)
class Http2Stream:
    """A stream. Its link's lock guards it.

    Attributes:
        number: Identifies the stream on its connection.
        window: Bytes that may be sent.
        inbound: Bytes that the peer may still send.
        fields: The peer's first fields.
        trailers: The peer's last fields.
        pieces: Payload of DATA frames that was not taken yet, the oldest first.
        has_ended: Whether the peer sends nothing more.
        has_finished: Whether this side sends nothing more.
        broken: Why it is over; empty: it is not.
        credit: Bytes that were taken and not yet granted to the peer again.
        context: Context that the stream's owner sets.
    """

    number: int
    window: int
    inbound: int
    fields: Fields = field(default_factory=list)
    trailers: Fields = field(default_factory=list)
    pieces: deque[memoryview] = field(default_factory=deque)
    has_ended: bool = False
    has_finished: bool = False
    broken: str = ""
    credit: int = 0
    context: Any = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to take, or nothing more will come."""
        return bool(self.pieces) or self.has_ended or bool(self.broken)

    @property
    def is_over(self) -> bool:
        """Whether both directions have ended."""
        return bool(self.broken) or (self.has_ended and self.has_finished)


CONNECTION_WINDOW = 32 * 1024 * 1024  # each stream has its own bound
_MOST_HEADER_BYTES = 64 * 1024  # one block, over all its frames
_MOST_FRAMES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the peer of a connection is told.

    Attributes:
        window_bytes: Most bytes of one stream that wait to be taken.
        frame_bytes: Largest payload of a DATA frame.
        streams: Most streams of the peer at once.
        fields_bytes: Most bytes of fields.
    """

    window_bytes: int = 1024 * 1024
    frame_bytes: int = 1024 * 1024
    streams: int = 64
    fields_bytes: int = 16 * 1024

    def as_settings(self, *, is_client: bool) -> bytes:
        """Make the SETTINGS frame with these limits."""
        values = {
            Setting.INITIAL_WINDOW_SIZE: self.window_bytes,
            Setting.MAX_FRAME_SIZE: self.frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: self.fields_bytes,
        }
        if is_client:
            values[Setting.ENABLE_PUSH] = 0
        else:
            values[Setting.MAX_CONCURRENT_STREAMS] = self.streams
        return frames.settings(values)


class Handler(Protocol):
    """Serves the streams that a peer opens. Called by the thread that reads; must not wait."""

    def opened(self, stream: Http2Stream) -> None:
        """Handle a stream that the peer has opened, whose fields are there."""
        ...

    def progressed(self, stream: Http2Stream) -> None:
        """Handle bytes of a stream that have come, or its end, or its reset."""
        ...


class Http2Protocol:
    """The state of one connection, as its peer's frames make it.

    Args:
        limits: Limits that the peer must keep to.
        handler: Serves the peer's streams; None: this is the client's side.
        answer: Queues frames that are sent once the bytes that came are handled; raises
            Http2Error if too many wait.

    Attributes:
        changed: The lock around all of this, and the condition that waiting threads wait for.
        streams: Streams that are not over, by number.
        window: Bytes that may be sent on all streams together.
        peer_window: Bytes that may be sent on a new stream.
        peer_frame: Largest payload of a frame that the peer accepts.
        last: Highest number of a stream so far.
        refuses: Whether the peer was told to open no more streams.
        frames_left: Frames, other than data of a stream, that the peer may still send.
        is_trusted: Whether frames that open windows, of which there are many, do not count.
        data_of: The stream of the current DATA frame.
        pings_answered: Pings of this side that the peer has answered.
    """

    def __init__(
        self, limits: Limits, handler: Handler | None, answer: Callable[[bytes], object]
    ) -> None:
        self.changed = threading.Condition()
        self.streams: dict[int, Http2Stream] = {}
        self.window = DEFAULT_WINDOW
        self.peer_window = DEFAULT_WINDOW
        self.peer_frame = DEFAULT_FRAME_BYTES
        self.last = 0 if handler is not None else -1
        self.refuses = False
        self.frames_left = _MOST_FRAMES
        self.is_trusted = True
        self.pings_answered = 0
        self.data_of: Http2Stream | None = None
        self.reader = FrameReader(self, limits.frame_bytes)
        self._limits = limits
        self._handler = handler
        self._answer = answer
        self._decoder = FieldsDecoder(limits.fields_bytes)
        self._inbound = CONNECTION_WINDOW
        self._credit = 0
        self._block: tuple[FrameHead, bytearray] | None = None  # fields whose end has not come
        self._ends_stream = False
        self._preface = frames.PREFACE if handler is not None else b""

    def feed(self, data: bytes) -> None:
        """Handle bytes of the peer, by the one thread that reads.

        Raises:
            Http2Error: The peer breaks the protocol, or asks for too much.
            OSError: The connection is broken.
        """
        if self._preface:
            data = self._skip_preface(data)
        self.reader.feed(data)
        self._return_credit()

    def took_data(self, count: int) -> None:
        """Count bytes of the current DATA frame that were read without :meth:`feed`."""
        self._credit += count
        self._return_credit()
        self.reader.took_data(count)

    def forget(self) -> None:
        """Drop incomplete frames: the connection is over.

        It and its handler refer to each other, so they are freed later, by garbage collection.
        """
        self._block = None
        self.reader.forget()

    def room_of(self, stream: Http2Stream) -> int:
        """Count the bytes of a stream that could be sent in one frame now."""
        return max(0, min(stream.window, self.window, self.peer_frame))

    def finished(self, stream: Http2Stream) -> None:
        """Note that this side sends nothing more of a stream."""
        with self.changed:
            stream.has_finished = True
            if stream.is_over:
                self.streams.pop(stream.number, None)

    def tell(self, stream: Http2Stream) -> None:
        """Tell a stream's handler about news of it."""
        if self._handler is not None:
            self._handler.progressed(stream)

    def _skip_preface(self, data: bytes) -> bytes:
        expected = self._preface
        count = min(len(expected), len(data))
        if data[:count] != expected[:count]:
            raise Http2Error(Code.PROTOCOL_ERROR, "it does not speak HTTP/2")
        self._preface = expected[count:]
        return data[count:]

    # -- frames ------------------------------------------------------------------------------

    def on_data_begin(self, head: FrameHead) -> None:
        """See :class:`~ropewalk.net.http2.frames.FrameSink`."""
        with self.changed:
            stream = self.streams.get(head.stream)
            if stream is None and (head.stream == 0 or head.stream > max(self.last, 0)):
                raise Http2Error(Code.PROTOCOL_ERROR, f"data of stream {head.stream}: not open")
            self._inbound -= head.length
            if stream is not None and not stream.has_ended:
                stream.inbound -= head.length
                # Padding counts as taken at once.
                stream.credit += head.length - self.reader.data_left
                if stream.inbound < 0 or self._inbound < 0:
                    raise Http2Error(Code.FLOW_CONTROL_ERROR, "more data than the windows allow")
            else:
                self._spend_frame()
            self._credit += head.length - self.reader.data_left
            self.data_of = stream
            self._ends_stream = bool(head.flags & END_STREAM)
            if not head.length:
                self._spend_frame()

    def on_data(self, piece: memoryview) -> None:
        """See :class:`~ropewalk.net.http2.frames.FrameSink`."""
        stream = self.data_of
        self._credit += len(piece)
        if stream is None or stream.broken or stream.has_ended:
            return
        with self.changed:
            stream.pieces.append(piece)
        self.tell(stream)

    def on_data_end(self) -> None:
        """See :class:`~ropewalk.net.http2.frames.FrameSink`."""
        stream, self.data_of = self.data_of, None
        if stream is not None and self._ends_stream:
            self._ended(stream)

    def _return_credit(self) -> None:
        if self._credit >= CONNECTION_WINDOW // 4:
            credit, self._credit = self._credit, 0
            with self.changed:
                self._inbound += credit
            self._answer(frames.window_update(0, credit))

    def on_control(self, head: FrameHead, payload: bytes) -> None:
        """See :class:`~ropewalk.net.http2.frames.FrameSink`."""
        if head.kind != Kind.WINDOW_UPDATE or not self.is_trusted:
            self._spend_frame()
        if self._block is not None and head.kind != Kind.CONTINUATION:
            raise Http2Error(Code.PROTOCOL_ERROR, "another frame within a block of fields")
        match head.kind:
            case Kind.HEADERS:
                self._begin_block(head, payload)
            case Kind.CONTINUATION:
                self._go_on_with_block(head, payload)
            case Kind.RST_STREAM:
                self._on_reset(head.stream, frames.read_number(payload, Kind.RST_STREAM))
            case Kind.SETTINGS:
                self._on_settings(head, payload)
            case Kind.PING:
                if len(payload) != 8:
                    raise Http2Error(Code.FRAME_SIZE_ERROR, "a PING frame is not of 8 bytes")
                if head.flags & ACK:
                    self.pings_answered += 1
                else:
                    self._answer(frames.frame(Kind.PING, ACK, 0, payload))
            case Kind.GOAWAY:
                self._on_go_away(payload)
            case Kind.WINDOW_UPDATE:
                self._on_window(head.stream, frames.read_number(payload, Kind.WINDOW_UPDATE))
            case Kind.PUSH_PROMISE:
                raise Http2Error(Code.PROTOCOL_ERROR, "nothing may be pushed")

    def _spend_frame(self) -> None:
        self.frames_left -= 1
        if self.frames_left < 0:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too many frames")

    def _begin_block(self, head: FrameHead, payload: bytes) -> None:
        if not head.stream:
            raise Http2Error(Code.PROTOCOL_ERROR, "fields of no stream")
        block = frames.header_block(head.flags, payload)
        if head.flags & END_HEADERS:
            self._end_block(head, block)
        else:
            self._block = head, bytearray(block)

    def _go_on_with_block(self, head: FrameHead, payload: bytes) -> None:
        if self._block is None or self._block[0].stream != head.stream:
            raise Http2Error(Code.PROTOCOL_ERROR, "a frame goes on with fields that did not begin")
        first, block = self._block
        block.extend(payload)
        if len(block) > _MOST_HEADER_BYTES:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too many bytes of fields")
        if head.flags & END_HEADERS:
            self._end_block(first, bytes(block))

    def _end_block(self, head: FrameHead, block: bytes) -> None:
        self._block = None
        fields = self._decoder.read(block)
        stream = self.streams.get(head.stream)
        if stream is None:
            # Otherwise it is over on this side.
            if self._handler is not None and head.stream > self.last:
                self._open(self._handler, head, fields)
            return
        if stream.fields:
            stream.trailers = fields
        elif fields and fields[0] != (":status", "100"):
            stream.fields = fields
        if head.flags & END_STREAM:
            self._ended(stream)

    def _open(self, handler: Handler, head: FrameHead, fields: Fields) -> None:
        if not head.stream % 2:
            raise Http2Error(Code.PROTOCOL_ERROR, f"a client opens stream {head.stream}")
        if self.refuses:
            return  # the client was told, and connects anew
        with self.changed:
            self.last = head.stream
            stream = Http2Stream(
                head.stream, self.peer_window, self._limits.window_bytes, fields=fields
            )
            stream.has_ended = bool(head.flags & END_STREAM)
            is_full = len(self.streams) >= self._limits.streams
            if not is_full:
                self.streams[stream.number] = stream
        if is_full:
            self._answer(frames.reset(stream.number, Code.REFUSED_STREAM))
            return
        handler.opened(stream)

    def _on_reset(self, number: int, code: int) -> None:
        with self.changed:
            stream = self.streams.pop(number, None)
            if stream is None:
                return
            stream.broken = _reset_reason(code)
        self.tell(stream)

    def _ended(self, stream: Http2Stream) -> None:
        with self.changed:
            stream.has_ended = True
            if stream.is_over:
                self.streams.pop(stream.number, None)
        self.tell(stream)

    def _on_settings(self, head: FrameHead, payload: bytes) -> None:
        if head.flags & ACK:
            return
        for key, value in frames.read_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2Error(Code.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                with self.changed:
                    for stream in self.streams.values():
                        stream.window += value - self.peer_window
                    self.peer_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
                    raise Http2Error(Code.PROTOCOL_ERROR, f"frames of {value} bytes")
                self.peer_frame = value
        self._answer(frames.frame(Kind.SETTINGS, ACK, 0))

    def _on_go_away(self, payload: bytes) -> None:
        last = int.from_bytes(payload[:4]) if len(payload) >= 8 else 0
        text = payload[8:].decode(errors="replace")[:200]
        with self.changed:
            gone = [stream for number, stream in self.streams.items() if number > last]
            if self._handler is not None:
                gone = []  # the peer opens no more streams
            for stream in gone:
                stream.broken = f"the peer goes away {text}".strip()
                self.streams.pop(stream.number, None)
            self.changed.notify_all()

    def _on_window(self, number: int, increment: int) -> None:
        with self.changed:
            if not number:
                self.window += increment
                if self.window > MAX_WINDOW:
                    raise Http2Error(Code.FLOW_CONTROL_ERROR, "the window overflows")
                return
            stream = self.streams.get(number)
            if stream is None:
                self._spend_frame()
                return
            stream.window += increment
            if stream.window > MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "the window overflows")
        self.tell(stream)


def _reset_reason(code: int) -> str:
    with contextlib.suppress(ValueError):
        return f"the peer has ended the call ({Code(code).name})"
    return f"the peer has ended the call (code {code})"
