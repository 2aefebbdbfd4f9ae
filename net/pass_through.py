"""Handing gRPC's connections through to the gRPC server of this process, which has a private socket."""

import contextlib
import logging
import secrets
import socket
import threading

log = logging.getLogger(__name__)

_BYTES = 256 * 1024
_CONNECT_TIMEOUT_S = 5.0


class PassThrough:
    """Copies bytes between clients' connections and the gRPC server's own socket.

    Two threads for a connection: gRPC's are few and carry no steps, and a thread that blocks is
    faster than a selector.

    Args:
        limit: Most connections at once.

    Attributes:
        inner_name: Of the gRPC server's socket, in the abstract namespace. Not to be guessed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.inner_name = f"windlass-grpc-{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stopped = False

    def accept(self, client: socket.socket) -> None:
        """Serve a connection, which is owned from now on.

        Raises:
            OSError: There are too many, or the gRPC server does not answer.
        """
        if len(self._open) >= 2 * self._limit:
            raise ConnectionError(f"more than {self._limit} gRPC connections")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.settimeout(_CONNECT_TIMEOUT_S)
            server.connect(f"\0{self.inner_name}")
            server.settimeout(None)
            client.settimeout(None)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            server.close()
            raise
        with self._lock:
            self._open |= {client, server}
            stopped = self._stopped
        if stopped:
            self._end(client, server)
        both_ended = threading.Barrier(2)
        for source, target in ((client, server), (server, client)):
            threading.Thread(
                target=self._copy, args=(source, target, both_ended), name="grpc", daemon=True
            ).start()

    def stop(self) -> None:
        """End every connection."""
        with self._lock:
            self._stopped = True
            ends = list(self._open)
        self._end(*ends)

    def _copy(self, source: socket.socket, target: socket.socket, ended: threading.Barrier) -> None:
        buffer = memoryview(bytearray(_BYTES))
        try:
            while count := source.recv_into(buffer):
                target.sendall(buffer[:count])
            target.shutdown(socket.SHUT_WR)
        except OSError as error:
            log.debug("a gRPC connection broke off: %s", error)
            self._end(source, target)
        ended.wait()
        with self._lock:
            self._open.discard(source)
        source.close()

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
