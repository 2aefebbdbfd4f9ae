"""Tickets: what a worker shows at a door that cannot ask who it is, from one that could."""

import secrets
import threading
from collections import OrderedDict


class Tickets:
    """Random words, each good for one entry. Thread-safe.

    Args:
        limit: Most that are out; the oldest is void then.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._out: OrderedDict[bytes, None] = OrderedDict()

    def issue(self) -> bytes:
        """A new ticket."""
        ticket = secrets.token_bytes(16)
        with self._lock:
            self._out[ticket] = None
            while len(self._out) > self._limit:
                self._out.popitem(last=False)
        return ticket

    def redeem(self, ticket: bytes) -> bool:
        """Whether it is good; not any more after this."""
        with self._lock:
            if ticket not in self._out:
                return False
            del self._out[ticket]
            return True
