"""Handing gRPC's connections through to the private socket of this process's gRPC server.

The private socket is a file in a folder of ours that is gone before anybody is let in: it is
reached through its descriptor alone, so no other user can connect past the port. Each connection
to it has a name that nobody can guess, by which the servicers know whose it is.
"""

import contextlib
import logging
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..cluster.principal import Principal
from ..core.errors import WindlassError
from ..core.rare_log import RareLog
from .splice import move_all
from .stream import NEVER, READ_BYTES
from .tcp import notice_loss, tcp_stream
from .tls.accept import TlsServer
from .tls.http2 import refuse_http2
from .tls.stream import TlsStream

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_LEAVING = ""  # it made room for another one

_Ends = tuple[socket.socket, socket.socket]


@dataclass(slots=True)
class Origin:
    """Where a gRPC connection comes from.

    Attributes:
        address: Of the client.
        principal: Who the client is, if the connection itself shows that.
        is_admitted: Whether a call of it was let in.
    """

    address: str
    principal: Principal | None = None
    is_admitted: bool = False


class PassThrough:
    """Moves bytes between clients' connections and the gRPC server's own socket.

    Two threads for a connection: gRPC's are few and carry no steps, and a thread that blocks is
    faster than a selector. Bytes go through a pipe, so that they stay in the kernel; those of TLS
    are decrypted and encrypted on the way.

    Args:
        limit: Most connections at once.

    Attributes:
        tls: Accepts TLS; None: connections are plain.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.tls: TlsServer | None = None
        self._inner = -1  # descriptor of the gRPC server's socket
        self._origins: dict[str, Origin] = {}
        self._failures = RareLog(log)
        self._lock = threading.Lock()
        # The ends of each connection, and how gRPC calls it; the oldest first.
        self._open: dict[_Ends, str] = {}
        self._stopped = False

    def listen(self, add_port: Callable[[str], int]) -> None:
        """Have the gRPC server listen at a private socket.

        Args:
            add_port: Called with its address, as gRPC writes it; 0: it cannot listen there.

        Raises:
            OSError: It cannot.
        """
        last = OSError("there is no folder for a socket")
        for parent in (None, "/dev/shm", "/tmp"):  # noqa: S108 - a folder of our own in it
            try:
                with tempfile.TemporaryDirectory(prefix="windlass-", dir=parent) as folder:
                    self._inner = _listen_in(Path(folder), add_port)
                return
            except OSError as error:  # none can be written, or the path is too long for a socket
                last = error
        raise last

    def origin_of(self, peer: str) -> Origin | None:
        """Where the connection comes from that gRPC calls ``peer``; None: not through the port."""
        return self._origins.get(peer)

    def accept(self, client: socket.socket, first: bytes) -> None:
        """Serve a connection, which is owned from now on.

        Args:
            client: Connected.
            first: What was read of it.

        Raises:
            OSError: There are too many.
        """
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ends = client, server
        name = f"windlass-{secrets.token_hex(16)}"
        peer = f"unix-abstract:{name}"
        with self._lock:
            if self._stopped or not self._has_room():
                server.close()
                raise ConnectionError(f"more than {self._limit} gRPC connections")
            self._open[ends] = peer
        try:
            threading.Thread(
                target=self._serve, args=(client, server, first, name), name="grpc", daemon=True
            ).start()
        except RuntimeError as error:  # no more threads
            self._close(ends)
            raise ConnectionError(str(error)) from error

    def _has_room(self) -> bool:
        """Whether there is room for one more; the oldest of which no call was let in makes it."""
        if len(self._open) < self._limit:
            return True
        for ends, peer in self._open.items():
            origin = self._origins.get(peer)
            if peer and (origin is None or not origin.is_admitted):
                self._open[ends] = _LEAVING
                self._end(*ends)
                # Its descriptors are closed a moment later: so many may wait for that.
                return len(self._open) <= self._limit + self._limit // 4
        return False

    def stop(self) -> None:
        """End every connection."""
        with self._lock:
            self._stopped = True
            everyone = list(self._open)
            inner, self._inner = self._inner, -1
        for ends in everyone:
            self._end(*ends)
        if inner >= 0:
            os.close(inner)

    def _serve(self, client: socket.socket, server: socket.socket, first: bytes, name: str) -> None:
        peer = f"unix-abstract:{name}"  # as gRPC will call it
        try:
            secured = None
            if self.tls is not None:
                secured = self._begin_tls(self.tls, client, first)
                if secured is None:
                    return
                first = b""
            self._origins[peer] = Origin(
                _address_of(client), secured.principal if secured is not None else None
            )
            server.settimeout(_CONNECT_TIMEOUT_S)
            server.bind(f"\0{name}")
            server.connect(f"/proc/self/fd/{self._inner}")
            server.settimeout(None)
            if secured is None:
                notice_loss(client)
                server.sendall(first)
            if self._stopped:
                return
            there, back = _both_ways(client, server, secured)
            answers = threading.Thread(
                target=self._run, args=(back, client, server), name="grpc", daemon=True
            )
            answers.start()
            self._run(there, client, server)
            answers.join()
        except (OSError, RuntimeError) as error:
            self._failures.warning("a gRPC connection could not be served: %s", error)
        finally:
            self._origins.pop(peer, None)
            self._close((client, server))

    @staticmethod
    def _begin_tls(tls: TlsServer, client: socket.socket, first: bytes) -> TlsStream | None:
        try:
            return tls.accept(tcp_stream(client), first, refuse_http2)
        except (OSError, WindlassError):  # it has logged why
            return None

    def _run(self, move: Callable[[], None], *ends: socket.socket) -> None:
        try:
            move()
        except (OSError, WindlassError) as error:
            log.debug("a gRPC connection broke off: %s", error)
            self._end(*ends)

    def _close(self, ends: _Ends) -> None:
        with self._lock:
            self._open.pop(ends, None)
        for end in ends:
            end.close()

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _listen_in(folder: Path, add_port: Callable[[str], int]) -> int:
    path = folder / "socket"
    try:
        if add_port(f"unix:{path}"):
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except RuntimeError as error:  # gRPC's
        raise OSError(str(error)) from error
    raise OSError(f"gRPC cannot listen at {path}")


def _address_of(client: socket.socket) -> str:
    try:
        name = client.getpeername()
    except OSError:
        return "a client that has gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a Unix socket"


def _both_ways(
    client: socket.socket, server: socket.socket, secured: TlsStream | None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """What moves the bytes there, and back, each to the end of its stream."""
    if secured is None:
        return lambda: move_all(client, server), lambda: move_all(server, client)

    def there() -> None:
        while data := secured.receive(NEVER):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    def back() -> None:
        while data := server.recv(READ_BYTES):
            secured.send(data, NEVER)
        secured.end()
        client.shutdown(socket.SHUT_WR)

    return there, back
