"""Joining a job, unless the record in its model directory says that it is over.

A task that starts late, say because its pod was restarted, gets no answer at the chief's address.
If the job is done it need not wait: it ends with 0, and no launcher starts it again.
"""

from collections.abc import Callable

from ..client.chief.membership import Membership
from ..cluster.resolvers.resolved import ResolvedTask
from ..core.errors import JobDoneError, JoinTimeoutError, RopewalkError
from ..core.settings import Settings
from ..core.states import Phase
from ..core.task import Incarnation, TaskId


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
