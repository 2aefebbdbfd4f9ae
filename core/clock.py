"""Time as an argument: code that waits takes a Clock, which tests move by hand."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waiting on an event."""

    def now(self) -> float:
        """Seconds since some fixed point."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for ``event`` at most ``timeout_s``; return whether it is set."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed point."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for ``event`` at most ``timeout_s``; return whether it is set."""
        return event.wait(timeout_s)
