"""Policy of ``ropewalk local`` for its tasks: a job that is stopped ends within five seconds."""

from dataclasses import replace

from ...cluster.spec import PS
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
from .cluster import LocalRoles

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
