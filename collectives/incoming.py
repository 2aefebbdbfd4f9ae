"""Accepted links that wait for their ring."""

import threading
import time

from .ring_frames import Receiver


class Incoming:
    """Receivers by (ring, rank of the sender). Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._links: dict[tuple[int, int], Receiver] = {}
        self._closed = False

    def put(self, ring: int, rank: int, link: Receiver) -> None:
        """Add a link. An older one of the same sender is closed: that process is gone."""
        with self._changed:
            unwanted: Receiver | None = link
            if not self._closed:
                unwanted = self._links.get((ring, rank))
                self._links[(ring, rank)] = link
            self._changed.notify_all()
        if unwanted is not None:
            unwanted.close()

    def take(self, ring: int, rank: int, timeout_s: float) -> Receiver | None:
        """The link of a sender; None if it does not come within ``timeout_s``."""
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
