"""A connection that has just been accepted: what it is, step by step, without waiting.

Each step takes what has come. A connection is sorted by its first bytes
(:mod:`~windlass.net.arrival`), goes through TLS where the port wants that, and is handed on when
its greeting is complete; until then it costs a descriptor and a few bytes.
"""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import UnauthenticatedError, WindlassError
from .arrival import MAGIC, Arrival
from .stream import SocketStream
from .tls.accept import TLS_BEGINS, Handshake, TlsServer
from .tls.stream import TlsStream
from .unix import UnixStream

MakeStream = Callable[[socket.socket], SocketStream]


@dataclass(frozen=True, slots=True)
class Sorted:
    """A connection that is to be handed on.

    Attributes:
        stream: To the caller; TLS, if the port wants it, has begun.
        arrival: What it is.
        refusal: What it must be told instead of being served; None: it may be served.
    """

    stream: SocketStream | TlsStream
    arrival: Arrival
    refusal: WindlassError | None = None


class Caller:
    """A connection that is being sorted.

    Args:
        connection: Accepted; owned from now on.
        make_stream: Makes its stream, once it is known to be wanted.
        arrival: Tells by its first bytes what it is.
        tls: What it has to go through; None: nothing.
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
        """Take what has come; None: more is needed.

        Raises:
            EOFError: The connection is over, or nothing of ours.
            UnauthenticatedError: TLS does not come about; the caller was told why.
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
        """Whether enough is known to begin TLS, or to say that it is missing."""
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
        """Read no more than wanted: a selector says again and again what is only looked at."""
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
        """Where it comes from, for people."""
        with contextlib.suppress(OSError):
            name = self.connection.getpeername()
            if isinstance(name, tuple):
                return f"{name[0]}:{name[1]}"
        return "a Unix socket"

    def close(self) -> None:
        """Close it, whatever it has come to."""
        if self._stream is not None:
            self._stream.close()
        self.connection.close()
