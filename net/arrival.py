"""What a connection is, by its first bytes: pure, so that one thread can sort all of them.

Ours begin with :data:`MAGIC` and a greeting: a frame whose message is a ``Hello``. It is read here
to its end, and no further, so a peer that says nothing, or dribbles, costs a descriptor and a few
bytes, and no thread. gRPC's begin with HTTP/2's preface or a TLS handshake. One that a gateway is
to forward begins with :data:`ROUTE` and a ticket.
"""

from .connection import HEAD_BYTES, frame_lengths
from .tickets import TICKET_BYTES

MAGIC = b"WNDL"
_HTTP2, _TLS = b"PRI ", b"\x16\x03"
ROUTE = b"WNDR"
_BEGINNINGS = (MAGIC, _HTTP2, _TLS, ROUTE)

GREETING_BYTES = 16 * 1024  # a hello has less than 1 KiB, and what shows who says it a few more


class Arrival:
    """The first bytes of a connection.

    Attributes:
        first: What was read.
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first = b""

    def wanted(self) -> int:
        """How many more bytes tell what this is; 0: it is known."""
        first = self.first
        if first.startswith(ROUTE):
            return len(ROUTE) + TICKET_BYTES - len(first)
        if not first.startswith(MAGIC):
            rest = [len(each) - len(first) for each in _BEGINNINGS if each.startswith(first)]
            return max(rest, default=0)
        head = first[len(MAGIC) : len(MAGIC) + HEAD_BYTES]
        if len(head) < HEAD_BYTES:
            return HEAD_BYTES - len(head)
        length, _ = frame_lengths(head)
        if length > GREETING_BYTES:
            return 0  # whoever serves it refuses it, and says why
        return len(MAGIC) + HEAD_BYTES + length - len(first)

    @property
    def is_ours(self) -> bool:
        """Whether it begins as ours do."""
        return self.first.startswith(MAGIC)

    @property
    def is_grpc(self) -> bool:
        """Whether it begins as gRPC's do."""
        return self.first.startswith((_HTTP2, _TLS))

    @property
    def ticket(self) -> bytes:
        """Of a connection that is to be forwarded; empty: it is none."""
        return self.first[len(ROUTE) :] if self.first.startswith(ROUTE) else b""

    @property
    def greeting(self) -> bytes:
        """What follows the magic bytes."""
        return self.first[len(MAGIC) :]
