"""A job's progress in one line of numbers. Pure."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...cluster.spec import CHIEF, PS, WORKER
from ...core.task import Phase
from ...core.terminal import terminal_line

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus
    from ...core.report import TaskReport

_BETWEEN = " · "


def numbers(status: "JobStatus", steps_per_s: float, waits: str = "") -> list[str]:
    """List the most important numbers first: step, steps/s, what steps wait for, what the program
    reports, staleness.

    Args:
        status: Status of the job.
        steps_per_s: Steps per second of all workers; 0: not known. Not shown once the job is over.
        waits: Part of steps with the largest share, unless that is compute: ``data 61 %``.
    """
    goal = f"/{status.total_steps}" if status.total_steps else ""
    parts = [f"step {status.global_step}{goal}"]
    if status.reason and status.phase is Phase.RUNNING:
        parts.insert(0, terminal_line(status.reason))
    reports = [t.report for t in status.tasks if t.task.type in (CHIEF, WORKER) and t.report.steps]
    if refused := sum(report.refused_pushes for report in reports):
        parts.append(f"refused {refused}")
    if steps_per_s and not status.phase.is_over:
        parts.append(f"{steps_per_s:.{0 if steps_per_s >= 10 else 1}f} steps/s")
        parts += [waits] if waits else []
    parts += [
        f"{terminal_line(name)} {value:.4g}" for name, value in _mean_metrics(reports).items()
    ]
    if reports and any(t.task.type == PS for t in status.tasks):  # in sync nothing is stale
        parts.append(f"staleness {sum(r.staleness for r in reports) / len(reports):.1f}")
    return parts


def _mean_metrics(reports: "Sequence[TaskReport]") -> dict[str, float]:
    """Compute means over the tasks that report a metric, in the order of :func:`ordered`."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(values[name]) / len(values[name]) for name in ordered(values)}


def ordered(metrics: Iterable[str]) -> list[str]:
    """Order the names of metrics as they are shown: the loss first. They travel in no order."""
    return sorted(metrics, key=lambda name: (name != "loss", name))


def fitted(parts: Sequence[str], width: int | None = None) -> str:
    """Join the parts in one line; with a width only the first ones that fit, but always one."""
    line = parts[0]
    for part in parts[1:]:
        longer = f"{line}{_BETWEEN}{part}"
        if width is not None and len(longer) > width:
            return line
        line = longer
    return line
