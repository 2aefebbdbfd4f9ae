"""Tickets: random bytes that stand for a value, once and for a short time.

What a process hands out over one connection comes back over another one, and shows that both are of
the same peer: the principal of a greeting over the port, when it greets again over a Unix socket
(which shows a user and not a task); the connection to a task that a gateway has opened, for the
driver that asked for it.
"""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

TICKET_BYTES = 32

T = TypeVar("T")


class Tickets(Generic[T]):
    """The tickets of one process for one purpose. Thread-safe.

    Args:
        valid_s: Time for which a ticket is valid. Unit: seconds.
        most: Largest number of unused tickets; a further one takes the place of the oldest.
        dropped: Called with the value of each ticket that was not redeemed.
        clock: Seconds.
    """

    def __init__(
        self,
        valid_s: float,
        most: int,
        *,
        dropped: Callable[[T], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._valid_s = valid_s
        self._most = most
        self._dropped = dropped
        self._clock = clock
        self._lock = threading.Lock()
        # Keyed by digest: a lookup takes the same time whatever was guessed. All are valid for the
        # same time, so the oldest is the first to expire.
        self._unused: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def issue(self, value: T) -> bytes:
        """Issue a ticket for one use of ``value``."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._drop_expired()
            while len(self._unused) >= self._most:
                self._drop_oldest()
            self._unused[_digest(ticket)] = self._clock() + self._valid_s, value
        return ticket

    def redeem(self, ticket: bytes) -> T | None:
        """Redeem a ticket, once, for its value; None: it is not valid."""
        with self._lock:
            self._drop_expired()
            _, value = self._unused.pop(_digest(ticket), (0.0, None))
        return value

    def drop_expired(self) -> None:
        """Drop those that are valid no longer."""
        with self._lock:
            self._drop_expired()

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            while self._unused:
                self._drop_oldest()

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._unused and next(iter(self._unused.values()))[0] <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, value) = self._unused.popitem(last=False)
        self._dropped(value)


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
