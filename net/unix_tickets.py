"""Tickets: who greeted over the port shows with one that it greets again, over a Unix socket.

A Unix socket shows which user is at its other end, and not which task. A ticket comes in the
welcome of a greeting whose sender is known, over the connection that showed who it is.
"""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ..cluster.principal import Principal

VALID_S = 10.0
_BYTES = 32
_MOST = 1024  # not used yet; the oldest go first


class UnixTickets:
    """The tickets of one process. Thread-safe.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By digest: to look one up takes the same time whatever was guessed.
        self._valid: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    def issue(self, principal: Principal) -> bytes:
        """A ticket for one greeting of this principal, within :data:`VALID_S`."""
        ticket = secrets.token_bytes(_BYTES)
        with self._lock:
            self._valid[_digest(ticket)] = self._clock() + VALID_S, principal
            while len(self._valid) > _MOST:
                self._valid.popitem(last=False)
        return ticket

    def redeem(self, ticket: bytes) -> Principal | None:
        """Whose it is, once; None: it is not valid."""
        with self._lock:
            until, principal = self._valid.pop(_digest(ticket), (0.0, None))
        return principal if until > self._clock() else None


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
