"""Sorting a connection that has just been accepted, step by step, without waiting.

Each step processes the bytes that have come. A connection is sorted by its first bytes
(:mod:`~ropewalk.net.arrival`), goes through TLS where the port requires it, and is handed over when
its greeting is complete; until then it costs a descriptor and a few bytes.
"""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import RopewalkError, UnauthenticatedError
from .arrival import MAGIC, Arrival
from .stream import SocketStream
from .tls.accept import TLS_BEGINS, Handshake, TlsServer
from .tls.stream import TlsStream
from .unix import UnixStream

MakeStream = Callable[[socket.socket], SocketStream]


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
