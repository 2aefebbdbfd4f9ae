"""Connections to tasks that a gateway forwards unread, for tickets: both halves of it.

The gateway decides who may reach which task when it issues a ticket. What goes over a forwarded
connection is between its two ends, which authenticate each other as on any other connection; the
gateway does not look at it.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..cluster.access.principal import Principal
from ..core.errors import LimitExceededError
from ..core.process.threads import new_thread, nobody_waits
from .arrival import ROUTE
from .auth.guard import one_caller
from .http2.shares import Places
from .relay import break_off, relay
from .routes import Connect
from .tcp import notice_loss, split_address
from .tickets import Tickets

log = logging.getLogger(__name__)

_TICKET_S = 8.0  # less than the task waits for a greeting
_CONNECT_TIMEOUT_S = 5.0
_LEAST_S = 0.1


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
