"""The kind of a connection, by its first bytes: pure, so that one thread can sort all of them.

Ours begin with :data:`MAGIC` and a greeting: a frame whose message is a ``Hello``. It is read here
to its end, and no further, so a peer that sends nothing, or byte by byte, costs a descriptor and a
few bytes, and no thread. Connections of gRPC begin with HTTP/2's preface or a TLS handshake. One
that a gateway is to forward begins with :data:`ROUTE` and a ticket.
"""

from .connection import HEAD_BYTES, frame_lengths
from .tickets import TICKET_BYTES

MAGIC = b"RPWK"
_HTTP2, _TLS = b"PRI ", b"\x16\x03"
ROUTE = b"RPWR"
_BEGINNINGS = (MAGIC, _HTTP2, _TLS, ROUTE)

GREETING_BYTES = 16 * 1024  # a hello has less than 1 KiB, and what shows who says it a few more


class Arrival:
    """The first bytes of a connection.

    Attributes:
        first: The bytes that were read.
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first = b""

    def wanted(self) -> int:
        """Count the bytes that are still needed to know the kind; 0: none."""
        first = self.first
        if first.startswith(ROUTE):
            return len(ROUTE) + TICKET_BYTES - len(first)
        if not first.startswith(MAGIC):
            rest = [
                len(beginning) - len(first)
                for beginning in _BEGINNINGS
                if beginning.startswith(first)
            ]
            return max(rest, default=0)
        head = first[len(MAGIC) : len(MAGIC) + HEAD_BYTES]
        if len(head) < HEAD_BYTES:
            return HEAD_BYTES - len(head)
        length, _ = frame_lengths(head)
        if length > GREETING_BYTES:
            return 0  # the endpoint refuses it, with a reason
        return len(MAGIC) + HEAD_BYTES + length - len(first)

    @property
    def is_ours(self) -> bool:
        """Whether it is a session or a link of ours."""
        return self.first.startswith(MAGIC)

    @property
    def is_grpc(self) -> bool:
        """Whether it is a connection of gRPC."""
        return self.first.startswith((_HTTP2, _TLS))

    @property
    def ticket(self) -> bytes:
        """The ticket of a connection to forward; empty: it is none."""
        return self.first[len(ROUTE) :] if self.first.startswith(ROUTE) else b""

    @property
    def greeting(self) -> bytes:
        """The bytes after the magic ones."""
        return self.first[len(MAGIC) :]
