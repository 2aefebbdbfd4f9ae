"""A refusal that a client of HTTP/2 understands. Source: RFC 9113, sections 4.1, 6.5 and 6.8."""

import struct

from ...core.errors import WindlassError

_SETTINGS, _GOAWAY = 4, 7
_INADEQUATE_SECURITY = 0xC
_MOST_BYTES = 1000


def refuse_http2(error: WindlassError) -> bytes:
    """Empty SETTINGS, and a GOAWAY that says why: gRPC's clients show it with their error."""
    said = error.message.encode()[:_MOST_BYTES]
    return _frame(_SETTINGS, b"") + _frame(
        _GOAWAY, struct.pack(">II", 0, _INADEQUATE_SECURITY) + said
    )


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload
