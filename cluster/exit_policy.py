"""What a launcher does when one of its tasks ends. Pure."""

from dataclasses import dataclass

from ..core.exit_codes import ExitCode, describe_exit, is_retryable
from ..core.task import TaskId
from .roles import CHIEF, EVALUATOR, PS, WORKER


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the job goes on.

    Attributes:
        job_ends: The other tasks must be stopped.
        failed: The task's exit makes the job fail.
        message: For people; may be empty.
    """

    job_ends: bool = False
    failed: bool = False
    message: str = ""


def on_exit(
    task: TaskId, code: int, *, chief: TaskId, stopping: bool, synchronous: bool = False
) -> Verdict:
    """Decide what the exit of a task means for the job.

    A worker killed by a signal, or with a retryable code, does not end the job: training is
    asynchronous. A permanent failure does, since a restart would fail again. So does the loss of a
    ps or the chief.

    Args:
        task: The task that ended.
        code: As ``subprocess`` reports it: negative for a signal.
        chief: The chief, which may be worker 0.
        stopping: The job is being stopped or is over; exits are expected.
        synchronous: There are no ps, and every task but the evaluator needs all others.
    """
    if code == 0 or stopping:
        return Verdict()
    why = (
        f"{task.short} ended with {code if code > 0 else f'signal {-code}'}: {describe_exit(code)}"
    )
    needed = task.type in (PS, CHIEF) or task == chief
    if needed or (synchronous and task.type != EVALUATOR):
        return Verdict(job_ends=True, failed=True, message=why)
    if task.type in (WORKER, EVALUATOR) and code in (ExitCode.PEER_LOST, ExitCode.DRAINED):
        return Verdict(message=why)  # the whole job may be ending; the chief reports it
    if task.type in (WORKER, EVALUATOR) and is_retryable(code):
        return Verdict(message=f"{why}; the job goes on without it")
    # Training goes on without the evaluator, but the job counts as failed without its results.
    return Verdict(job_ends=task.type != EVALUATOR, failed=True, message=why)
