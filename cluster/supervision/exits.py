"""Whether a job has failed: what the exit of one task means, and which task is to blame. Pure.

Every launcher asks here: ``ropewalk local`` and a standalone cluster by way of
:mod:`.supervision`, the status of a job on Kubernetes by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.exit_codes import ExitCode, describe_exit, is_retryable
from ...core.task import TaskId
from ..roles import CHIEF, EVALUATOR, PS, WORKER

FOLLOWED = frozenset({int(ExitCode.PEER_LOST), int(ExitCode.DRAINED)})
"""Codes of a task that ended because of another one: it lost a peer, or was asked to stop.

A ps ends with them only if its chief told it that the job is over.
"""

_NOT_TO_BLAME = FOLLOWED | {int(ExitCode.JOB_FAILED), int(ExitCode.LEFT_EARLY)}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a task.

    Attributes:
        task: The task.
        code: Exit code as ``subprocess`` reports it, or as a shell shows it.
        why: A sentence, where the launcher knows more than the code says.
    """

    task: TaskId
    code: int
    why: str = ""

    @property
    def sentence(self) -> str:
        """Sentence that says what happened, for people."""
        how = self.code if self.code > 0 else f"signal {-self.code}"
        return self.why or f"{self.task.short} ended with {how}: {describe_exit(self.code)}"


def whom_to_blame(failures: Sequence[End]) -> End:
    """Find the end that made a job fail: its code and its sentence are the job's.

    The first failure is to blame, unless that task only followed another one. Then it is the first
    task with an error of its own, or else the first that a signal killed.

    Args:
        failures: The ends that :func:`on_exit` calls failures, in the order in which they were
            noticed. At least one.
    """
    first = failures[0]
    if first.code not in _NOT_TO_BLAME:
        return first
    others = [end for end in failures if end.code not in _NOT_TO_BLAME]
    own = [end for end in others if not is_retryable(end.code)]
    return [*own, *others, first][0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The meaning of a task's exit for its job.

    Attributes:
        job_ends: The other tasks must be stopped.
        failed: The task's exit makes the job fail.
        message: Reason for people; may be empty.
    """

    job_ends: bool = False
    failed: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The tasks that a job cannot do without.

    Attributes:
        chief: The chief, which may be worker 0.
        synchronous: There are no ps, and every task but the evaluator needs all others.
        shares_move: Other ps may have what a ps had (``ps_replicas``), or it had nothing. If all
            that have something are lost, the chief ends the job.
    """

    chief: TaskId
    synchronous: bool = False
    shares_move: bool = False


def on_exit(end: End, needs: JobNeeds, *, stopping: bool) -> Verdict:
    """Decide what the exit of a task means for the job.

    A worker killed by a signal, or with a retryable code, does not end the job: training is
    asynchronous. A permanent failure does, since a restart would fail again. So does the loss of
    the chief, and that of a ps, unless other ps have what it had.

    Args:
        end: The exit.
        needs: Tasks that the job needs.
        stopping: The job is being stopped or is over; exits are expected.
    """
    task, code, why = end.task, end.code, end.sentence
    if code == 0 or stopping:
        return Verdict()
    if task.type == PS and needs.shares_move and is_retryable(code):
        return Verdict(message=f"{why}; the job goes on if other ps have what it had")
    needed = task.type in (PS, CHIEF) or task == needs.chief
    if needed or (needs.synchronous and task.type != EVALUATOR):
        return Verdict(job_ends=True, failed=True, message=why)
    if task.type in (WORKER, EVALUATOR) and code in FOLLOWED:
        return Verdict(message=why)  # the whole job may be ending; the chief reports it
    if task.type in (WORKER, EVALUATOR) and is_retryable(code):
        return Verdict(message=f"{why}; the job goes on without it")
    # Training goes on without the evaluator, but the job counts as failed without its results.
    return Verdict(job_ends=task.type != EVALUATOR, failed=True, message=why)
