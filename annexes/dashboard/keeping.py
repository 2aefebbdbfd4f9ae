"""The history of a job, kept beside the chief's loop and written to the model directory.

What it costs is bounded, and nothing that goes wrong in it concerns the training: a sample is taken
once a second from what tasks report anyhow, and a thread writes the file, the older the job the
more rarely. A chief that is started again goes on with what is written.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ...cluster.job.job import Job
from ...cluster.job.scalars import JobSample, job_scalars, sample_job
from ...core.checkpoint.folder import Folder
from ...core.process import events
from ...core.process.events import Event
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread, nobody_waits
from .history_file import HISTORY_FILE, history_bytes, read_history
from .samples import Samples, Stretch

log = logging.getLogger(__name__)

SAMPLE_S = 1.0
_WRITE_S, _LONGEST_WRITE_S, _WRITES = 10.0, 120.0, 360
_CLOSE_S = 5.0
_LINE = "log.line"
MOST_EVENTS = 1000
"""Events that are kept of a job: 300 bytes each, as a rule."""


class History:
    """The samples and events of a job, between the thread that adds them and calls that read them.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples = Samples()
        self._events = deque[Event](maxlen=MOST_EVENTS)

    def begin_with(self, samples: Samples, before: list[Event]) -> None:
        """Go on with what a chief before has kept; what was added meanwhile follows it."""
        with self._lock:
            for each in self._samples.since():
                _add(samples, each, self._samples.names)
            self._samples = samples
            here, self._events = self._events, deque(before, MOST_EVENTS)
            self._append(here)

    def happened(self, what: list[Event]) -> None:
        """Add the newest events; those that are here already are left out."""
        with self._lock:
            self._append(what)

    def _append(self, what: Iterable[Event]) -> None:
        last = self._events[-1].at if self._events else 0.0
        self._events.extend(each for each in what if round(each.at, 6) > last)

    def events_since(self, at: float) -> list[Event]:
        """List the events after a time."""
        with self._lock:
            return [each for each in self._events if each.at > at]

    def add(self, at: float, seconds: float, numbers: dict[str, float]) -> None:
        """Add the newest sample."""
        with self._lock:
            self._samples.add(at, seconds, numbers)

    def since(self, at: float) -> tuple[list[str], list[Stretch]]:
        """List the names, and the samples that end after a time."""
        with self._lock:
            return list(self._samples.names), list(self._samples.since(at))

    def as_file(self) -> bytes:
        """Write all of it as a file has it."""
        with self._lock:
            return history_bytes(self._samples, self._events)


def _add(samples: Samples, sample: Stretch, names: list[str]) -> None:
    pairs = zip(names, sample.numbers(), strict=False)
    numbers = {name: value for name, value in pairs if value is not None}
    samples.add(sample.at, sample.seconds, numbers)


def write_every_s(age_s: float) -> float:
    """Choose the time between two writes of the file: ten seconds at first, later two minutes.

    Args:
        age_s: Age of the job. Unit: seconds.
    """
    return min(max(age_s / _WRITES, _WRITE_S), _LONGEST_WRITE_S)


class HistoryKeeper:
    """Keeps a job's history. See :class:`~ropewalk.worker.lead.companions.Companion`.

    Args:
        history: History of the job.
        folder: Model directory of the job; None: it has none, and nothing is written.
        now: The time on the job's clock.
        wall: Clock of the samples. Unit: seconds since the epoch.
    """

    def __init__(
        self,
        history: History,
        folder: Folder | None,
        now: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._folder = folder
        self._wall = wall
        self._began = self._written = now
        self._before = JobSample.of_nothing(now)
        self._taken: JobSample | None = None
        self._due, self._is_over = threading.Event(), False
        self._thread = new_thread("history", self._write_when_due, failed=nobody_waits)
        self._failures = RareLog(log)
        self._counted, self._last = 0, 0.0

    def start(self) -> None:
        """Begin to write; the first thing is to read what a chief before has written."""
        if self._folder is not None:
            self._thread.start()

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Take a sample if one is due, or the job ends; the caller holds the job's lock."""
        if is_last or now - self._before.at >= SAMPLE_S:
            self._taken = sample_job(job, now)

    def act(self) -> None:
        """Add the sample, if one was taken, and have the file written if it is time."""
        sample, self._taken = self._taken, None
        if sample is None:
            return
        self._take_events()
        before, self._before = self._before, sample
        if numbers := job_scalars(before, sample):
            numbers["job/global_step"] = float(sample.global_step)
            self._history.add(self._wall(), sample.at - before.at, numbers)
        if sample.at - self._written >= write_every_s(sample.at - self._began):
            self._written = sample.at
            self._due.set()

    def _take_events(self) -> None:
        """Take what has happened in this process since the last time; lines of its log have no
        name.
        """
        if (counted := events.count()) == self._counted:
            return
        self._counted = counted
        new = [each for each in events.recent() if each.at > self._last]
        if new:
            self._last = new[-1].at
            self._history.happened([each for each in new if each.name != _LINE])

    def why_none_follows(self) -> str | None:
        """Say nothing of other chiefs."""
        return None

    def close(self) -> None:
        """Write the file for the last time; waits a few seconds at most."""
        self._is_over = True
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _write_when_due(self) -> None:
        folder = self._folder
        if folder is None:
            return
        self._history.begin_with(*read_history(folder))
        is_over = False
        while not is_over:
            self._due.wait()
            self._due.clear()
            is_over = self._is_over
            try:
                folder.make()
                folder.put(HISTORY_FILE, self._history.as_file())
            except OSError as error:
                self._failures.warning("%s/%s was not written: %s", folder.url, HISTORY_FILE, error)
