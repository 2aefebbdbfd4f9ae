"""gRPC's calls on streams of HTTP/2, and a call as its server sees it.

Source: "gRPC over HTTP2", the protocol's own specification.
"""

import base64
import contextlib
import struct
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from .frames import Code, Fields
from .link import Http2Link
from .protocol import Http2Stream


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a connection.

    Attributes:
        address: The client's, for messages.
        principal: Identity of the client that the connection itself shows, as the stream below has
            it; None: it shows none.
    """

    address: str
    principal: Any = None


CONTENT_TYPE = "application/grpc"
DETAILS = "grpc-status-details-bin"
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 3, 4, 8  # gRPC's codes
UNIMPLEMENTED, INTERNAL = 12, 13
PREFIX = struct.Struct(">BI")
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_LONGEST_MESSAGE = 8 * 1024  # in a status; gRPC's clients drop longer metadata


@dataclass(frozen=True, slots=True)
class Status:
    """The outcome of a call.

    Attributes:
        code: gRPC's; 0: success.
        message: Text for people.
        details: A serialized ``google.rpc.Status``; empty: none.
    """

    code: int = 0
    message: str = ""
    details: bytes = b""

    def as_fields(self) -> Fields:
        """Write the status as trailers."""
        fields = [("grpc-status", str(self.code))]
        if self.message:
            text = self.message.encode()[:_LONGEST_MESSAGE]
            fields.append(("grpc-message", quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")))
        if self.details:
            fields.append((DETAILS, base64.b64encode(self.details).decode().rstrip("=")))
        return fields


class CallError(Exception):
    """A call is refused, or has failed.

    Attributes:
        status: Status that its client is told.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


def request_fields(path: str, scheme: str, authority: str, authorization: str) -> Fields:
    """Make the header fields of a client's call."""
    fields = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", CONTENT_TYPE),
        ("user-agent", "ropewalk"),
    ]
    if authorization:
        fields.append(("authorization", authorization))
    return fields


def response_fields(metadata: Fields) -> Fields:
    """Make the header fields of a server's answer."""
    return [(":status", "200"), ("content-type", CONTENT_TYPE), *metadata]


def check_answer(stream: Http2Stream) -> None:
    """Check what a server has sent about a call so far.

    Raises:
        ConnectionError: The call is refused or has failed, or the server does not speak gRPC.
    """
    first = dict(stream.fields)
    if not first:
        return
    if first.get(":status") != "200":
        raise ConnectionError(f"what answers there says HTTP status {first.get(':status')!r}")
    if not first.get("content-type", CONTENT_TYPE).startswith(CONTENT_TYPE):
        raise ConnectionError(f"what answers there says {first['content-type']!r}, not gRPC")
    last = dict(stream.trailers) or first
    code = last.get("grpc-status", "0")
    if code != "0":
        raise ConnectionError(unquote(last.get("grpc-message", "")) or f"gRPC's status {code}")


def timeout_s(text: str) -> float | None:
    """Read the value of ``grpc-timeout`` in seconds; None: it is missing or cannot be parsed."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_S or not number.isdecimal() or len(number) > 8:
        return None
    return int(number) * _UNITS_S[unit]


_ANSWER_S = 60.0  # for a client to take its answer, or the beginning of a stream
_NO_MESSAGE_YET = -1


class ServedCall:
    """A call of a client.

    Args:
        link: Connection of the call.
        stream: Stream of the call.
        origin: Origin of the call's connection.
        most_bytes: Longest request.

    Attributes:
        path: The method, as ``/package.Service/Method``.
        metadata: The client's, by name.
        began: Time at which the call began, on the clock of ``time.monotonic``.
        most_bytes: Longest request.
        was_dispatched: Whether a thread works on the answer, or the call was refused: that thread
            takes the rest of what the client sends.
    """

    def __init__(
        self, link: Http2Link, stream: Http2Stream, origin: Origin, most_bytes: int
    ) -> None:
        self.link = link
        self.stream = stream
        self.origin = origin
        self.metadata = dict(stream.fields)
        self.path = self.metadata.get(":path", "")
        self.began = time.monotonic()
        self.was_dispatched = False
        limit_s = timeout_s(self.metadata.get("grpc-timeout", ""))
        self._deadline = None if limit_s is None else self.began + limit_s
        self.most_bytes = most_bytes
        self._request = bytearray()
        self._size = _NO_MESSAGE_YET

    @property
    def request_bytes(self) -> int:
        """Number of bytes of the request that have come."""
        return len(self._request)

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC call at all."""
        fields = self.metadata
        return fields.get(":method") == "POST" and fields.get("content-type", "").startswith(
            CONTENT_TYPE
        )

    def is_waiting(self) -> bool:
        """Return whether the client still waits for the answer."""
        if self.stream.broken or self.link.broken:
            return False
        return self._deadline is None or time.monotonic() < self._deadline

    def request(self) -> bytes | None:
        """Return the message of a call that has one; None: it has not come completely.

        Raises:
            CallError: It is too long or compressed, or the call has ended without one.
        """
        while self.stream.pieces:
            self._request += self.link.take(self.stream, 0.0)
            self._read_prefix()
            if self._size != _NO_MESSAGE_YET and len(self._request) >= PREFIX.size + self._size:
                return bytes(memoryview(self._request)[PREFIX.size : PREFIX.size + self._size])
        if self.stream.has_ended:
            raise CallError(Status(INVALID_ARGUMENT, f"{self.path}: no message came"))
        return None

    def _read_prefix(self) -> None:
        if self._size != _NO_MESSAGE_YET or len(self._request) < PREFIX.size:
            return
        compressed, self._size = PREFIX.unpack_from(self._request)
        if compressed:
            raise CallError(
                Status(UNIMPLEMENTED, f"{self.path}: the request is compressed, which is not read")
            )
        if self._size > self.most_bytes:
            raise CallError(
                Status(
                    RESOURCE_EXHAUSTED,
                    f"{self.path}: the request has {self._size} bytes, more than the "
                    f"{self.most_bytes} that are allowed",
                )
            )

    # -- answering ---------------------------------------------------------------------------

    def answer(self, message: bytes, metadata: Fields) -> None:
        """Answer with a message, which is sent as the client takes it; never blocks.

        Raises:
            OSError: The client is gone.
        """
        self._say([PREFIX.pack(0, len(message)), message], metadata, Status())

    def fail(self, status: Status, metadata: Fields) -> None:
        """Answer with an error, as with a message.

        Raises:
            OSError: The client is gone.
        """
        self._say([], metadata, status)

    def fail_soon(self, status: Status) -> None:
        """Answer with an error without waiting: for the thread that reads the connection.

        Raises:
            OSError: The client is gone.
        """
        self.was_dispatched = True
        self.link.send_last_fields_soon(self.stream, [*response_fields([]), *status.as_fields()])
        self._end()

    def refuse_http(self, status: str) -> None:
        """Answer a request that is not a gRPC call.

        Raises:
            OSError: The client is gone.
        """
        self.was_dispatched = True
        self.link.send_last_fields_soon(self.stream, [(":status", status)])
        self._end()

    def begin_stream(self, metadata: Fields) -> None:
        """Begin an answer of many messages.

        Raises:
            OSError: The client is gone.
        """
        self.link.send_fields(self.stream, response_fields(metadata), self._until())

    def finish_stream(self, deadline: float) -> None:
        """End an answer of many messages in order.

        Raises:
            OSError: The client is gone.
        """
        self.link.send_fields(self.stream, Status().as_fields(), deadline, end=True)
        self._end()

    def cancel(self) -> None:
        """End the call at once."""
        self.link.reset(self.stream, Code.CANCEL, "cancelled")

    def _say(self, message: list[bytes], metadata: Fields, status: Status) -> None:
        self.link.send_answer_soon(
            self.stream, response_fields(metadata), message, status.as_fields(), self._until()
        )

    def _end(self) -> None:
        """Stop a client that still sends, after the answer."""
        if not self.stream.has_ended:
            with contextlib.suppress(OSError):
                self.link.reset(self.stream, Code.NO_ERROR, "answered")

    def _until(self) -> float:
        return time.monotonic() + _ANSWER_S
