"""Connections that a gateway forwards to a task, as they are, for who was given a ticket.

Who may connect to what is decided where tickets are given out. What goes over a forwarded
connection is between its two ends, which show each other who they are as ever; the gateway does not
look at it.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from ..core.threads import new_thread
from .arrival import TICKET_BYTES
from .splice import copy_all
from .tcp import notice_loss, split_address

log = logging.getLogger(__name__)

_TICKET_S = 8.0  # less than the task waits for a greeting
_CONNECT_TIMEOUT_S = 5.0


class Forwarder:
    """Forwards connections. Thread-safe.

    Args:
        limit: Most at once; each has two threads.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._tickets: dict[bytes, tuple[socket.socket, float]] = {}  # and until when
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._stopped = False

    def ticket(self, address: str) -> bytes:
        """Connect to ``address``, and make a ticket for who is to have that connection, soon.

        Raises:
            OSError: Nobody listens there, or there are too many connections.
        """
        with self._lock:
            self._drop_late()
            if self._stopped or len(self._open) + len(self._tickets) >= self._limit:
                raise ConnectionError(
                    f"{self._limit} connections are forwarded, which is the limit"
                )
        task = socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S)
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._tickets[ticket] = task, time.monotonic() + _TICKET_S
        return ticket

    def accept(self, client: socket.socket, ticket: bytes) -> None:
        """Forward a connection, which is owned from now on.

        Raises:
            OSError: The ticket is not good.
        """
        with self._lock:
            self._drop_late()
            task, _ = self._tickets.pop(ticket, (None, 0.0))
        if task is None:
            raise ConnectionError("a connection to forward has no ticket that is good now")
        with self._lock:
            self._open.add((client, task))
        try:
            serve = partial(self._serve, client, task)
            new_thread("forward", serve, failed=lambda _: _end(client, task)).start()
        except RuntimeError as error:  # no more threads
            task.close()
            with self._lock:
                self._open.discard((client, task))
            raise ConnectionError(str(error)) from error

    def _drop_late(self) -> None:
        now = time.monotonic()
        for late in [each for each, (_, until) in self._tickets.items() if until < now]:
            self._tickets.pop(late)[0].close()

    def stop(self) -> None:
        """End every connection."""
        with self._lock:
            self._stopped = True
            everyone = list(self._open)
            for task, _ in self._tickets.values():
                task.close()
            self._tickets.clear()
        for ends in everyone:
            _end(*ends)

    def _serve(self, client: socket.socket, task: socket.socket) -> None:
        client.settimeout(None)
        task.settimeout(None)
        ends = client, task
        try:
            for end in ends:
                notice_loss(end)
            copy_back = partial(_run, lambda: copy_all(task, client), ends)
            back = new_thread("forward", copy_back, failed=lambda _: _end(*ends))
            back.start()
            _run(lambda: copy_all(client, task), ends)
            back.join()
        except (OSError, RuntimeError) as error:
            log.debug("a forwarded connection broke off: %s", error)
        finally:
            with self._lock:
                self._open.discard(ends)
            for end in ends:
                end.close()


def _run(move: Callable[[], None], ends: tuple[socket.socket, socket.socket]) -> None:
    try:
        move()
    except OSError as error:
        log.debug("a forwarded connection broke off: %s", error)
        _end(*ends)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
