"""Accepting connections that are not gRPC's: a Unix socket for this machine and user, a TCP port for others.

Peers learn where from a gRPC call.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from ..core.errors import AddressInUseError
from ..core.task import TaskId
from .frame_socket import peer_user, prepare_tcp

log = logging.getLogger(__name__)

_RETRY_S = 0.1


class Listener(ABC):
    """Calls ``handle`` with every connection, in a thread of its own.

    Args:
        handle: Owns the connection.
        limit: Connections at once; further ones are closed.
    """

    def __init__(self, handle: Callable[[socket.socket], None], limit: int) -> None:
        self._handle = handle
        self._limit = limit
        self._lock = threading.Lock()
        self._open = 0
        self._listener: socket.socket | None = None

    @abstractmethod
    def _admit(self, connection: socket.socket) -> bool:
        """Whether a connection is one of ours, as far as the system can tell; prepares it."""

    def stop(self) -> None:
        """Accept none any more. Idempotent."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            # Closing alone does not wake a thread in accept. A child of a fork may have done it for us.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, listener: socket.socket) -> None:
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._listener is None:
                    return  # stopped
                log.warning("a connection could not be accepted: %s", error)
                threading.Event().wait(_RETRY_S)  # no descriptor is left; one may be soon
                continue
            try:
                admitted = self._admit(connection)
            except OSError:  # it is broken already
                admitted = False
            with self._lock:
                welcome = admitted and self._open < self._limit and self._listener is not None
                self._open += welcome
            if not welcome:
                connection.close()
                continue
            handler = threading.Thread(
                target=self._run, args=(connection,), name="session", daemon=True
            )
            try:
                handler.start()
            except RuntimeError as error:  # no more threads
                log.warning("a connection could not be served: %s", error)
                connection.close()
                with self._lock:
                    self._open -= 1

    def _run(self, connection: socket.socket) -> None:
        try:
            self._handle(connection)
        finally:
            with self._lock:
                self._open -= 1


class LocalListener(Listener):
    """For processes of this machine and user: a Unix socket without a name in any file system.

    It has a name in the abstract namespace, which goes with the process: nothing is left behind, whoever is
    killed.
    """

    def __init__(self, handle: Callable[[socket.socket], None], limit: int) -> None:
        super().__init__(handle, limit)
        # Not to be guessed, so that nobody can be there before us.
        self.name = f"windlass-{secrets.token_hex(16)}"

    def start(self) -> None:
        """Listen."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{self.name}")
        listener.listen(self._limit)
        self._listen(listener)

    def _admit(self, connection: socket.socket) -> bool:
        return peer_user(connection) == os.getuid()


class TcpListener(Listener):
    """For whoever reaches the port. ``handle`` must ask who it is.

    Args:
        task: Who listens, for messages.
        handle: Owns the connection.
        limit: Connections at once.
    """

    def __init__(self, task: TaskId, handle: Callable[[socket.socket], None], limit: int) -> None:
        super().__init__(handle, limit)
        self._task = task

    def start(self, host: str, port: int) -> int:
        """Listen.

        Args:
            host: An address or name of this machine.
            port: 0: any free one.

        Returns:
            The port.

        Raises:
            AddressInUseError: The port is taken, or the host is not this machine.
        """
        try:
            listener = _listening(host.strip("[]"), port, self._limit)
        except OSError as error:
            raise AddressInUseError(
                f"{self._task} cannot listen at {host}:{port} for sessions: {error.strerror or error}. "
                "Stop the process that has the port, give session_port (WINDLASS_SESSION_PORT) another one, "
                "or 0 for any",
                task=self._task,
                address=f"{host}:{port}",
            ) from error
        bound: int = listener.getsockname()[1]
        self._listen(listener)
        return bound

    def _admit(self, connection: socket.socket) -> bool:
        prepare_tcp(connection)
        return True


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    """A TCP socket that listens there."""
    if host == "0.0.0.0":  # noqa: S104 - asked for
        # As for gRPC, whose port this one is beside: every interface, those of IPv6 too.
        with contextlib.suppress(OSError):
            return _listening("::", port, backlog)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name may stand for several addresses; who dials it tries all of them.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    made = socket.socket(family, kind, protocol)
    try:
        # Not create_server: like gRPC's, this port must not be shared, also not with what it left behind.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        made.bind(address)
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made
