"""A task of the cluster, one incarnation of it, and the states of jobs and tasks."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum

from .errors import FencedError
from .exit_codes import ExitCode

# -- A task of the cluster, and one incarnation of it ------------------------------------------


MAX_TASK_INDEX = 1_000_000
"""No cluster has so many tasks: an index above is a slip, or an attack."""


@dataclass(frozen=True, order=True, slots=True)
class TaskId:
    """A task, e.g. ``TaskId("worker", 1)``, written ``/job:worker/task:1``."""

    type: str
    index: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Hashed often: a ps looks tasks up several times per step.
        object.__setattr__(self, "_hash", hash((self.type, self.index)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"/job:{self.type}/task:{self.index}"

    @property
    def short(self) -> str:
        """Name in log lines and tables: ``worker:1``."""
        return f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A process of a task. A restarted task has a higher generation; older ones are fenced.

    Attributes:
        job: Id of the job it belongs to; empty: not known yet. Who meets a task of another job
            refuses it.
    """

    task: TaskId
    generation: int
    job: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.task} (generation {self.generation})"

    def check_not_superseded(self, generation: int) -> None:
        """Check this process against the highest generation of its task that is known.

        Raises:
            FencedError: That one is newer.
        """
        if self.generation < generation:
            raise FencedError(
                f"{self} was superseded by generation {generation}: another process took its "
                "place. This one must end",
                task=self.task,
                generation=self.generation,
                current=generation,
            )


def new_job_id() -> str:
    """Make an id for a job that was given none."""
    return secrets.token_hex(4)


def is_other_job(mine: str, theirs: str) -> bool:
    """Return whether two ids are of different jobs; an empty one is not known, and fits every
    job.
    """
    return bool(mine and theirs) and mine != theirs


# -- The states of jobs and tasks --------------------------------------------------------------

LONGEST_FIRST_STEP_S = 60.0
"""Longest time that a task waits, after its own first step, for those of others."""


class Phase(StrEnum):
    """State of a job."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether all tasks should end."""
        return self in (Phase.DONE, Phase.STOPPED, Phase.FAILED)

    @property
    def ended_how(self) -> str:
        """Predicate of a sentence about the job's end, such as ``failed``."""
        return {Phase.FAILED: "failed", Phase.STOPPED: "was stopped"}.get(self, f"is {self}")

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, after the end of the job, of a task that did its own part."""
        codes = {Phase.DONE: ExitCode.DONE, Phase.STOPPED: ExitCode.DRAINED}
        return codes.get(self, ExitCode.PEER_LOST)


class State(StrEnum):
    """State of a task, as the chief sees it."""

    MISSING = "missing"
    ALIVE = "alive"
    LOST = "lost"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"


class Outcome(StrEnum):
    """The outcome of a task's part of the job."""

    DONE = "done"
    FAILED = "failed"
    LEFT = "left"
