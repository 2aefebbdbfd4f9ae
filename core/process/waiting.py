"""Saying what a task waits for: for whom or what, since when and until when.

No terminal stays silent for long. A wait calls :meth:`WaitLog.tick` as often
as it looks; nothing is logged before :data:`FIRST_S`, and then at growing intervals.
"""

import logging
import math
import time
from datetime import datetime, timedelta

from ..clock import Clock, SystemClock

log = logging.getLogger(__name__)

FIRST_S = 3.0
"""A shorter wait is normal and not worth a line."""

_INTERVALS_S = (7.0, 20.0, 30.0)  # until the next lines: after 10 s, 30 s, 60 s
_LATER_S = 60.0


class WaitLog:
    """The log of a wait. Used by one thread.

    ::

        waits = WaitLog("/job:worker/task:0", limit_s=120, limit="join_timeout_s")
        while not there():
            if waits.is_over:
                raise JoinTimeoutError(...)
            waits.tick("the chief at 10.0.0.1:2222", "connection refused")
            pause()
        waits.done()

    Args:
        waiter: Task that waits.
        limit_s: Longest time to wait; None: no limit. Unit: seconds.
        limit: The setting behind the limit, or what ends the wait instead of one.
        began: Time at which the wait began, on the clock, if that was not now. Unit: seconds.
        clock: Clock, replaced in tests.
    """

    def __init__(
        self,
        waiter: object,
        *,
        limit_s: float | None = None,
        limit: str = "",
        began: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._waiter = str(waiter)
        self._limit_s = limit_s
        self._limit = limit
        self._clock = clock or SystemClock()
        self.restart(began)

    def restart(self, began: float | None = None) -> None:
        """Wait for the next thing from now on: what was waited for has come."""
        now = self._clock.now()
        self._began = now if began is None else began
        self._wall = time.time() - (now - self._began)
        self._lines = 0
        self._next = self._began + FIRST_S
        self._whom = ""

    @property
    def left_s(self) -> float:
        """Time until the limit. Unit: seconds."""
        if self._limit_s is None:
            return math.inf
        return self._began + self._limit_s - self._clock.now()

    @property
    def is_over(self) -> bool:
        """Whether the limit has come: the caller gives up, and says for what it has waited."""
        return self.left_s <= 0

    def tick(self, whom: str, why: object = "") -> None:
        """Log that the wait goes on, if a line is due. Logs a line if one is due.

        Args:
            whom: Name of what is waited for; may change.
            why: The last answer, or why there is none.
        """
        now = self._clock.now()
        if now < self._next:
            return
        later = _INTERVALS_S[self._lines] if self._lines < len(_INTERVALS_S) else _LATER_S
        self._next = now + later
        self._lines += 1
        self._whom = whom
        log.warning("%s", self._line(whom, now - self._began, why))

    def done(self) -> None:
        """End the wait: what was waited for has come; says so if it had said that it waits."""
        if self._lines:
            waited_s = self._clock.now() - self._began
            log.info("%s waited %.0f s for %s: over", self._waiter, waited_s, self._whom)
        self.restart()

    def _line(self, whom: str, waited_s: float, why: object) -> str:
        began = datetime.fromtimestamp(self._wall).astimezone()
        until = f"without a limit ({self._limit})" if self._limit else "without a limit"
        if self._limit_s is not None:
            end = began + timedelta(seconds=self._limit_s)
            until = f"until {end:%H:%M:%S} ({self._limit} {self._limit_s:g} s)"
        return (
            f"{self._waiter} waits for {whom} since {began:%H:%M:%S} ({waited_s:.0f} s), {until}"
            f"{f': {why}' if why else ''}"
        )
