"""Numbers on their way to a tracker, in a thread of its own.

A tracker is somebody else's server: it may be slow, away or full, and none of that concerns the
training. Numbers are left in a bounded queue; the thread hands them on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from ...core.backoff import Backoff
from ...core.process.events import event
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread, nobody_waits
from ...core.task import Phase
from .runs import TrackedRun

log = logging.getLogger(__name__)

_MOST_POINTS = 600
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0


class Point(NamedTuple):
    """Numbers of one moment.

    Attributes:
        step: The global step.
        values: Number of each tag.
        at: Unit: seconds since the epoch.
    """

    step: int
    values: Mapping[str, float]
    at: float


class Reporting:
    """Reports to one run of a tracker.

    Args:
        tracker: Name of the tracker.
        open_run: Begins the run, or goes on with it; called in the thread, and again while it
            fails.
        most: Points that wait; beyond that the oldest are left out.
        first_retry_s: Wait after the first attempt to begin that failed. Unit: seconds.
    """

    def __init__(
        self,
        tracker: str,
        open_run: Callable[[], TrackedRun],
        *,
        most: int = _MOST_POINTS,
        first_retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        self._tracker = tracker
        self._open_run = open_run
        self._phase = Phase.RUNNING
        self._points = deque[Point](maxlen=most)
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._retry = Backoff(first_retry_s, _LONGEST_RETRY_S)
        self._failures = RareLog(log)
        self._left_out = 0
        self._thread = new_thread(f"track-{tracker}", self._report, failed=nobody_waits)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Have numbers reported; never waits.

        Args:
            step: The global step.
            values: Number of each tag.
        """
        with self._changed:
            self._left_out += len(self._points) == self._points.maxlen
            self._points.append(Point(step, values, time.time()))
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def close(self, phase: Phase, wait_s: float) -> None:
        """Report what is left, and end the run; the log says what could not be.

        Args:
            phase: Phase of the job.
            wait_s: Longest wait. Unit: seconds.
        """
        self._phase = phase
        self._closing.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        if self._left_out or self._points or self._thread.is_alive():
            log.warning(
                "%s has not got all of the job's numbers, %d points and perhaps the end: it was "
                "away or too slow",
                self._tracker,
                self._left_out + len(self._points),
                extra=event("tracker.failed", tracker=self._tracker),
            )

    # -- the thread --------------------------------------------------------------------------

    def _report(self) -> None:
        if (run := self._begun()) is None:
            return
        log.info("%s: numbers go to %s", self._tracker, run.place)
        while point := self._next():
            self._attempt("a point", partial(run.log, *point))
        self._attempt("the end of the run", lambda: run.end(self._phase))

    def _begun(self) -> TrackedRun | None:
        """Begin the run; None: the job ended before that could be done."""
        opened = list[TrackedRun]()
        while not self._attempt("the run", lambda: opened.append(self._open_run())):
            if self._closing.wait(self._retry.next_s()):
                return None
        return opened[0]

    def _next(self) -> Point | None:
        """Wait for the next point; None: none follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._points or self._closing.is_set())
            return self._points.popleft() if self._points else None

    def _attempt(self, what: str, do: Callable[[], object]) -> bool:
        """Try what a client does, which raises exceptions of its own."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - each client and its transport has others
            self._failures.warning(
                "%s has not got %s: %s",
                self._tracker,
                what,
                error,
                about="tracker.failed",
                tracker=self._tracker,
            )
            return False
        return True
