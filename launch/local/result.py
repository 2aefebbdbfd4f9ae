"""The result of a local job, and how it is shown: the first failure once, then a table."""

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster.spec import EVALUATOR
from ...core import annexes
from ...core.exit_codes import ExitCode, describe_exit, is_retryable, shell_status
from ...core.task import Phase, TaskId
from ...core.terminal import counted
from ...worker.lead.status import STATUS_FILE, read_status, status_json

if TYPE_CHECKING:
    from rich.table import Table

    from ...client.chief.calls import JobStatus
    from ..screen.plain import Display

log = logging.getLogger(__name__)

_WIDE = 100
_MAX_ERROR_LINES = 16


@dataclass(slots=True)
class LocalResult:
    """The result of a local job.

    Attributes:
        exit_code: 0, or the first failing task's as a shell shows it.
        exits: Exit status per task, as ``subprocess`` reports it (negative: a signal).
        model_dir: Directory of its checkpoints.
        first_failure: The task that failed first, if any.
        status: The last status from the chief.
        metrics: Metrics of the last evaluation.
        errors: Reports of failing tasks: a traceback or a message.
    """

    exit_code: int
    exits: dict[TaskId, int]
    model_dir: str
    first_failure: TaskId | None = None
    status: "JobStatus | None" = None
    metrics: dict[str, float] = field(default_factory=dict)
    errors: dict[TaskId, str] = field(default_factory=dict)


def failure_text(result: LocalResult) -> str:
    """Say what failed first and why, once, and who else failed; empty if nothing did."""
    first = result.first_failure
    if first is None:
        return ""
    code = result.exits[first]
    lines = [f"{first.short} failed first: exit code {shell_status(code)}, {describe_exit(code)}"]
    error = result.errors.get(first, "").rstrip()
    lines += [f"    {line}" for line in _shortened(error.splitlines())]
    same, others = [], []
    for task, other_code in result.exits.items():
        if task == first or not 0 < other_code < 128:
            continue
        words = _last_line(result.errors.get(task, ""))
        if words.replace(str(task), str(first)) == _last_line(error):
            same.append(task.short)
        else:
            others.append(f"{task.short} failed too: {words or describe_exit(other_code)}")
    if same:
        lines.append(f"{_listed(same)} failed in the same way")
    return "\n".join(lines + others)


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= _MAX_ERROR_LINES:
        return lines
    half = _MAX_ERROR_LINES // 2
    return [*lines[: half - 1], f"… {counted(len(lines) - 2 * half + 1, 'line')}", *lines[-half:]]


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def result_table(result: LocalResult, width: int = 120) -> "Table":
    """Make a table of tasks with exit codes, steps and shards; with room for it pushes and bytes,
    too.
    """
    from rich.text import Text

    from ..screen.display import new_table
    from ..screen.status_table import activity

    counted: Mapping[str, int] = {}
    if result.status is not None:
        counted = {"steps": 0} if width < _WIDE else _COLUMNS
    table = new_table("task", "exit", *counted, "notes", right=("exit", *counted))
    known = {item.task: item for item in result.status.tasks} if result.status is not None else {}
    for task, code in result.exits.items():
        item = known.get(task)
        numbers = activity(item) if item is not None else ("",) * len(_COLUMNS)
        style = "green" if code == 0 else "red" if task == result.first_failure else "yellow"
        table.add_row(
            task.short,
            Text(str(shell_status(code)), style),
            *[numbers[column] for column in counted.values()],
            _notes(task, code, result),
        )
    return table


_COLUMNS = {"steps": 0, "pushes": 1, "sent": 2, "received": 3}  # places in `activity`


def _notes(task: TaskId, code: int, result: LocalResult) -> str:
    from ..screen.status_table import metrics_text, placement_text

    followed = (ExitCode.PEER_LOST, ExitCode.DRAINED, ExitCode.LEFT_EARLY)
    with_the_job = (*followed, -signal.SIGKILL)
    if code in with_the_job and task != result.first_failure:
        return "ended with the job" if result.exit_code else describe_exit(code)
    first = result.first_failure
    if first is not None and task != first and code == result.exits[first]:
        return f"failed with the same code as {first.short}"
    if code != 0:
        return describe_exit(code)
    if task.type == EVALUATOR:
        return metrics_text(result.metrics)
    item = next((i for i in result.status.tasks if i.task == task), None) if result.status else None
    return placement_text(item) if item is not None else ""


def read_result(
    exit_code: int,
    exits: dict[TaskId, int],
    model_dir: str,
    failed: TaskId | None,
    status: "JobStatus | None",
    errors: dict[TaskId, str],
) -> LocalResult:
    """Read what a job has left in its model directory; see :class:`LocalResult`.

    Args:
        exit_code: Exit code of the launcher.
        exits: Exit code of each task.
        model_dir: The job's model directory.
        failed: The task that failed first.
        status: The last status that the launcher has seen.
        errors: Report of each task that failed.
    """
    from ...training.evaluations import read_evaluations

    # The chief's last words, unless it was killed before it could write them.
    written = read_status(model_dir)
    if written is None or not written.phase.is_over:
        written = status or written
    if failed is not None and written is not None and _hides(written.phase, failed, exits[failed]):
        written = _as_failed(written, f"{failed.short} failed: {_why(exits, errors, failed)}")
        _write(model_dir, written)
    evaluations = read_evaluations(model_dir)
    metrics = evaluations[-1].metrics if evaluations else {}
    return LocalResult(exit_code, exits, model_dir, failed, written, metrics, errors)


def _hides(phase: Phase, failed: TaskId, code: int) -> bool:
    """Return whether a job's last status does not say that it ended by a task's failure: its chief
    was killed, or asked to stop because of it.
    """
    was_stopped = phase is Phase.STOPPED and code != ExitCode.DRAINED and failed.type != EVALUATOR
    return was_stopped or not phase.is_over


def _why(exits: Mapping[TaskId, int], errors: Mapping[TaskId, str], failed: TaskId) -> str:
    how = describe_exit(exits[failed])
    known = errors.get(failed, "").splitlines()[:1] if exits[failed] == -signal.SIGKILL else []
    return "; ".join([how, *known])


def _as_failed(status: "JobStatus", why: str) -> "JobStatus":
    """Add what the chief could not know: it was asked to stop, or killed."""
    first = f"{why} ({status.reason})" if status.reason else why
    return replace(status, phase=Phase.FAILED, reason=first)


def _write(model_dir: str, status: "JobStatus") -> None:
    path = Path(model_dir) / STATUS_FILE
    try:
        if path.is_file():
            path.write_text(status_json(status, indent=1))
    except OSError as error:  # a full disk, say; the launcher shows the same
        log.debug("the status could not be written: %s", error)


def show_result(
    result: LocalResult, display: "Display", resume: str, *, has_event_files: bool
) -> None:
    """Show the first failure, a table of all tasks, and how to go on.

    Args:
        result: Result of the job.
        display: Display to which it goes.
        resume: The command that would go on with this job; empty: it is not shown.
        has_event_files: Whether the job has written numbers for TensorBoard.
    """
    from ..screen.status_table import metrics_text

    if failure := failure_text(result):
        display.say(failure, is_error=True)
    display.table(result_table(result, display.width))
    if result.metrics:
        display.say(f"last evaluation: {metrics_text(result.metrics)}")
    if Path(result.model_dir).is_dir():
        display.say(f"model directory: {result.model_dir}")
        if has_event_files:
            display.say(f"its numbers: ropewalk tensorboard {result.model_dir}")
    saved = result.status is not None and result.status.last_checkpoint
    if saved and resume and is_retryable(result.exit_code):
        display.say(f"to resume: {resume}")
    is_failure = result.exit_code not in (ExitCode.DONE, ExitCode.DRAINED)
    if is_failure and Path(result.model_dir).is_dir() and "diagnosis" in annexes.installed():
        display.say(f"what happened: ropewalk report {result.model_dir}")
