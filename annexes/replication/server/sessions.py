"""The sessions and calls that use a share's store now."""

import threading
from collections.abc import Callable


class RunningSessions:
    """The users of a share's store, until it has ended. Not thread-safe but for
    :meth:`ended_within`.

    Args:
        lock: Held by callers of all other methods.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._running: dict[object, Callable[[], None]] = {}

    def begin(self, cancel: Callable[[], None]) -> object:
        """Add a session; returns its key for :meth:`end`."""
        key = object()
        self._running[key] = cancel
        return key

    def end(self, key: object) -> None:
        """Remove a finished session."""
        del self._running[key]
        self._changed.notify_all()

    def cancel(self) -> None:
        """Make all of them end soon."""
        for cancel in list(self._running.values()):
            cancel()

    def ended_within(self, seconds: float) -> bool:
        """Wait until all have ended; False: some have not. The caller does not hold the lock."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)
