"""Decisions of ``ropewalk local``: how its tasks end, and how many ps it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...cluster.spec import PS
from ...cluster.supervision.decisions import TaskRun
from ...cluster.supervision.policy import (
    ALL_ROLES,
    Cause,
    EndingStep,
    JobNeeds,
    Measure,
    Policy,
    Restarts,
    later,
)
from ...core.settings import Settings
from ...core.task import TaskId
from .cluster import LocalRoles

# -- Policy of ``ropewalk local`` for its tasks: a job that is stopped ends within five seconds --


_CHIEF_IS_LATE_S = 3.5  # beyond the time in which a chief leaves

# A ps: another one goes on with what it had, and copies it to the new process.
_LOST_TASK = Restarts(first_wait_s=0.2, longest_wait_s=10.0)

# First the chief saves, then the ps end, then SIGKILL.
_STOP = (
    EndingStep(0.0, Measure.ASK, ALL_ROLES - {PS}),
    EndingStep(3.5, Measure.ASK, frozenset({PS}), or_without_chief=True),
    EndingStep(4.5, Measure.KILL),
)


def local_policy(cluster: LocalRoles, settings: Settings, restarts: int = 0) -> Policy:
    """Make the policy for a job on this machine.

    Args:
        cluster: The tasks.
        settings: Settings of every task. They say how long tasks may take to leave, and how long
            they may hang.
        restarts: Number of times that a lost chief is started again. The ps have the variables, and
            the model directory what it decided.
    """
    grace_s = settings.leave_grace_s
    started_again = {PS: _LOST_TASK} if settings.shares_move else {}
    if restarts:
        started_again[cluster.chief_task.type] = replace(_LOST_TASK, most=restarts)
    return Policy(
        JobNeeds(cluster.chief_task, cluster.synchronous, settings.shares_move),
        {
            Cause.TOLD: later(_STOP, grace_s + _CHIEF_IS_LATE_S),
            # The tasks of a synchronous job end by themselves, each when it is done.
            Cause.DONE: () if cluster.synchronous else later(_STOP, grace_s),
            Cause.FAILED: _STOP,
            Cause.REQUESTED: _STOP,
        },
        restarts=started_again,
        hang_s=settings.lease_s + grace_s,
    )


# -- Number of ps of a local job: which are to be started, and which asked to leave. Pure ------


@dataclass(slots=True)
class Scaling:
    """Number of ps that a job is to have, and those that were asked to leave for it.

    Attributes:
        count: Number of ps that the job is to have.
        sent_away: Ps that were asked to leave; none of them is started again.
    """

    count: int
    sent_away: set[TaskId] = field(default_factory=set)

    def to(self, wanted: int) -> str:
        """Change the number; what to say about that, or nothing."""
        if wanted == self.count:
            return ""
        text, self.count = f"{self.count} → {wanted} ps", wanted
        return text

    def to_start(self, runs: Mapping[TaskId, TaskRun], known_s: float) -> list[TaskId]:
        """Choose the ps to start: those that never were, and those that have left.

        Args:
            runs: The tasks of the job.
            known_s: Time at which the job was last known to go on, by the clock of
                ``time.monotonic``; 0: it is over. A ps that has ended since may have ended with it.
        """
        tasks = [TaskId(PS, index) for index in range(self.count)]
        chosen = [task for task in tasks if _is_missing(runs.get(task), known_s)]
        self.sent_away.difference_update(chosen)
        return chosen

    def to_send_away(self, runs: Mapping[TaskId, TaskRun]) -> list[TaskId]:
        """Choose the ps that are to leave: they hand over what they have."""
        extra = [
            task
            for task, run in runs.items()
            if task.type == PS and task.index >= self.count and not run.has_ended
        ]
        chosen = [task for task in extra if task not in self.sent_away]
        self.sent_away.update(chosen)
        return chosen


def _is_missing(run: TaskRun | None, known_s: float) -> bool:
    return run is None or (run.ended is not None and known_s > run.ended)
