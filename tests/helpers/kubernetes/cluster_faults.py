"""What happens to pods of a job, and what follows: the table of docs/kubernetes.md, as it is tried.

A fault is done to one pod. Its job goes on, and no other pod is replaced.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helpers.kubernetes.real_cluster import delete, evict, kill, terminate


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """Something that happens to one pod.

    Attributes:
        row: What the table calls it.
        task: Whose pod.
        happen: Has it happen, to a pod of a namespace.
    """

    row: str
    task: str
    happen: Callable[[str, str], None]

    def __str__(self) -> str:
        return f"{self.row} ({self.task}, {self.happen.__name__})"


FAULTS = [
    ClusterFault("a worker is killed or evicted", "worker:0", kill),
    ClusterFault("a worker is killed or evicted", "worker:1", evict),
    ClusterFault("a ps gets SIGTERM", "ps:0", terminate),
    ClusterFault("a ps is killed", "ps:1", kill),
    ClusterFault("the chief is killed", "chief:0", kill),
    ClusterFault("a pod is deleted, or its node drained", "worker:0", delete),
    ClusterFault("a pod is deleted, or its node drained", "ps:0", evict),
    ClusterFault("a pod is deleted, or its node drained", "chief:0", delete),
    ClusterFault("a ps is killed", "ps:0", kill),
    ClusterFault("a worker is killed or evicted", "worker:1", kill),
]
"""Ten of them, of every role in turn."""

FAILS_THE_JOB = "a task exits with 1 to 127"
"""The row that is no fault of a pod: the program's own."""
