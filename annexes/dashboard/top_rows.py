"""Rows of ``ropewalk top``: tasks, and what ps hold, with rates between two looks. Pure.

Text of others is cleaned of what a terminal would obey, and every cell has a value to sort by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...cluster.spec import PS
from ...core.report import ProcessUsage
from ...core.step_times import PARTS, StepTimes
from ...core.task import State, TaskId
from ...core.terminal import terminal_line
from ...launch.found_job import ListedJob
from ...launch.screen.status_table import gpu_texts, human_bytes, human_seconds, metrics_text

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus, TaskStatus


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        order: Value by which its column is sorted.
        text: Text that is shown.
    """

    order: Any
    text: str


@dataclass(frozen=True, slots=True)
class Looks:
    """Two looks at a job, for what happened between them.

    Attributes:
        now: The last status.
        before: An earlier one; None: there is none.
        seconds: Time between them.
    """

    now: "JobStatus"
    before: "JobStatus | None" = None
    seconds: float = 0.0

    def rate(self, task: TaskId, count: Callable[["TaskStatus"], int]) -> float:
        """Compute how often something that a task counts happens in a second; a task that was
        started again counts anew.
        """
        now, before = _of(self.now, task), _of(self.before, task)
        if now is None or before is None or self.seconds <= 0:
            return 0.0
        return max(0, count(now) - count(before)) / self.seconds

    def step_times(self, item: "TaskStatus") -> StepTimes:
        """Return the times of the steps between the looks; of all steps, if there were none."""
        before = _of(self.before, item.task)
        times = item.report.step_times
        since = times.plus(before.report.step_times, -1) if before is not None else times
        return since if since.count else times

    def steps_per_s(self) -> float:
        """Compute the steps of the job in a second."""
        if self.before is None or self.seconds <= 0:
            return 0.0
        return max(0, self.now.global_step - self.before.global_step) / self.seconds


def _of(status: "JobStatus | None", task: TaskId) -> "TaskStatus | None":
    tasks = status.tasks if status is not None else ()
    return next((item for item in tasks if item.task == task), None)


_FINDINGS = 4  # that are shown
TASKS = ("task", "state", "for", "steps/s", "steps", "step", "most in", "stale",
         "memory", "cores", "gpu", "says")  # fmt: skip
SERVERS = ("ps", "state", "pushes/s", "in/s", "values", "slots",
           "memory", "cores", "shards", "workers", "holds")  # fmt: skip


def task_rows(looks: Looks) -> list[list[Cell]]:
    """Make a row of each task that is no ps."""
    return [_task_row(item, looks) for item in looks.now.tasks if item.task.type != PS]


def _task_row(item: "TaskStatus", looks: Looks) -> list[Cell]:
    report, times = item.report, looks.step_times(item)
    speed = looks.rate(item.task, lambda each: each.report.steps)
    part = times.largest()
    share = times.share(part) if part in PARTS else 0.0
    says = terminal_line(item.detail) or metrics_text(report.metrics)
    return [
        Cell(item.task, item.task.short),
        _state(item, looks),
        Cell(item.since_s, human_seconds(item.since_s)),
        Cell(speed, f"{speed:.1f}" if report.steps else ""),
        Cell(report.steps, str(report.steps or "")),
        Cell(times.step_s, _short(times.step_s)),
        Cell(share, f"{part} {share:.0%}" if part else ""),
        Cell(report.staleness, f"{report.staleness:.1f}" if report.pushes else ""),
        *_usage_cells(item.usage),
        _gpu_cell(item.usage),
        Cell(says, says),
    ]


def _usage_cells(usage: ProcessUsage) -> tuple[Cell, Cell]:
    is_known = bool(usage.memory_bytes)
    return (
        Cell(usage.memory_bytes, human_bytes(usage.memory_bytes) if is_known else ""),
        Cell(usage.cores, f"{usage.cores:.1f}" if is_known else ""),
    )


def _gpu_cell(usage: ProcessUsage) -> Cell:
    busy = max((gpu.busy for gpu in usage.gpus), default=-1.0)
    return Cell(busy, gpu_texts(usage)[0])


def server_rows(looks: Looks) -> list[list[Cell]]:
    """Make a row of each ps."""
    return [_server_row(item, looks) for item in looks.now.tasks if item.task.type == PS]


def _server_row(item: "TaskStatus", looks: Looks) -> list[Cell]:
    counters = item.counters
    first = [Cell(item.task, item.task.short), _state(item, looks)]
    if counters is None:
        return first + [Cell(0, "") for _ in SERVERS[2:]]
    pushes = looks.rate(item.task, lambda each: each.counters.pushes if each.counters else 0)
    taken = looks.rate(item.task, lambda each: each.counters.bytes_in if each.counters else 0)
    holds = ", ".join([*counters.labels, *(f"{t.name} ({t.rows} rows)" for t in counters.tables)])
    return [
        *first,
        Cell(pushes, f"{pushes:.1f}"),
        Cell(taken, human_bytes(taken)),
        Cell(counters.value_bytes, human_bytes(counters.value_bytes)),
        Cell(counters.slot_bytes, human_bytes(counters.slot_bytes)),
        *_usage_cells(counters.usage),
        Cell(counters.shards, str(counters.shards)),
        Cell(counters.sessions, str(counters.sessions)),
        Cell(holds, terminal_line(holds)),
    ]


def _state(item: "TaskStatus", looks: Looks) -> Cell:
    # The last status is taken while the ps still serve.
    has_ended = looks.now.phase.is_over and item.state is State.ALIVE
    return Cell(item.state, "ended" if has_ended else item.state)


def _short(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


JOBS = ("job", "state", "tasks", "for", "owner", "why")


def job_rows(jobs: Sequence[ListedJob], now: float) -> list[list[Cell]]:
    """Make a row of each job of a cluster.

    Args:
        jobs: The jobs, in their order.
        now: Unit: seconds since the epoch.
    """
    return [_job_row(job, now) for job in jobs]


def _job_row(job: ListedJob, now: float) -> list[Cell]:
    took_s = (job.ended or now) - job.began if job.began else 0.0
    took = Cell(took_s, human_seconds(max(0.0, took_s)) if job.began else "")
    texts = (job.tasks, job.owner, job.why)
    tasks, owner, why = (Cell(text, terminal_line(text)) for text in texts)
    return [Cell(job.id, job.id), Cell(job.state, job.state), tasks, took, owner, why]


def sort(rows: Sequence[list[Cell]], column: int, *, down: bool) -> list[list[Cell]]:
    """Sort rows by a column, those that are the same by the first."""
    by_first = sorted(rows, key=lambda row: row[0].order)
    return sorted(by_first, key=lambda row: row[column].order, reverse=down)


def head_text(looks: Looks, note: str) -> str:
    """Write what holds for the whole job: a line or two, and what was found."""
    status = looks.now
    goal = f"/{status.total_steps}" if status.total_steps else ""
    speed = looks.steps_per_s()
    parts = [
        f"{status.phase} {human_seconds(status.age_s)}",
        f"step {status.global_step}{goal}",
        f"{speed:.1f} steps/s",
    ]
    left = status.total_steps - status.global_step
    if speed > 0 and left > 0:
        parts.append(f"{human_seconds(left / speed)} left")
    if status.last_checkpoint:
        parts.append(f"checkpoint {status.last_checkpoint_step}")
    why = " · ".join(terminal_line(text) for text in (note, status.reason) if text)
    found = [terminal_line(each.text) for each in status.findings[:_FINDINGS]]
    return "\n".join([" · ".join(parts), *([why] if why else []), *found])
