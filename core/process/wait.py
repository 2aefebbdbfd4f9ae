"""Waiting for another process: spin for a moment, then sleep.

Waking a sleeping core costs 50 µs or more, above all on a virtual machine: more than a small step
takes. So a thread that waits spins for a moment first. Two processes that share a core must not do
that: the one that spins takes the time of the one that it waits for, and since neither ever sleeps
the scheduler has no occasion to move one of them to an idle core (64 MB through a ring took 27 to
45 ms then instead of 13). A yield that takes long shows that another thread ran on this core.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

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
