"""Waiting in tests: for an event and never for a time, and longer where the machine is busy.

A wait that ends with its event costs nothing however long it may last, so a bound only has to tell
a broken program from a slow machine. :func:`scaled` stretches a bound by how busy the machine is;
it also serves where a test promises a duration (Ctrl-C within five seconds).
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

_POLL_S = 0.02
_PAUSES = 4  # times as long as the question took
_LONGEST_POLL_S = 0.5
_LONGEST_LOOK_S = 10.0  # a question and a pause
_MAX_FACTOR = 10.0
_CI_FACTOR = 3.0  # others may use the same processors, which no figure of this system shows


def load_factor() -> float:
    """How many times slower than an idle one this machine may be now; LOAD_FACTOR overrules it.

    Runnable threads per processor: of this moment or the last minute, whatever is more. At least 1,
    in CI at least 3.
    """
    if given := os.environ.get("LOAD_FACTOR"):
        return float(given)
    minute, _, _, now, _ = Path("/proc/loadavg").read_text().split()
    busy = max(float(minute), float(now.partition("/")[0]))
    least = _CI_FACTOR if os.environ.get("CI") else 1.0
    return min(max(busy / len(os.sched_getaffinity(0)), least), _MAX_FACTOR)


def scaled(seconds: float) -> float:
    """A bound that holds on an idle machine, for this one as it is now."""
    return seconds * load_factor()


def wait_until(condition: Callable[[], object], timeout_s: float, what: str = "") -> None:
    """Poll until ``condition()`` is true; fail the test after ``timeout_s``, scaled at
    that time.

    A question that takes long, as one that starts a process, is asked less often: what it asks
    about needs the processor, too. A machine that stood still meanwhile has not waited.
    """
    pause = threading.Event()
    asked = looked = time.monotonic()
    waited_s = 0.0
    while not condition():
        now = time.monotonic()
        waited_s += min(now - looked, _LONGEST_LOOK_S)
        looked = now
        if waited_s > timeout_s and waited_s > scaled(timeout_s):
            pytest.fail(f"waited {waited_s:.0f} s for {what or condition}")
        pause.wait(min(max(_POLL_S, _PAUSES * (now - asked)), _LONGEST_POLL_S))
        asked = time.monotonic()
