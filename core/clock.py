"""Time as an argument: code that waits takes a Clock, which tests move by hand."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waiting on an event."""

    def now(self) -> float:
        """Read the time, in seconds since some fixed point."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for ``event`` at most ``timeout_s``; return whether it is set."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Read the time, in seconds since some fixed point."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for ``event`` at most ``timeout_s``; return whether it is set."""
        return event.wait(timeout_s)


class Silence:
    """The time for which a peer has been silent, while this process has listened. Used by one
    thread.

    A machine that was suspended, or a process that was stopped, finds that hours have passed:
    nobody was heard meanwhile, and nobody can be blamed for it. So what passes between two looks
    counts only as far as a look takes at most.

    Args:
        now: The current time. Unit: seconds.
        longest_look_s: Longest time between two looks if this process runs. Unit: seconds.
    """

    def __init__(self, now: float, longest_look_s: float) -> None:
        self._longest_look_s = longest_look_s
        self._looked = now
        self._silent_s = 0.0

    def heard(self, now: float) -> None:
        """Begin anew: the peer was heard."""
        self._looked, self._silent_s = now, 0.0

    def look(self, now: float) -> float:
        """Note that the peer was not heard; returns how long that lasts. Unit: seconds."""
        self._silent_s += min(now - self._looked, self._longest_look_s)
        self._looked = now
        return self._silent_s
