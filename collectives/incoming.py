"""Accepted links that wait for their ring."""

import threading
import time

from ..core.errors import LimitExceededError
from .ring_frames import Receiver


class Incoming:
    """Receivers by (ring, rank of the sender). Thread-safe.

    Args:
        limit: Most of them.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._links: dict[tuple[int, int], Receiver] = {}
        self._closed = False

    def put(self, ring: int, rank: int, link: Receiver) -> None:
        """Add a link. An older one of the same sender is closed: that process is gone.

        Raises:
            LimitExceededError: Too many wait already.
        """
        with self._changed:
            if len(self._links) >= self._limit and (ring, rank) not in self._links:
                raise LimitExceededError(
                    f"{self._limit} links wait already for rings that have not begun; this one, of "
                    f"rank {rank} in ring {ring}, is refused",
                    limit="links",
                    value=self._limit,
                )
            unwanted: Receiver | None = link
            if not self._closed:
                unwanted = self._links.get((ring, rank))
                self._links[(ring, rank)] = link
            self._changed.notify_all()
        if unwanted is not None:
            unwanted.close()

    def take(self, ring: int, rank: int, timeout_s: float) -> Receiver | None:
        """Take the link of a sender; None if it does not come within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (ring, rank) not in self._links:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return self._links.pop((ring, rank))

    def close(self) -> None:
        """Close all links that were not taken, and those that still come."""
        with self._changed:
            self._closed = True
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()
