"""SlurmClusterResolver: the tasks of a Slurm job step as a cluster."""

from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.process.accelerators import count_node_gpus
from ...core.settings import environment_variables, set_environment
from ...core.task import TaskId
from ..spec import ClusterSpec
from .division import divide, jobs_or_workers, task_of_rank
from .resolver import ClusterResolver
from .slurm import (
    HOSTS,
    NUM_TASKS,
    RANK,
    TASKS_PER_NODE,
    check_place,
    gpus_of_place,
    places_of_ranks,
    read_number,
    tasks_by_host,
)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_NODE = "ROPEWALK_GPUS_OF_NODE"
_MOST_GPUS = 1024  # of a node: what says more is no count
"""Value of ``CUDA_VISIBLE_DEVICES`` before it was narrowed: the next resolver divides the same."""


class SlurmClusterResolver(ClusterResolver):
    """A resolver like ``tf.distribute.cluster_resolver.SlurmClusterResolver``.

    Start every task by ``srun``; it says which rank this is and where the others are. The jobs,
    in the order of their names, get the ranks in order: of ``{"ps": 1, "worker": 3}`` rank 0 is
    the ps. The tasks of a host listen at ``port_base``, ``port_base + 1`` and so on.

    :meth:`cluster_spec` sets ``CUDA_VISIBLE_DEVICES`` to this task's part of the host's GPUs,
    unless ``auto_set_gpu`` is off, there are none, or Slurm itself has bound them to tasks
    (``--gpus-per-task``).

    ::

        SlurmClusterResolver({"ps": 2, "worker": 6}).cluster_spec()

    Args:
        jobs: Tasks of each job; None: all are workers.
        port_base: Port of the first task of a host. Two jobs on one host need different ones.
        gpus_per_node: Number of GPUs of a node; None: those in ``CUDA_VISIBLE_DEVICES``, or those
            that Slurm (``SLURM_GPUS_ON_NODE``) or ``nvidia-smi`` count.
        gpus_per_task: Number of GPUs of a task; None: those of a node, divided by the largest
            number of tasks on a node.
        tasks_per_node: Number of tasks on every node, or a number by host; None: as Slurm says.
        auto_set_gpu: Whether to set ``CUDA_VISIBLE_DEVICES``.
        rpc_layer: Protocol in front of addresses.
        variables: Instead of this process's environment; ``CUDA_VISIBLE_DEVICES`` is then not set.

    Raises:
        ConfigurationError: The process is no task of a step, or the step, the jobs and the GPUs do
            not fit. TensorFlow raises RuntimeError.
    """

    _asks_nobody = True

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        environment = environment_variables() if variables is None else variables
        self._rank = read_number(environment, RANK)
        tasks = tasks_by_host(environment, tasks_per_node)
        self._places = places_of_ranks(tasks, environment.get("SLURM_DISTRIBUTION", ""))
        if environment.get(NUM_TASKS, "").strip():
            _check_total(read_number(environment, NUM_TASKS), len(self._places))
        check_place(self._places, environment)
        most = max(tasks.values())
        if not 0 < port_base <= 65536 - most:
            raise ConfigurationError(
                f"port_base={port_base}: the {most} tasks of a host need the ports {port_base} to "
                f"{port_base + most - 1}, and the last port is 65535"
            )
        self._jobs = jobs_or_workers(jobs, len(self._places), "the Slurm step")
        self._jobs_given = jobs is not None
        self._port_base = port_base
        self._rpc_layer = rpc_layer
        self._bound_by_slurm = bool(environment.get("SLURM_GPUS_PER_TASK"))
        self._visible = _visible_gpus(environment, gpus_per_node)
        if gpus_per_task is None:
            per_task = len(self._visible)
            gpus_per_task = per_task if self._bound_by_slurm else per_task // most
        if not self._bound_by_slurm and most * gpus_per_task > len(self._visible):
            raise ConfigurationError(
                f"{most} tasks on a node with {gpus_per_task} GPUs each need "
                f"{most * gpus_per_task}, and there are {len(self._visible)}; lower gpus_per_task, "
                "or start fewer tasks on a node",
                gpus=len(self._visible),
            )
        self._gpus_per_task = gpus_per_task
        self._sets_gpus = auto_set_gpu and variables is None

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster; sets ``CUDA_VISIBLE_DEVICES`` of this process: see the class."""
        if self._sets_gpus and self.gpus:
            set_environment(_OF_NODE, ",".join(self._visible))
            set_environment(_VISIBLE, ",".join(self.gpus))
        addresses = [f"{at.host}:{self._port_base + at.local_id}" for at in self._places]
        return divide(addresses, self._jobs)

    @property
    def gpus(self) -> list[str]:
        """GPUs of this task, as ``CUDA_VISIBLE_DEVICES`` names them; empty: it is left as it is."""
        if self._bound_by_slurm:
            return []
        return gpus_of_place(self._places[self._rank], self._visible, self._gpus_per_task)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return (type, index) of this process; TensorFlow knows them after :meth:`cluster_spec`
        alone.
        """
        return self.task_type, self.task_id

    def _accelerators(self, kind: str | None, index: int | None) -> dict[str, int]:  # noqa: ARG002 - all the same
        """Count the GPUs of a task, the same for all; empty without any."""
        return {"GPU": self._gpus_per_task} if self._gpus_per_task else {}

    @property
    def source(self) -> str:
        """``"Slurm"``."""
        return "Slurm"

    @property
    def sources(self) -> dict[str, str]:
        """The variables."""
        cluster = f"{HOSTS}, {TASKS_PER_NODE}" + (", the jobs" if self._jobs_given else "")
        return {"cluster": cluster, "task": RANK}

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True

    def _found(self, name: str) -> Any:
        task: TaskId = task_of_rank(self._rank, self._jobs)
        return {"task_type": task.type, "task_id": task.index}.get(name)


def _check_total(stated: int, placed: int) -> None:
    if stated != placed:
        raise ConfigurationError(
            f"{NUM_TASKS} is {stated}, but the hosts have {placed} tasks; check tasks_per_node",
            tasks=stated,
            placed=placed,
        )


def _visible_gpus(environment: Mapping[str, str], gpus_per_node: int | None) -> list[str]:
    """List the node's GPUs that the tasks divide among each other."""
    narrowed = environment.get(_OF_NODE, "") or environment.get(_VISIBLE)
    named = None if narrowed is None else [name for name in narrowed.split(",") if name.strip()]
    if gpus_per_node is None:
        if named is not None:
            return named
        counted = parse_number(environment.get("SLURM_GPUS_ON_NODE", ""), _MOST_GPUS)
        gpus_per_node = count_node_gpus() if counted is None else counted
    if named and len(named) >= gpus_per_node:
        return named[:gpus_per_node]
    return [str(number) for number in range(gpus_per_node)]
