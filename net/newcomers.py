"""Tunnels whose greeting has not come: bounded in number and in time.

A tunnel costs a thread before its greeting has come. A client that opens many and sends nothing
would have all threads, so only so many may be silent at once: one more takes the place of the one
that has been silent for longest, which is cancelled.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..core.process.threads import new_thread

# A message comes with its call, or soon after: a tunnel is not cancelled earlier.
_LEAST_S = 0.1
_LOOKS = 4  # checks within one timeout


class Newcomers:
    """Tunnels that have not sent anything yet. Thread-safe.

    Args:
        limit: Most at once.
        timeout_s: Longest time that each may be silent. Unit: seconds.
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._left = threading.Condition()
        self._silent: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = itertools.count()
        self._watching = False
        self._stopped = threading.Event()

    @contextmanager
    def silent(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Count a tunnel as silent while the block runs. Waits a moment if there are too many.

        Args:
            cancel: Called from another thread to end the tunnel.
        """
        number = self._enter(cancel)
        try:
            yield
        finally:
            with self._left:
                self._silent.pop(number, None)
                self._left.notify()

    def stop(self) -> None:
        """Stop cancelling."""
        self._stopped.set()

    def _enter(self, cancel: Callable[[], object]) -> int:
        with self._left:
            number = next(self._numbers)
            while len(self._silent) >= self._limit:
                oldest = next(iter(self._silent))
                left_s = self._silent[oldest][0] + _LEAST_S - time.monotonic()
                if left_s <= 0:
                    self._silent.pop(oldest)[1]()
                else:
                    self._left.wait(left_s)
            self._silent[number] = time.monotonic(), cancel
            if not self._watching:
                new_thread("newcomers", self._watch, failed=self._watch_failed).start()
                self._watching = True
            return number

    def _watch_failed(self, _: BaseException) -> None:
        """Let the next silent tunnel start a new thread."""
        with self._left:
            self._watching = False

    def _watch(self) -> None:
        """Cancel tunnels whose time is over. Ends when there were none for a while."""
        idle = 0
        while not self._stopped.wait(self._timeout_s / _LOOKS):
            with self._left:
                idle = 0 if self._silent else idle + 1
                if idle > _LOOKS:
                    self._watching = False
                    return
                until = time.monotonic() - self._timeout_s
                for number in [n for n, (since, _) in self._silent.items() if since <= until]:
                    self._silent.pop(number)[1]()
