"""Decision which task hangs, so that its launcher must kill it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.exit_codes import ExitCode
from ...core.task import TaskId
from ..roles import EVALUATOR, WORKER


@dataclass(frozen=True, slots=True)
class Seen:
    """A task's process, as its launcher sees it.

    Attributes:
        code: Exit code as ``subprocess`` reports it; None: it has not ended.
        since: Time at which it ended, or since which a signal (SIGSTOP) has kept it stopped; None:
            it runs.
    """

    code: int | None = None
    since: float | None = None


def whom_to_kill(
    tasks: Mapping[TaskId, Seen],
    *,
    chief: TaskId,
    chief_answered: float,
    patience_s: float,
    now: float,
) -> tuple[TaskId, str] | None:
    """Find a task that hangs and for which the job would wait.

    A ps or worker that hangs is the chief's to notice, as long as there is a chief. A chief hangs
    if it is stopped; or if it does not answer and others have ended since they have lost it, or all
    workers have failed. One that only does not answer may compute; it has the time that the others
    give it.

    Args:
        tasks: All of them.
        chief: The chief, which may be worker 0.
        chief_answered: Time at which it last answered; the beginning, if it never has.
        patience_s: Time for which a task may hang: a lease and a grace. Unit: seconds.
        now: The time.

    Returns:
        The task and, for people, why it must be killed; None: there is none.
    """
    chief_runs = tasks[chief].code is None
    for task, seen in tasks.items():
        if seen.code is None and seen.since is not None and (task == chief or not chief_runs):
            stopped_s = now - seen.since
            if stopped_s >= patience_s:
                return task, f"{task.short} has been stopped (SIGSTOP) for {stopped_s:.0f} s"
    left_alone = _left_alone(tasks, chief)
    if not chief_runs or left_alone is None:
        return None
    silent_s = now - max(chief_answered, left_alone)
    if silent_s < patience_s:
        return None
    return chief, (
        f"{chief.short} has not answered for {now - chief_answered:.0f} s, and the tasks that need "
        "it have ended"
    )


def _left_alone(tasks: Mapping[TaskId, Seen], chief: TaskId) -> float | None:
    """Find when the first task ended that had lost the chief, or the last of workers that all
    failed.
    """
    others = {task: seen for task, seen in tasks.items() if task != chief}
    gone = (ExitCode.PEER_LOST, ExitCode.JOIN_TIMEOUT)
    followed = [
        seen.since
        for task, seen in others.items()
        if seen.code in gone and seen.since is not None and task.type != EVALUATOR
    ]
    if followed:
        return min(followed)
    workers = [seen for task, seen in others.items() if task.type == WORKER]
    ends = [seen.since for seen in workers if seen.code and seen.since is not None]
    return max(ends) if workers and len(ends) == len(workers) else None
