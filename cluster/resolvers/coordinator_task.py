"""A coordinator's program beside a cluster of servers that does not name it. Pure.

TensorFlow's cluster of workers and parameter servers has no task for the program that coordinates
them: its resolver says no task type. Here that program is the chief, at a port that it chooses;
workers learn its address from a ps.
"""

from dataclasses import replace

from ...core.errors import ConfigurationError
from ...core.task import TaskId
from ..roles import CHIEF, PS, WORKER, canonical_spec
from ..spec import ClusterSpec
from .resolved import ResolvedTask, resolve
from .resolver import ClusterResolver
from .simple import SimpleClusterResolver


def servers_to_coordinate(resolver: ClusterResolver) -> ClusterSpec | None:
    """Find the cluster that a program coordinates without being a task of it; None: it is a task.

    Args:
        resolver: Resolver that the user gave to the strategy.
    """
    if resolver.from_launcher or resolver.task_type is not None:
        return None
    spec = canonical_spec(resolver.cluster_spec())
    names_all = CHIEF in spec.jobs or not {PS, WORKER} <= set(spec.jobs)
    return None if names_all else spec


def coordinator_of(spec: ClusterSpec, host: str) -> ResolvedTask:
    """Describe the coordinator's program, as the chief of the cluster.

    Args:
        spec: The cluster from :func:`servers_to_coordinate`.
        host: Host at which the servers reach this process.

    Raises:
        ConfigurationError: The addresses are malformed or used twice.
    """
    worker = resolve(SimpleClusterResolver(spec, task_type=WORKER, task_id=0), source="cluster")
    chief, address = TaskId(CHIEF, 0), f"{host}:0"
    whole = ClusterSpec({**worker.spec.as_dict(), CHIEF: [address]})
    sources = {"cluster": "cluster_resolver", "task": "none given: this program coordinates"}
    return ResolvedTask(chief, whole, chief, address, address, sources=sources)


def served_by_coordinator(worker: ResolvedTask) -> ResolvedTask:
    """Describe a worker that runs closures: in a cluster that names no chief, somebody else is it.

    Raises:
        ConfigurationError: The cluster has no ps either, which could say where.
    """
    if CHIEF in worker.spec.jobs:
        return worker
    if PS not in worker.spec.jobs:
        raise ConfigurationError(
            f"{worker.task} cannot find out who schedules its closures: the cluster names "
            "neither a chief, nor a ps that could be asked; name the task that runs the "
            "coordinator's program as chief"
        )
    return replace(worker, chief=TaskId(CHIEF, 0), chief_address="")
