"""A task of the cluster, and one incarnation of it."""

from dataclasses import dataclass, field

from .errors import FencedError


@dataclass(frozen=True, order=True, slots=True)
class TaskId:
    """One task, e.g. ``TaskId("worker", 1)``, written ``/job:worker/task:1``."""

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
        """As log lines and tables write it: ``worker:1``."""
        return f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process of a task. A restarted task has a higher generation; older ones are fenced."""

    task: TaskId
    generation: int

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
