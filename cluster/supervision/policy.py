"""Policy, events and orders of a supervision, as data, and what the exit of a task means. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from ...core.exit_codes import ExitCode, describe_exit, is_retryable
from ...core.task import TaskId
from ..spec import CHIEF, EVALUATOR, PS, TASK_TYPES, WORKER

# -- Whether a job has failed: what the exit of one task means, and which task is to blame. Pure --
# Every launcher asks here: ``ropewalk local`` and a standalone cluster by way of
# :mod:`.supervision`, the status of a job on Kubernetes by itself.

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


# -- Policy of a supervision, as data: the steps that end a job, and what is started again -----


ALL_ROLES = frozenset(TASK_TYPES)


class Cause(IntEnum):
    """Why a job ends. A greater cause replaces a smaller one, and its steps begin anew."""

    TOLD = 1  # the chief has told a ps that the job is over, and should end next
    DONE = 2  # the chief is done
    FAILED = 3
    REQUESTED = 4


class Measure(Enum):
    """The measure against a task that should end."""

    ASK = "SIGTERM"
    KILL = "SIGKILL"
    GIVE_UP = "count it as ended"


@dataclass(frozen=True, slots=True)
class EndingStep:
    """A stage in ending a job.

    Attributes:
        after_s: Time since the cause. Unit: seconds.
        measure: Measure that is taken against the tasks that still run.
        roles: Roles whose tasks are meant.
        or_without_chief: Whether it need not wait once the step before was taken and the chief has
            ended.
    """

    after_s: float
    measure: Measure
    roles: frozenset[str] = ALL_ROLES
    or_without_chief: bool = False


@dataclass(frozen=True, slots=True)
class Restarts:
    """A rule for starting ended tasks of a role again: which, how often, and after which wait.

    Attributes:
        after_peers: True: tasks that ended because of another one, see ``exits.FOLLOWED``, and ps
            that left early. False: tasks that were lost themselves, by a signal or with another
            retryable code, as long as the job goes on.
        after_kill: Whether tasks that SIGKILL has ended are started again, too; with
            ``after_peers``.
        most: Number of times; None: as often as they end so.
        first_wait_s: Bound of the first wait; 0: they are started at once. Unit: seconds.
        longest_wait_s: Bound of the longest wait. A task that has run for longer than that begins
            with the first wait again, since it has made progress. Unit: seconds.
    """

    after_peers: bool = False
    after_kill: bool = False
    most: int | None = None
    first_wait_s: float = 0.0
    longest_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy for supervising the tasks of a job.

    Attributes:
        needs: Tasks that the job needs.
        ending: The steps for each cause, in order. A cause without steps waits for the tasks to
            end by themselves.
        restarts: Rules for starting ended tasks again, by role. A role that is not there: none.
        hang_s: Longest time that a task may hang before it is killed: a lease and a grace. Unit:
            seconds.
    """

    needs: JobNeeds
    ending: Mapping[Cause, tuple[EndingStep, ...]]
    restarts: Mapping[str, Restarts] = field(default_factory=dict)
    hang_s: float = float("inf")


def later(steps: Iterable[EndingStep], after_s: float) -> tuple[EndingStep, ...]:
    """Delay each step by so much. Unit: seconds."""
    return tuple(replace(step, after_s=step.after_s + after_s) for step in steps)


# -- Events that go into a supervision, and orders that come out -------------------------------


# -- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """The process of a task has ended.

    Attributes:
        end: The task, its code and, if need be, a sentence.
        can_restart: Whether there is a place where the task could be started again, and no reason
            why it would end so again.
    """

    end: End
    can_restart: bool = True


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job should save and end.

    Attributes:
        reason: Why, for people. The first reason stays.
        kill: End it at once.
    """

    reason: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """The findings of a look at the processes.

    Attributes:
        stopped: Times since which a signal (SIGSTOP) has kept tasks stopped.
        chief_answered: Time at which the chief last answered; the beginning, if it never has.
    """

    stopped: Mapping[TaskId, float]
    chief_answered: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Ended | StopRequested | Looked | Tick


# -- orders ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start a task again; ``attempt`` is 1 for the first time."""

    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Ask a task to end by SIGTERM, or kill it; ``why``, for people, if it hangs."""

    task: TaskId
    kill: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fails:
    """The job ends because of this exit; nothing to do but to tell."""

    end: End


@dataclass(frozen=True, slots=True)
class Leaves:
    """A task has ended and the others go on; nothing to do but to tell.

    Attributes:
        end: The exit.
        verdict: Verdict about the exit, with a sentence for people.
    """

    end: End
    verdict: Verdict


Order = StartAgain | Signal | Fails | Leaves
