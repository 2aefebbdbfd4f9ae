"""What a launcher does when one of its tasks ends. Pure."""

from dataclasses import dataclass

from ..cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from ..core.exit_codes import ExitCode, describe_exit, is_retryable
from ..core.task import TaskId


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the job goes on.

    Attributes:
        job_ends: The other tasks are to be stopped.
        failed: This task's end is the job's failure.
        message: For people; empty if there is nothing to say.
    """

    job_ends: bool = False
    failed: bool = False
    message: str = ""


def on_exit(
    task: TaskId, code: int, *, chief: TaskId, stopping: bool, in_sync: bool = False
) -> Verdict:
    """Judge the end of a task.

    A worker killed by a signal, or one that may come back, does not end the job: training is
    asynchronous. One that failed for good would fail again. Nobody can go on without a ps or the
    chief.

    Args:
        task: Who ended.
        code: As ``subprocess`` reports it: negative for a signal.
        chief: Who leads.
        stopping: The job is being stopped or is over; ends are expected.
        in_sync: There are no ps, and nobody can go on without any other.
    """
    if code == 0 or stopping:
        return Verdict()
    why = (
        f"{task.short} ended with {code if code > 0 else f'signal {-code}'}: {describe_exit(code)}"
    )
    if in_sync or task.type in (PS, CHIEF) or task == chief:
        return Verdict(job_ends=True, failed=True, message=why)
    if task.type in (WORKER, EVALUATOR) and code in (ExitCode.PEER_LOST, ExitCode.DRAINED):
        return Verdict(message=why)  # perhaps since the whole job ends; its chief knows
    if task.type in (WORKER, EVALUATOR) and is_retryable(code):
        return Verdict(message=f"{why}; the job goes on without it")
    # Training does not need the evaluator, and goes on; but the job's result is not whole without
    # it.
    return Verdict(job_ends=task.type != EVALUATOR, failed=True, message=why)
