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

from ..core.process.threads import new_thread, nobody_waits
from .arrival import ROUTE
from .relay import break_off, relay
from .routes import Connect
from .tcp import notice_loss, split_address
from .tickets import Tickets

log = logging.getLogger(__name__)

_TICKET_S = 8.0  # less than the task waits for a greeting
_CONNECT_TIMEOUT_S = 5.0
_LEAST_S = 0.1


class Forwarder:
    """Forwards connections to tasks, at the gateway. Thread-safe.

    Args:
        limit: Most connections at once; each has two threads.
        clock: Seconds, for the lifetime of tickets.
    """

    def __init__(self, limit: int = 256, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._tickets: Tickets[socket.socket] = Tickets(
            _TICKET_S, limit, dropped=socket.socket.close, clock=clock
        )
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._stopped = False

    def ticket(self, address: str) -> bytes:
        """Connect to ``address``, and issue a ticket for that connection.

        Raises:
            OSError: The address does not accept the connection, or there are too many connections.
        """
        with self._lock:
            self._check_room()
        task = socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S)
        try:
            with self._lock:
                self._check_room()  # others have connected meanwhile
                return self._tickets.issue(task)
        except ConnectionError:
            task.close()
            raise

    def _check_room(self) -> None:
        if self._stopped or len(self._open) + len(self._tickets) >= self._limit:
            raise ConnectionError(f"{self._limit} connections are forwarded, which is the limit")

    def accept(self, client: socket.socket, ticket: bytes) -> None:
        """Forward a connection, which is owned from now on.

        Raises:
            OSError: The ticket is not valid.
        """
        task = self._tickets.redeem(ticket)
        if task is None:
            raise ConnectionError("a connection to forward has no ticket that is good now")
        with self._lock:
            self._open.add((client, task))
        try:
            new_thread("forward", partial(self._serve, client, task), failed=nobody_waits).start()
        except RuntimeError as error:  # no more threads
            task.close()
            with self._lock:
                self._open.discard((client, task))
            raise ConnectionError(str(error)) from error

    def stop(self) -> None:
        """End every connection."""
        with self._lock:
            self._stopped = True
            everyone = list(self._open)
            self._tickets.clear()
        for ends in everyone:
            break_off(*ends)

    def _serve(self, client: socket.socket, task: socket.socket) -> None:
        try:
            with client, task:
                for end in (client, task):
                    end.settimeout(None)
                    notice_loss(end)
                relay(client, task)
        except OSError as error:
            log.debug("a forwarded connection broke off: %s", error)
        finally:
            with self._lock:
                self._open.discard((client, task))


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
        timeout_s: For the connection to the gateway. Unit: seconds.

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
