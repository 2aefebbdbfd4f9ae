"""Leadership of a job, as its servers see it: the chief, or worker 0 of a cluster without one.

A ps whose TF_CONFIG names only itself does not know whether there is a chief until one attaches. So
a chief that attaches wins over worker 0, also while worker 0 leads, and from then on that chief
alone leads: also when it is silent, or restarts as a new generation of the same task. Pure.
"""

from dataclasses import dataclass

from ...core.task import TaskId
from ..roles import CHIEF, WORKER
from .principal import Principal


@dataclass(frozen=True, slots=True)
class Leadership:
    """Knowledge of a server about the leader of its job.

    Attributes:
        has_chief: The cluster is known to have a task of the type chief.
        leader: The task that led last; None: none yet.
    """

    has_chief: bool = False
    leader: TaskId | None = None

    def allows(self, who: Principal) -> bool:
        """Return whether a caller may lead."""
        if self.leader is not None and self.leader.type == CHIEF:
            return who.may_be(self.leader)
        if who.role == CHIEF:
            return True
        return who.role == WORKER and who.index == 0 and not self.has_chief


def may_follow(leader: TaskId, newcomer: TaskId, *, is_heard: bool) -> bool:
    """Return whether another task may lead after ``leader``, in the same job.

    Args:
        leader: Leads now, or did last.
        newcomer: Task that asks to lead.
        is_heard: The leader's lease has not run out.
    """
    if leader.type == CHIEF:
        return False
    return newcomer.type == CHIEF or not is_heard
