"""Waiting: saying what for, and for another process with a spin first."""

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from ..clock import Clock, SystemClock
from .events import event

log = logging.getLogger(__name__)

# -- Saying what a task waits for: for whom or what, since when and until when -----------------
# No terminal stays silent for long. A wait calls :meth:`WaitLog.tick` as often as it looks;
# nothing is logged before :data:`FIRST_S`, and then at growing intervals.


FIRST_S = 3.0
"""A shorter wait is normal and not worth a line."""

_INTERVALS_S = (7.0, 20.0, 30.0)  # until the next lines: after 10 s, 30 s, 60 s
_LATER_S = 60.0


_waits: "weakref.WeakValueDictionary[int, WaitLog]" = weakref.WeakValueDictionary()


def waits_now() -> dict[int, tuple[str, float]]:
    """Find what each thread of this process waits for, by the thread's identifier.

    Returns:
        (for whom or what, since when, in seconds since 1970)
    """
    return {thread: wait.now for thread, wait in list(_waits.items()) if wait.now[0]}


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
    def now(self) -> tuple[str, float]:
        """The name of what is waited for now, or nothing, and since when, in seconds since 1970."""
        return self._whom, self._wall

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
        if not self._whom:
            _waits[threading.get_ident()] = self
        self._whom = whom
        now = self._clock.now()
        if now < self._next:
            return
        later = _INTERVALS_S[self._lines] if self._lines < len(_INTERVALS_S) else _LATER_S
        self._next = now + later
        self._lines += 1
        waited_s = now - self._began
        waits = event("wait.long", whom=whom, waited_s=round(waited_s), why=why)
        log.warning("%s", self._line(whom, waited_s, why), extra=waits)

    def done(self) -> None:
        """End the wait: what was waited for has come; says so if it had said that it waits."""
        if self._lines:
            waited_s = self._clock.now() - self._began
            over = event("wait.over", whom=self._whom, waited_s=round(waited_s))
            log.info(
                "%s waited %.0f s for %s: over", self._waiter, waited_s, self._whom, extra=over
            )
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


# -- Waiting for another process: spin for a moment, then sleep --------------------------------
# Waking a sleeping core costs 50 µs or more, above all on a virtual machine: more than a small
# step takes. So a thread that waits spins for a moment first. Two processes that share a core must
# not do that: the one that spins takes the time of the one that it waits for, and since neither
# ever sleeps the scheduler has no occasion to move one of them to an idle core (64 MB through a
# ring took 27 to 45 ms then instead of 13). A yield that takes long shows that another thread ran
# on this core.

SPIN_S = 200e-6
_LOOKS = 16  # in a row, before other threads may run
_SHARED_CORE_S = 20e-6  # a yield takes below 2 µs where no other thread wants the core
_LONGEST_SLEEP_S = 2e-3
_SLEEP_SHARE = 1 / 16  # of the wait so far: the largest delay that a sleep adds

T = TypeVar("T")


def spin_then_sleep(
    attempt: Callable[[], T | None],
    sleep: Callable[[float], None],
    *,
    timeout_s: float | None = None,
    spin_s: float = SPIN_S,
    looks: int = 1,
) -> T:
    """Call ``attempt`` until it returns something other than None.

    Args:
        attempt: Checks once, and does not wait.
        sleep: Sleeps for at most so many seconds, or until there is reason to check again.
        timeout_s: Give up after this; None: never. Unit: seconds.
        spin_s: Time to check without sleeping. Unit: seconds.
        looks: Number of checks between two yields; more where a check is no system call.

    Raises:
        TimeoutError: ``attempt`` returned None until then.
    """
    began = time.perf_counter()
    result = attempt()
    while result is None and time.perf_counter() - began < spin_s:
        for _ in range(looks):
            if (result := attempt()) is not None:
                return result
        yielded = time.perf_counter()
        os.sched_yield()
        if time.perf_counter() - yielded > _SHARED_CORE_S:
            result = attempt()
            break
    while result is None:
        left = _FOREVER_S
        if timeout_s is not None:
            left = timeout_s - (time.perf_counter() - began)
            if left <= 0:
                raise TimeoutError("timed out")
        sleep(left)
        result = attempt()
    return result


_FOREVER_S = 3600.0  # then it is checked again


def wait_for_counter(
    counters: memoryview, index: int, least: int, goes_on: Callable[[], bool]
) -> bool:
    """Wait until another process has moved a counter in shared memory to ``least``.

    Args:
        counters: int64 words of a segment.
        index: Index of the counter.
        least: The value to wait for.
        goes_on: Called before every sleep; False ends the wait.

    Returns:
        Whether the counter is there; False if ``goes_on`` was false first.
    """
    if counters[index] >= least:
        return True
    began = time.perf_counter()

    def attempt() -> bool | None:
        return True if counters[index] >= least else None

    def sleep(_: float) -> None:
        if not goes_on():
            raise _PeerLeftError
        time.sleep(min((time.perf_counter() - began) * _SLEEP_SHARE, _LONGEST_SLEEP_S))

    try:
        return spin_then_sleep(attempt, sleep, looks=_LOOKS)
    except _PeerLeftError:
        return bool(counters[index] >= least)


class _PeerLeftError(Exception):
    """``goes_on`` was false."""
