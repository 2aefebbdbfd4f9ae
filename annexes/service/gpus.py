"""GPUs of a standing cluster: which tasks of a job have some, and which of a node's are free.

A job says how many; a GPU is one task's until its job is over. Nodes of one machine offer the same
GPUs, so a GPU is known by its name on the whole cluster: a UUID, or a name and its node's host.
"""

from collections.abc import Iterable, Sequence

from ...cluster.spec import CHIEF, WORKER
from ...core.process.accelerators import node_gpus
from ...core.settings import environment_variables
from ...launch.local.gpus import VISIBLE, visible_gpus
from .job import PlacedTask, StandaloneJob, Submission
from .nodes import Node

_UNIQUE = ("GPU-", "MIG-")


def offered_gpus(role: str) -> tuple[str, ...]:
    """List the GPUs that a node of this machine offers to its tasks, by their UUIDs.

    Args:
        role: Role of the node; parameter servers compute on none.
    """
    if role not in (CHIEF, WORKER):
        return ()
    names = visible_gpus(environment_variables().get(VISIBLE))
    if not any(name.isdigit() for name in names):
        return tuple(names)
    uuids = [gpu.uuid for gpu in node_gpus()]
    return tuple(
        uuids[int(name)] if name.isdigit() and int(name) < len(uuids) else name for name in names
    )


def gpus_for(asked: Submission, node: Node) -> int:
    """Count the GPUs that a task of a job has on a node: those that were asked for, on every worker
    and a chief that runs the program, unless the chief's machine has none.
    """
    if node.task.type == CHIEF:
        runs_nothing = asked.coordinator or asked.is_driven_from_outside
        return 0 if runs_nothing or not node.gpus else asked.gpus_per_worker
    return asked.gpus_per_worker if node.task.type == WORKER else 0


class FreeGpus:
    """The GPUs of a cluster that no task has.

    Args:
        jobs: Jobs of the cluster; those that have ended have none.
        nodes: Nodes of the cluster, by their tasks.
        beside: Tasks that are about to begin.
    """

    def __init__(
        self,
        jobs: Iterable[StandaloneJob],
        nodes: Sequence[Node],
        beside: Iterable[PlacedTask] = (),
    ) -> None:
        hosts = {node.task: node.host for node in nodes}
        placed = [task for job in jobs if not job.has_ended for task in job.tasks.values()]
        self._taken = {
            _unique(name, hosts.get(task.node, ""))
            for task in (*placed, *beside)
            for name in task.gpus
        }

    def take(self, node: Node, count: int) -> tuple[str, ...] | None:
        """Take GPUs of a node; None: fewer than that are free there."""
        free = [name for name in node.gpus if _unique(name, node.host) not in self._taken][:count]
        if len(free) < count:
            return None
        self._taken |= {_unique(name, node.host) for name in free}
        return tuple(free)


def _unique(name: str, host: str) -> tuple[str, str]:
    return (name, "") if name.startswith(_UNIQUE) else (name, host)


def gpus_left_out(asked: Submission, nodes: Iterable[Node]) -> str:
    """Say that a job asked for no GPU of nodes that have some; empty: it did, or they have none."""
    offered = {_unique(name, node.host) for node in nodes for name in node.gpus}
    if asked.gpus_per_worker or not offered:
        return ""
    return (
        f"the cluster's nodes have GPUs ({len(offered)}), which the tasks of this job do not see: "
        "it asks for none; --gpus-per-worker 1, or gpus_per_worker=1 of rw.connect, gives each "
        "worker one"
    )
