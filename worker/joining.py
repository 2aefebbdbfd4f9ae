"""Joining a job: is it over already, and are the others there?"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..client.chief.calls import ChiefClient
from ..client.chief.membership import Membership
from ..cluster.resolvers.resolved import ResolvedTask
from ..core import annexes
from ..core.errors import JobDoneError, JoinTimeoutError, RopewalkError
from ..core.process.waiting import FIRST_S
from ..core.settings import Settings
from ..core.step_times import StepClock
from ..core.task import LONGEST_FIRST_STEP_S, Incarnation, Phase, TaskId
from ..proto.v1.chief_pb2 import HeartbeatResponse

if TYPE_CHECKING:
    from ..client.chief.membership import Membership
    from ..client.ps.parameter_session import ParameterSession
    from .lead.leader import JobLeader

log = logging.getLogger(__name__)

# -- A task that has joined, for what annexes do about the answers to its heartbeats -----------
# An annex that has a module ``heartbeat_part`` attaches there with ``PART``, made from this.


@dataclass(frozen=True, slots=True)
class JoinedTask:
    """A task that has joined its job.

    Attributes:
        who: The task.
        chief: Client to its chief.
        session: Returns the task's session with the ps; None: it has none yet.
        settings: The task's settings.
        clock: Clock of its steps.
    """

    who: Incarnation
    chief: ChiefClient
    session: "Callable[[], ParameterSession | None]"
    settings: Settings
    clock: StepClock


class HeartbeatPart(Protocol):
    """A part that an annex has in the heartbeats of a task."""

    def hear(self, answer: HeartbeatResponse) -> None:
        """Read the answer to a heartbeat; from the thread of the heartbeats. Must not wait."""

    def close(self) -> None:
        """Do nothing more."""


def heartbeat_parts(joined: JoinedTask) -> list[HeartbeatPart]:
    """Make the parts of a task that annexes bring."""
    return [module.PART(joined) for module in annexes.at("heartbeat_part")]


# -- Joining a job, unless the record in its model directory says that it is over --------------
# A task that starts late, say because its pod was restarted, gets no answer at the chief's
# address. If the job is done it need not wait: it ends with 0, and no launcher starts it again.


def join_unless_done(
    membership: Membership, task: ResolvedTask, settings: Settings, check: Callable[[], None]
) -> Incarnation:
    """Join the job; a task that waits for its chief reads the record.

    Args:
        membership: The task's membership.
        task: The task that joins.
        settings: The task's settings.
        check: Called while waiting; raises to give up.

    Raises:
        JobDoneError: The job is over; there is nothing to do.
        JoinTimeoutError: The chief did not answer.
    """
    if task.is_chief:
        return membership.join(still_wanted=check)

    def still_wanted() -> None:
        check()
        raise_if_done(task.task, settings)

    try:
        return membership.join(still_wanted=still_wanted)
    except JoinTimeoutError:
        raise_if_done(task.task, settings, of_any_id=True)
        raise


def raise_if_done(task: TaskId, settings: Settings, *, of_any_id: bool = False) -> None:
    """Raise if the job is recorded as done.

    Args:
        task: The task that asks.
        settings: The model directory and the job's id; without either nothing is known.
        of_any_id: Whether a job of another id counts: only after a long wait for the chief, since
            the next job in the same directory may be about to begin.

    Raises:
        JobDoneError: The job is done.
    """
    if not settings.model_dir or not (settings.job_id or of_any_id):
        return
    from ..core.checkpoint.job_record import read_job_record
    from ..core.checkpoint.storage import open_model_dir

    try:
        record = read_job_record(open_model_dir(settings.model_dir))
    except (RopewalkError, OSError):
        return
    if record.phase is Phase.DONE and (of_any_id or record.job == settings.job_id):
        raise JobDoneError(
            f"{task}: job {record.job!r} is done already, with global step {record.global_step} "
            f"({settings.model_dir}); nothing is left to do",
            task=task,
        )


# -- The tasks of a job begin together: after its first step, a task waits for those of the others
# What is compiled at first may take longer than all steps of a short job, which those that are
# ready would make alone. A job whose chief waits for workers begins so; the setting is
# ``wait_for_workers``.

_POLL_S = 0.02


class FirstSteps:
    """The wait of one task. Its program begins when this is made.

    Args:
        membership: Says whether the task is held.
        leader: Leader of the job, if this is its chief; shows for whom it waits.
        least_s: Least time that others have. Unit: seconds.
    """

    def __init__(
        self, membership: "Membership", leader: "JobLeader | None", least_s: float = 10.0
    ) -> None:
        self._least_s = least_s
        self._membership = membership
        self._leader = leader
        self._began = time.monotonic()

    def wait(self, check: Callable[[], None]) -> None:
        """Wait, after this task's first step, until all that are here have made theirs.

        A task need not make any, so this takes no longer than ten seconds and twice the time that
        this task needed, and a minute at most.

        Args:
            check: Called while waiting; raises to give up.
        """
        now = time.monotonic()
        limit_s = min(LONGEST_FIRST_STEP_S, self._least_s + 2 * (now - self._began))
        tells_at, until = now + FIRST_S, now + limit_s
        others = "others"
        try:
            while self._membership.is_held:
                check()
                if self._leader is not None:
                    others = self._leader.tell_first_steps() or others
                if time.monotonic() >= until:
                    log.info("goes on though %s made no step within %.3g s", others, limit_s)
                    return
                if time.monotonic() >= tells_at:
                    tells_at = until
                    log.info("waiting for the first step of %s, %.3g s at most", others, limit_s)
                time.sleep(_POLL_S)
        finally:
            if self._leader is not None:
                self._leader.end_first_steps()
