"""gRPC's calls as fields and prefixed messages.

Source: "gRPC over HTTP2", the protocol's own specification.
"""

import base64
import struct
from dataclasses import dataclass
from urllib.parse import quote, unquote

from ...core.wire.error_table import DETAILS
from .fields import Fields
from .stream import Http2Stream

CONTENT_TYPE = "application/grpc"
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
