"""A refusal that gRPC's clients understand: the first call is answered with an error.

Sources: RFC 9113, sections 3.4 and 4.1; RFC 7541, sections 5 and 6.2.2; "gRPC over HTTP2", where
such an answer is called Trailers-Only. A GOAWAY would be simpler, and gRPC's clients take it for a
reason to come back at once, again and again.
"""

from typing import Protocol
from urllib.parse import quote

import grpc

from ...core.error_table import STATUS_OF
from ...core.errors import WindlassError
from ..stream import Buffer

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_HEADERS, _SETTINGS = 1, 4
_END_STREAM_AND_HEADERS = 0x5
_STATUS_200 = b"\x88"  # of HPACK's static table
_MOST_BYTES = 64 * 1024  # what a client says before its first call
_TEXT_BYTES = 1000


class Duplex(Protocol):
    """What is needed of a stream."""

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        ...

    def receive(self, deadline: float) -> bytes:
        """Some bytes; empty at the end."""
        ...


def refuse_http2(stream: Duplex, first: bytes, error: WindlassError, deadline: float) -> None:
    """Answer a client's first call with an error.

    Args:
        stream: To the client.
        first: What was read of it.
        error: Why it is refused.
        deadline: On the clock of ``time.monotonic``.

    Raises:
        OSError: The connection broke, or no call came in time.
    """
    stream.send(_frame(_SETTINGS, 0, 0, b""), deadline)
    number = _first_call(stream, first, deadline)
    status = STATUS_OF.get(type(error), grpc.StatusCode.UNAUTHENTICATED).value[0]
    fields = _STATUS_200 + b"".join(
        _field(name, value)
        for name, value in (
            ("content-type", "application/grpc"),
            ("grpc-status", str(status)),
            ("grpc-message", quote(error.message[:_TEXT_BYTES], safe=" ,.:;'()/=-_`")),
        )
    )
    stream.send(_frame(_HEADERS, _END_STREAM_AND_HEADERS, number, fields), deadline)


def _first_call(stream: Duplex, data: bytes, deadline: float) -> int:
    at = _PREFACE_BYTES
    while len(data) <= _MOST_BYTES:
        if len(data) >= at + _HEAD_BYTES:
            length = int.from_bytes(data[at : at + 3])
            if data[at + 3] == _HEADERS:
                return int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF
            at += _HEAD_BYTES + length
            continue
        more = stream.receive(deadline)
        if not more:
            break
        data += more
    raise ConnectionError("it made no call")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4)
    return head + payload


def _field(name: str, value: str) -> bytes:
    """A field as a literal that is not indexed, without Huffman's code."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    rest = len(data) - 127
    if rest < 0:
        return bytes([len(data)]) + data
    length = b"\x7f"
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + data
