"""Events that go into a supervision, and orders that come out."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.task import TaskId
from .exits import End, Verdict

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
