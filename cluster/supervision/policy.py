"""Policy of a supervision, as data: the steps that end a job, and what is started again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from ..roles import TASK_TYPES
from .exits import JobNeeds

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
