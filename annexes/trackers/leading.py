"""The job's numbers to trackers, beside the chief's loop."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from ...cluster.job.job import Job
from ...cluster.job.scalars import JobScalars
from ...core.task import Phase
from ...worker.lead.companions import Companion, LedJob
from .opening import open_run, trackers_here
from .runs import JobOfRun
from .tracking import Reporting

_CLOSE_S, _LEAVE_S = 30.0, 5.0  # a client takes seconds to load; a chief that leaves has few


def companions(led: LedJob) -> list[Companion]:
    """Report the job's numbers, if its settings ask for it.

    Args:
        led: The job that is led.

    Raises:
        MissingExtraError: The client of a tracker is not installed.
    """
    return [
        JobTracking(
            partial(_reporting, tracker, led.settings.model_dir), led.locked_job.clock.now()
        )
        for tracker in trackers_here(led.settings)
    ]


def _reporting(tracker: str, model_dir: str, job: JobOfRun) -> Reporting:
    return Reporting(tracker, partial(open_run, tracker, job, model_dir))


class JobTracking:
    """Reports a job's numbers. See :class:`~ropewalk.worker.lead.companions.Companion`.

    Args:
        report_of: Begins to report of a job, which has its id by then.
        now: The time on the job's clock.
        close_s: Longest wait for what is left when the job is over; a chief that leaves its job to
            the next one waits for five. Unit: seconds.
    """

    def __init__(
        self, report_of: Callable[[JobOfRun], Reporting], now: float, close_s: float = _CLOSE_S
    ) -> None:
        self._report_of = report_of
        self._close_s = close_s
        self._numbers = JobScalars(now)
        self._reporting: Reporting | None = None
        self._phase = Phase.RUNNING

    def start(self) -> None:
        """Begin when the job's id is known."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Take a sample if one is due, or the job ends; the caller holds the job's lock."""
        self._phase = job.phase
        if job.name is None:
            return
        if self._reporting is None:
            self._reporting = self._report_of(JobOfRun(job.name, _counts(job)))
        self._numbers.look(job, now, is_last=is_last)

    def act(self) -> None:
        """Have the numbers since the last sample reported, if one was taken."""
        if self._reporting is not None and (taken := self._numbers.take()) is not None:
            self._reporting.add(*taken)

    def why_none_follows(self) -> str | None:
        """Say nothing of other chiefs."""
        return None

    def close(self) -> None:
        """Report what is left, and end the run if the job is over."""
        if self._reporting is not None:
            self._reporting.close(self._phase, self._close_s if self._phase.is_over else _LEAVE_S)


def _counts(job: Job) -> dict[str, str]:
    counts = Counter(member.task.type for member in job.members.values())
    return {f"num_{role}": str(count) for role, count in sorted(counts.items())}
