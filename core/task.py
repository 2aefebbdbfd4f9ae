"""Who somebody is: a task of the cluster, and one life of it."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class TaskId:
    """One task, e.g. ``TaskId("worker", 1)``, written ``/job:worker/task:1``."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"/job:{self.type}/task:{self.index}"

    @property
    def short(self) -> str:
        """As log lines and tables write it: ``worker:1``."""
        return f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a task. A restarted task has a higher generation; the older one is fenced."""

    task: TaskId
    generation: int

    def __str__(self) -> str:
        return f"{self.task} (generation {self.generation})"
