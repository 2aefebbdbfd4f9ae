"""A job's own numbers over time: how fast it steps, how stale pushes are, what each ps carries.

Pure: a :class:`JobSample` is taken of the job, and two of them give the numbers in between. Rates
are of the time between them; counters that have become smaller belong to a restarted task.
:class:`JobScalars` does so again and again, ever more rarely.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...core.report import PsCounters, TaskReport
from ...core.task import State, TaskId
from ..spec import EVALUATOR, PS
from .job import Job

_MOST_TASKS = 64  # that have numbers of their own; means are of all
_MIB = 2**20
_SAMPLES = 600
_LONGEST_S = 60.0
SHORTEST_S = 1.0
"""Rates of a shorter time would be of one heartbeat, or none."""


@dataclass(frozen=True, slots=True)
class JobSample:
    """The state of a job at one moment.

    Attributes:
        at: Time of the sample. Unit: seconds.
        global_step: Global step of the job.
        reports: Reports of the tasks that train and are alive.
        counters: Counters of the ps that have answered.
    """

    at: float
    global_step: int
    reports: dict[TaskId, TaskReport]
    counters: dict[TaskId, PsCounters]

    @classmethod
    def of_nothing(cls, at: float) -> "JobSample":
        """Make a sample of a job from which no task has reported yet."""
        return cls(at, 0, {}, {})


def sample_job(job: Job, now: float) -> JobSample:
    """Take a sample of a job; the caller holds its lock."""
    members = sorted(job.members.values(), key=lambda member: member.task)
    return JobSample(
        at=now,
        global_step=job.members.global_step,
        reports={
            member.task: member.report
            for member in members
            if member.task.type not in (PS, EVALUATOR) and member.state in (State.ALIVE, State.DONE)
        },
        counters={m.task: m.counters for m in members if m.counters is not None},
    )


def sample_every_s(age_s: float) -> float:
    """Choose the time between samples: a second at first, a minute for jobs of a day.

    So a file grows by about 600 samples in ten minutes, by as many in the next 16, and so on: 9,000
    in a week.

    Args:
        age_s: Age of the job. Unit: seconds.
    """
    return min(max(age_s / _SAMPLES, SHORTEST_S), _LONGEST_S)


def job_scalars(before: JobSample, now: JobSample) -> dict[str, float]:
    """Compute numbers by tag; empty if no time has passed.

    ``metrics/…`` are means over the tasks that report them, NaN included: a job that diverges on
    one worker is to be seen.
    """
    seconds = now.at - before.at
    if seconds <= 0:
        return {}
    scalars = {
        "job/steps_per_second": _steps(before, now) / seconds,
        "job/workers": float(len(now.reports)),
    }
    if now.counters:
        stale = [report.staleness for report in now.reports.values() if report.pushes]
        if stale:
            scalars["job/staleness"] = sum(stale) / len(stale)
            scalars["job/staleness_of_the_worst"] = max(stale)
        refused = sum(report.refused_pushes for report in now.reports.values())
        scalars["job/refused_pushes"] = float(refused)
    scalars.update(_metrics(now.reports.values()))
    if len(now.reports) <= _MOST_TASKS:
        for task, report in now.reports.items():
            steps = before.reports[task].steps if task in before.reports else 0
            rate = _rate(steps, report.steps, seconds)
            scalars[f"tasks/{task.type}-{task.index}/steps_per_second"] = rate
    if len(now.counters) <= _MOST_TASKS:
        for task, counters in now.counters.items():
            scalars.update(_of_ps(task, before.counters.get(task, PsCounters()), counters, seconds))
    return scalars


class JobScalars:
    """Numbers of a job from its start to its end. Used by one thread at a time.

    Args:
        now: The time on the job's clock.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._before = JobSample.of_nothing(now)
        self._older = self._before  # the one before that
        self._taken: JobSample | None = None

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Take a sample if one is due, or the job ends; the caller holds the job's lock."""
        if is_last or now - self._before.at >= sample_every_s(now - self._began):
            self._taken = sample_job(job, now)

    def take(self) -> tuple[int, dict[str, float]] | None:
        """Return the global step and the numbers by tag of a new sample; None: there is none."""
        sample, self._taken = self._taken, None
        if sample is None:
            return None
        since = self._before
        # The last one may follow at once, and tasks report twice a second.
        if sample.at - since.at < SHORTEST_S:
            since = self._older
        self._older, self._before = self._before, sample
        values = job_scalars(since, sample)
        return (sample.global_step, values) if values else None


def _steps(before: JobSample, now: JobSample) -> int:
    """Count the steps in between; a job that resumes has made those up to its checkpoint before."""
    steps = max(0, now.global_step - before.global_step)
    if before.global_step:
        return steps
    return min(steps, sum(report.steps for report in now.reports.values()))


def _rate(before: int, now: int, seconds: float) -> float:
    return (now - before if now >= before else now) / seconds


def _metrics(reports: Iterable[TaskReport]) -> Iterator[tuple[str, float]]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            values.setdefault(name, []).append(value)
    for name, reported in sorted(values.items()):
        yield (
            f"metrics/{name}",
            math.nan if any(map(math.isnan, reported)) else sum(reported) / len(reported),
        )


def _of_ps(
    task: TaskId, before: PsCounters, now: PsCounters, seconds: float
) -> Iterator[tuple[str, float]]:
    prefix = f"ps/{task.index}"
    yield f"{prefix}/pushes_per_second", _rate(before.pushes, now.pushes, seconds)
    yield f"{prefix}/pulls_per_second", _rate(before.pulls, now.pulls, seconds)
    yield f"{prefix}/received_mib_per_second", _rate(before.bytes_in, now.bytes_in, seconds) / _MIB
    yield f"{prefix}/sent_mib_per_second", _rate(before.bytes_out, now.bytes_out, seconds) / _MIB
    yield f"{prefix}/memory_mib", (now.value_bytes + now.slot_bytes) / _MIB
    yield f"{prefix}/workers_connected", float(now.sessions)
