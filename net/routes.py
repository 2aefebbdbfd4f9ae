"""Routes to tasks that this machine cannot reach: through the gateway of their cluster.

A driver on a laptop knows the addresses of its job's tasks, and can only reach the gateway's. While
a route is open, connections of this process to such an address go through the gateway. For gRPC,
which dials by itself, a Unix socket in a folder of this user stands for the address.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..core.errors import RopewalkError
from ..core.files.temporary import TemporaryFolder
from ..core.process.threads import new_thread, nobody_waits
from .relay import relay

log = logging.getLogger(__name__)

Connect = Callable[[float], socket.socket]
"""Connects to a task within so many seconds; raises OSError."""

_BACKLOG = 32
_RETRY_S = 0.1
_MAX_PATH_BYTES = 104  # longest folder of sockets: the path of a socket has at most 107 on Linux


class _Route:
    """The route to one address."""

    def __init__(self, connect: Connect, path: Path) -> None:
        self.connect = connect
        self.path = path
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen(_BACKLOG)
        self._closed = threading.Event()
        new_thread("route", self._accept, failed=nobody_waits).start()

    def close(self) -> None:
        """Stop accepting; open connections continue."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError as error:
                if not self._closed.wait(_RETRY_S):  # no descriptor is left; one may be soon
                    log.debug("a connection to a task could not be accepted: %s", error)
                continue
            serve = partial(self._serve, client)
            try:
                new_thread("route", serve, failed=nobody_waits).start()
            except RuntimeError as error:  # no more threads
                log.debug("a connection to a task could not be served: %s", error)
                client.close()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                task = self.connect(5.0)
            except (OSError, RopewalkError) as error:
                log.debug("no way to a task: %s", error)
                return
            with task:
                relay(client, task)


_routes: dict[str, _Route] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def open_routes(connects: dict[str, Connect]) -> Iterator[None]:
    """Reach some addresses by routes, in this process, for as long as the block runs.

    Args:
        connects: Functions that connect, by address (host:port).
    """
    folder = TemporaryFolder("ropewalk-routes", max_path_bytes=_MAX_PATH_BYTES)
    routes: dict[str, _Route] = {}
    try:
        for number, (address, connect) in enumerate(connects.items()):
            routes[address] = _Route(connect, folder.path / str(number))
        with _lock:
            _routes.update(routes)
        yield
    finally:
        with _lock:
            for address, route in routes.items():
                if _routes.get(address) is route:
                    del _routes[address]
        for route in routes.values():
            route.close()
        folder.remove()


def connect_routed(address: str, timeout_s: float) -> socket.socket | None:
    """Connect by the route to an address; None: there is no route, dial the address.

    Raises:
        OSError: There is a route, and connecting fails.
    """
    route = _routes.get(address)
    return route.connect(timeout_s) if route is not None else None


def grpc_target(address: str) -> str:
    """Find the target for gRPC that stands for an address."""
    route = _routes.get(address)
    return f"unix:{os.fspath(route.path)}" if route is not None else address
