"""A thread that runs one replica per step."""

import threading
from collections.abc import Callable
from contextlib import suppress

from ...core.process.threads import new_thread, nobody_waits


def closed_gate() -> threading.Lock:
    """Make a locked lock: acquiring it waits until another thread releases it."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class ReplicaThread:
    """Waits for the work of a step and does it; drops work that it is too late for.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._go = closed_gate()
        self._work: Callable[[], None] | None = None
        self._ended = False
        # The caller catches what its work raises, and does it itself if this thread has not begun.
        new_thread(name, self._loop, failed=nobody_waits).start()

    def start(self, work: Callable[[], None]) -> None:
        """Do this next."""
        self._work = work
        self._wake()

    def stop(self) -> None:
        """End, once it is through."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is on its way already, and will find the newest work
            self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._ended:
                return
            work, self._work = self._work, None
            if work is not None:
                work()
            del work  # what a step used must not live until the next one
