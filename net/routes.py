"""Routes to tasks that this machine cannot reach: through the gateway of their cluster.

A driver on a laptop knows the addresses of its job's tasks, and can only reach the gateway's. While
a route is open, connections of this process to such an address go through the gateway. For gRPC,
which dials by itself, a Unix socket in a folder of this user stands for the address.

The gateway decides who may reach which task when it issues a ticket. What goes over a forwarded
connection is between its two ends, which authenticate each other as on any other connection; the
gateway copies it, and does not look at it. Splicing within the kernel makes many small pieces,
which a receiver takes in more slowly: 64 MB over loopback took 31 to 43 ms spliced, 23 to 41 ms
copied in large pieces, and 18 to 20 ms over a bare socket.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..cluster.access import Principal
from ..core.errors import LimitExceededError, RopewalkError
from ..core.files.temporary import TemporaryFolder
from ..core.process.threads import new_thread, nobody_waits
from .arrival import ROUTE
from .auth.guard import one_caller
from .auth.proof import Tickets
from .http2.shares import Places
from .sockets import Connect, notice_loss, routed, split_address

log = logging.getLogger(__name__)

_BACKLOG = 32
_RETRY_S = 0.1
_MAX_PATH_BYTES = 104  # longest folder of sockets: the path of a socket has at most 107 on Linux
_RELAY_BYTES = 1024 * 1024
_TICKET_S = 8.0  # less than the task waits for a greeting
_CONNECT_TIMEOUT_S = 5.0
_LEAST_S = 0.1


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
            routed.update({address: route.connect for address, route in routes.items()})
        yield
    finally:
        with _lock:
            for address, route in routes.items():
                if _routes.get(address) is route:
                    del _routes[address], routed[address]
        for route in routes.values():
            route.close()
        folder.remove()


def grpc_target(address: str) -> str:
    """Find the target for gRPC that stands for an address."""
    route = _routes.get(address)
    return f"unix:{os.fspath(route.path)}" if route is not None else address


def relay(one: socket.socket, other: socket.socket) -> None:
    """Copy what comes at each socket to the other one, until both directions have ended. Blocks.

    The end of one direction is passed on while the other one continues. An error ends both.

    Args:
        one: Connected and blocking. The caller closes it afterwards.
        other: Socket at the other end. Connected and blocking, too.
    """
    back = new_thread("relay", partial(_copy, other, one), failed=nobody_waits)
    try:
        back.start()
    except RuntimeError as error:  # no more threads
        log.debug("a connection could not be relayed: %s", error)
        return
    try:
        _copy(one, other)
    finally:
        back.join()


def break_off(*connections: socket.socket) -> None:
    """End connections at once, in both directions, also while other threads read or write."""
    for connection in connections:
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        buffer = memoryview(bytearray(_RELAY_BYTES))  # a page of it costs memory once it is used
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError as error:
        log.debug("a relayed connection broke off: %s", error)
        break_off(source, target)
    except BaseException:
        break_off(source, target)
        raise


class _Reached(NamedTuple):
    """A connection to a task, for whom it was made, and who takes a place for it."""

    task: socket.socket
    caller: Principal | None


class Forwarder:
    """Forwards connections to tasks, at the gateway. Thread-safe.

    Args:
        limit: Most connections at once, half of them for one caller; each has two threads.
        clock: Seconds, for the lifetime of tickets.
    """

    def __init__(self, limit: int = 256, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._places = Places(limit)
        self._tickets: Tickets[_Reached] = Tickets(_TICKET_S, limit, dropped=self._end, clock=clock)
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._stopped = False

    def ticket(self, address: str, caller: Principal | None = None) -> bytes:
        """Connect to ``address``, and issue a ticket for that connection.

        Args:
            address: host:port.
            caller: Identity of the caller; None: it has shown none.

        Raises:
            LimitExceededError: There are too many connections, or the caller has too many.
            OSError: The address does not accept the connection.
        """
        self._tickets.drop_expired()
        with self._lock:
            if self._stopped:
                raise ConnectionError("this gateway ends")
            if not self._places.take(one_caller(caller)):
                raise LimitExceededError(
                    f"{self._places.count} connections are forwarded already, of "
                    f"{self._places.limit} and half as many for one driver; close some, or end "
                    "drivers that need none",
                    limit=self._places.limit,
                )
        try:
            task = socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S)
        except BaseException:
            self._give_back(caller)
            raise
        return self._tickets.issue(_Reached(task, caller))

    def _end(self, reached: "_Reached") -> None:
        reached.task.close()
        self._give_back(reached.caller)

    def _give_back(self, caller: Principal | None) -> None:
        with self._lock:
            self._places.give_back(one_caller(caller))

    def accept(self, client: socket.socket, ticket: bytes) -> None:
        """Forward a connection, which is owned from now on.

        Raises:
            OSError: The ticket is not valid.
        """
        reached = self._tickets.redeem(ticket)
        if reached is None:
            raise ConnectionError("a connection to forward has no ticket that is good now")
        ends = client, reached.task
        with self._lock:
            self._open.add(ends)
        serve = partial(self._serve, client, reached)
        try:
            new_thread("forward", serve, failed=nobody_waits).start()
        except RuntimeError as error:  # no more threads
            with self._lock:
                self._open.discard(ends)
            self._end(reached)
            raise ConnectionError(str(error)) from error

    def stop(self) -> None:
        """End every connection."""
        with self._lock:
            self._stopped = True
            everyone = list(self._open)
        self._tickets.clear()
        for ends in everyone:
            break_off(*ends)

    def _serve(self, client: socket.socket, reached: "_Reached") -> None:
        ends = client, reached.task
        try:
            with client, reached.task:
                for end in ends:
                    end.settimeout(None)
                    notice_loss(end)
                relay(*ends)
        except OSError as error:
            log.debug("a forwarded connection broke off: %s", error)
        finally:
            with self._lock:
                self._open.discard(ends)
            self._end(reached)


def through_gateway(address: str, ask_ticket: Callable[[float], bytes]) -> Connect:
    """Make the function by which :func:`~ropewalk.net.routes.open_routes` reaches a task, through
    its cluster's gateway.

    Args:
        address: The gateway's, host:port.
        ask_ticket: Asks the gateway for a ticket to the task, within so many seconds; raises
            OSError.
    """

    def connect(timeout_s: float) -> socket.socket:
        deadline = time.monotonic() + timeout_s
        ticket = ask_ticket(timeout_s)
        return connect_forwarded(address, ticket, max(_LEAST_S, deadline - time.monotonic()))

    return connect


def connect_forwarded(gateway: str, ticket: bytes, timeout_s: float) -> socket.socket:
    """Connect to the task that a gateway has issued a ticket for.

    Args:
        gateway: Address of the gateway, host:port.
        ticket: Not used yet.
        timeout_s: Longest time for the connection to the gateway. Unit: seconds.

    Raises:
        OSError: The gateway is not reached. A ticket that is not valid shows at the first receive.
    """
    connection = socket.create_connection(split_address(gateway), timeout_s)
    try:
        connection.sendall(ROUTE + ticket)
        connection.settimeout(None)
        notice_loss(connection)
    except BaseException:
        connection.close()
        raise
    return connection
