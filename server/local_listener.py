"""Accepting connections of this machine and user: a Unix socket without a name in any file system.

It has a name in the abstract namespace, which goes with the process: nothing is left behind, whoever is
killed. Peers learn the name from a gRPC call.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable

from ..core.frame_socket import peer_user

log = logging.getLogger(__name__)

_RETRY_S = 0.1


class LocalListener:
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
        # Not to be guessed, so that nobody can be there before us.
        self.name = f"windlass-{secrets.token_hex(16)}"

    def start(self) -> None:
        """Listen."""
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{self.name}")
        listener.listen(self._limit)
        threading.Thread(target=self._accept, args=(listener,), name="local", daemon=True).start()

    def stop(self) -> None:
        """Accept none any more. Idempotent."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            # Closing alone does not wake a thread in accept.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

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
            with self._lock:
                welcome = (
                    peer_user(connection) == os.getuid()
                    and self._open < self._limit
                    and self._listener is not None
                )
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
