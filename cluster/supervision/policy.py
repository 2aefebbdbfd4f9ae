"""How a job's tasks are supervised, as data: the steps that end it, and what is started again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from ...core.task import TaskId
from ..roles import TASK_TYPES

ALL_ROLES = frozenset(TASK_TYPES)


class Cause(IntEnum):
    """Why a job ends. A greater cause replaces a smaller one, and its steps begin anew."""

    TOLD = 1  # the chief has told a ps that the job is over, and should end next
    DONE = 2  # the chief is done
    FAILED = 3
    REQUESTED = 4


class Measure(Enum):
    """What is done to a task that should end."""

    ASK = "SIGTERM"
    KILL = "SIGKILL"
    GIVE_UP = "count it as ended"


@dataclass(frozen=True, slots=True)
class EndingStep:
    """A stage in ending a job.

    Attributes:
        after_s: Time since the cause. Unit: seconds.
        measure: What is done to the tasks that still run.
        roles: Whose tasks are meant.
        or_without_chief: It need not wait once the step before was taken and the chief has ended.
    """

    after_s: float
    measure: Measure
    roles: frozenset[str] = ALL_ROLES
    or_without_chief: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How the tasks of a job are supervised.

    Attributes:
        chief: The chief, which may be worker 0.
        synchronous: There are no ps, and every task but the evaluator needs all others.
        ending: The steps for each cause, in order. A cause without steps waits for the tasks to
            end by themselves.
        restarts: How often a lost task of a role is started again. A role that is not there: never.
        hang_s: How long a task may hang before it is killed: a lease and a grace. Unit: seconds.
    """

    chief: TaskId
    synchronous: bool
    ending: Mapping[Cause, tuple[EndingStep, ...]]
    restarts: Mapping[str, int] = field(default_factory=dict)
    hang_s: float = float("inf")


def later(steps: Iterable[EndingStep], after_s: float) -> tuple[EndingStep, ...]:
    """The same steps, each so much later. Unit: seconds."""
    return tuple(replace(step, after_s=step.after_s + after_s) for step in steps)
