"""A clock that tests move by hand."""

import threading


class ManualClock:
    """A clock that only :meth:`advance` and waiting move."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Seconds since some fixed point."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Advance by ``timeout_s`` without waiting; return whether the event is set."""
        if not event.is_set():
            self._now += timeout_s
        return event.is_set()
