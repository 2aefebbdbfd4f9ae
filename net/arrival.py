"""Sorting a connection that has just been accepted, by its first bytes, without waiting.

Ours begin with :data:`~ropewalk.net.connection.MAGIC` and a greeting: a frame whose message is a
``Hello``. It is read here to its end, and no further, so a peer that sends nothing, or byte by
byte, costs a descriptor and a few bytes, and no thread. Connections of gRPC begin with HTTP/2's
preface or a TLS handshake. One that a gateway is to forward begins with :data:`ROUTE` and a ticket.
A connection goes through TLS where the port requires it, and is handed over when its greeting is
complete; each step processes the bytes that have come.
"""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import RopewalkError, UnauthenticatedError
from .auth.proof import TICKET_BYTES
from .auth.tls_handshake import TLS_BEGINS, Handshake, TlsServer
from .auth.tls_stream import TlsStream
from .connection import HEAD_BYTES, MAGIC, frame_lengths
from .sockets import UnixStream
from .stream import SocketStream

_HTTP2, _TLS = b"PRI ", b"\x16\x03"
ROUTE = b"RPWR"
_BEGINNINGS = (MAGIC, _HTTP2, _TLS, ROUTE)

HTTP_HEAD_BYTES = 8 * 1024  # longest head of a request; Prometheus' has a few hundred
_HTTP_HEAD_ENDS = b"\r\n\r\n"
GREETING_BYTES = 16 * 1024  # a hello has less than 1 KiB, and what shows who says it a few more

MakeStream = Callable[[socket.socket], SocketStream]


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


@dataclass(frozen=True, slots=True)
class Sorted:
    """A connection that is to be handed over.

    Attributes:
        stream: Connection to the caller; TLS, if the port requires it, has begun.
        arrival: Kind of the connection.
        refusal: The error that it must be answered with; None: it may be served.
    """

    stream: SocketStream | TlsStream
    arrival: Arrival
    refusal: RopewalkError | None = None


class Caller:
    """A connection that is being sorted.

    Args:
        connection: Accepted; owned from now on.
        make_stream: Makes its stream, once its kind is known.
        arrival: Sorts it by its first bytes.
        tls: The TLS that it has to go through; None: it is plain.
    """

    def __init__(
        self,
        connection: socket.socket,
        make_stream: MakeStream,
        arrival: Arrival,
        tls: TlsServer | None,
    ) -> None:
        self.connection = connection
        self._make_stream = make_stream
        self._arrival = arrival
        self._tls = tls
        self._stream: SocketStream | TlsStream | None = None
        # No bound method of its own: it is freed as soon as the listener forgets it.
        self._handshake: tuple[TlsServer, Handshake] | None = None

    def step(self) -> Sorted | None:
        """Process the bytes that have come; None: more are needed.

        Raises:
            EOFError: The connection is over, or of no known kind.
            UnauthenticatedError: The TLS handshake failed; the caller was told why.
            OSError: The connection is broken, or is not let in.
        """
        if self._handshake is not None:
            return self._shake_hands(*self._handshake)
        return self._sort()

    def _sort(self) -> Sorted | None:
        arrival = self._arrival
        while wanted := arrival.wanted():
            if not self._read(wanted):
                return None
            if self._is_tls_due():
                break
        if self._tls is not None and self._is_tls_due():
            return self._begin_tls(self._tls)
        stream = self._stream or self._make_stream(self.connection)
        return Sorted(stream, arrival)

    def _is_tls_due(self) -> bool:
        """Return whether enough bytes have come to begin TLS, or to refuse the lack of it."""
        if self._tls is None or self._stream is not None:
            return False
        first = self._arrival.first
        if self._arrival.is_ours:
            return len(first) >= len(MAGIC) + len(TLS_BEGINS)
        return self._arrival.is_grpc

    def _begin_tls(self, tls: TlsServer) -> Sorted | None:
        first = self._arrival.first
        stream = self._stream = self._make_stream(self.connection)
        if isinstance(stream, UnixStream):  # this machine's, and this user's
            return self._sort()
        beginning = first[len(MAGIC) :] if self._arrival.is_ours else first
        if not beginning.startswith(TLS_BEGINS):
            return Sorted(stream, self._arrival, tls.plaintext(stream.peer_address))
        self._handshake = tls, tls.begin(stream, beginning)
        return self._shake_hands(*self._handshake)

    def _shake_hands(self, tls: TlsServer, handshake: Handshake) -> Sorted | None:
        try:
            secured = handshake.step()
        except (OSError, UnauthenticatedError) as error:
            tls.log_refusal(self.address, error)
            raise
        if secured is None:
            return None
        self._stream, self._handshake = secured, None
        refusal = tls.principal_missing(secured)
        if refusal is not None or not self._arrival.is_ours:
            return Sorted(secured, self._arrival, refusal)
        self._arrival.first = MAGIC
        return self._sort()

    def _read(self, wanted: int) -> bool:
        """Read no more than wanted; a peek would make the selector report the bytes again."""
        if self._stream is not None:
            more = self._stream.receive_now(wanted)
        else:
            try:
                more = self.connection.recv(wanted, socket.MSG_DONTWAIT)
            except BlockingIOError:
                more = None
        if more is None:
            return False
        if not more:
            raise EOFError("it ended")
        self._arrival.first += more
        return True

    @property
    def address(self) -> str:
        """Address of the other end, for messages."""
        with contextlib.suppress(OSError):
            name = self.connection.getpeername()
            if isinstance(name, tuple):
                return f"{name[0]}:{name[1]}"
        return "a Unix socket"

    def close(self) -> None:
        """Close it, in whatever step it is."""
        if self._stream is not None:
            self._stream.close()
        self.connection.close()


class HttpArrival(Arrival):
    """A request, up to the end of its head. One without an end is dropped at the limit."""

    __slots__ = ()

    def wanted(self) -> int:
        """Count the bytes that the head may still have; 0: it is complete, or too long."""
        if _HTTP_HEAD_ENDS in self.first:
            return 0
        return max(0, HTTP_HEAD_BYTES - len(self.first))

    @property
    def is_ours(self) -> bool:
        """Whether the head is complete."""
        return _HTTP_HEAD_ENDS in self.first

    @property
    def greeting(self) -> bytes:
        """The request."""
        return self.first
