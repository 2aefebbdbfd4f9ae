"""A Slurm job step as a cluster: which rank runs where, in which job, with which GPUs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NoReturn

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.process.accelerators import count_node_gpus
from ...core.settings import environment_variables, set_environment
from ...core.task import MAX_TASK_INDEX, TaskId
from ...core.terminal import counted
from ..spec import ClusterSpec
from .resolver import ClusterResolver, divide, jobs_or_workers, task_of_rank

# -- A Slurm job step as a cluster: which rank runs where, in which job, with which GPUs -------
# Pure: what ``srun`` puts into a task's environment arrives as an argument.
#
# Ranks are placed as Slurm places them: node after node in the order of ``SLURM_STEP_NODELIST``
# (``--distribution=block``, its default where nodes have several tasks), or dealt out in turn
# (``cyclic``). TensorFlow's resolver sorts host names as strings instead, and so takes n10 for
# rank 1 of ``n[1-12]``, where Slurm has n2. A rank compares its place with ``SLURMD_NODENAME`` and
# ``SLURM_LOCALID``, so that another distribution is an error and not a wrong cluster.
#
# Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES" and ``--distribution``.


# -- Slurm's lists: hosts as ``n[01-03,7],login1``, tasks per node as ``2(x3),1`` --------------
# A range keeps the width of its lower bound: ``n[08-10]`` is n08, n09, n10. An item may have
# several brackets, which vary like the digits of a number, the last one fastest, and text behind
# them: ``rack[0-1]node[1-2].hpc``. The order of a list is kept: it is the order of the nodes in
# the step.
#
# Source: slurm.conf(5), "NodeName", and srun(1), ``SLURM_STEP_NODELIST`` and
# ``SLURM_STEP_TASKS_PER_NODE``. TensorFlow's resolver reads one bracket at the end of an item.


MAX_ITEMS = 65_536
"""More hosts or tasks than that are a typing error: Slurm's own limit of nodes is the same."""

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?")


def expand_host_list(text: str, name: str = "host list") -> list[str]:
    """List the hosts of a Slurm host list, in its order.

    Args:
        text: Slurm's list, for instance ``"n[1-2],m5,o[3-4,6]"``.
        name: Name of the variable or flag that the list comes from, for errors.

    Raises:
        ConfigurationError: It does not read as a host list, or has more than :data:`MAX_ITEMS`.
    """
    hosts: list[str] = []
    position = 0
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            _refuse(name, text, f"a host is expected at character {position + 1}")
        choices = [
            [plain] if plain else _numbers(inside, name, text)
            for inside, plain in _PARTS.findall(item[0])
        ]
        if len(hosts) + prod(len(choice) for choice in choices) > MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} hosts")
        hosts += ["".join(parts) for parts in product(*choices)]
        position = item.end()
        if position == len(text):
            return hosts
        if text[position] != ",":
            _refuse(name, text, f"unexpected {text[position]!r} at character {position + 1}")
        position += 1


def _numbers(inside: str, name: str, text: str) -> list[str]:
    """List the numbers in a bracket, as they are written in host names."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            _refuse(name, text, f"{part!r} in brackets is neither a number nor a range like 1-4")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            _refuse(name, text, f"the range {part} runs backwards")
        if len(numbers) + int(high) - int(low) >= MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} hosts")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def expand_counts(text: str, name: str = "tasks per node") -> list[int]:
    """List the tasks per node, node by node: ``"2(x3),1"`` is ``[2, 2, 2, 1]``.

    Args:
        text: Slurm's list.
        name: Name of the variable or flag that the list comes from, for errors.

    Raises:
        ConfigurationError: It does not read so, or is of more than :data:`MAX_ITEMS` nodes.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            _refuse(name, text, f"{part!r} is neither a count nor COUNT(xNODES), e.g. 2(x3),1")
        nodes = int(match[2] or 1)
        if len(counts) + nodes > MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} nodes")
        counts += [int(match[1])] * nodes
    return counts


def _refuse(name: str, text: str, why: str) -> NoReturn:
    shown = text if len(text) <= 200 else text[:200] + "…"
    raise ConfigurationError(f"{name}={shown!r}: {why}", variable=name)


RANK = "SLURM_PROCID"
NUM_TASKS = "SLURM_STEP_NUM_TASKS"
HOSTS = "SLURM_STEP_NODELIST"
TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_REMEDY = "Add --distribution=block to srun"
_LAUNCH = "Start every task by `srun`, inside of sbatch or salloc, or give TF_CONFIG"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's place: a host, and which of the tasks there it is, from 0."""

    host: str
    local_id: int


def read_number(environment: Mapping[str, str], name: str) -> int:
    """Read a variable that Slurm sets to a number.

    Raises:
        ConfigurationError: It is missing or no number; says what to do.
    """
    return _number(read_text(environment, name), name)


def read_text(environment: Mapping[str, str], name: str) -> str:
    """Read a variable that Slurm sets.

    Raises:
        ConfigurationError: It is missing; says what to do.
    """
    text = environment.get(name, "").strip()
    if not text:
        raise ConfigurationError(
            f"{name} is not set: this process is no task of a Slurm job step. {_LAUNCH}",
            variable=name,
        )
    return text


def _number(text: str, name: str) -> int:
    number = parse_number(text, MAX_TASK_INDEX)
    if number is None:
        raise ConfigurationError(
            f"{name}={text!r:.200} is no number up to {MAX_TASK_INDEX}", variable=name
        )
    return number


def tasks_by_host(
    environment: Mapping[str, str], tasks_per_node: int | Mapping[str, int] | None = None
) -> dict[str, int]:
    """Count the tasks on each host, in the order of the hosts.

    Args:
        environment: Environment variables of a task of the step.
        tasks_per_node: Number of tasks of every node, or by host name; None: Slurm's numbers.

    Raises:
        ConfigurationError: A variable is missing or malformed, or the lists do not fit.
    """
    if isinstance(tasks_per_node, Mapping):
        counts = _in_order(tasks_per_node, environment)
    else:
        hosts = _hosts(environment)
        if tasks_per_node is None:
            counts_by_node = expand_counts(read_text(environment, TASKS_PER_NODE), TASKS_PER_NODE)
        else:
            counts_by_node = [tasks_per_node] * len(hosts)
        if len(counts_by_node) != len(hosts):
            raise ConfigurationError(
                f"{HOSTS} has {counted(len(hosts), 'host')} ({', '.join(hosts[:8])}), "
                f"{TASKS_PER_NODE} is of {counted(len(counts_by_node), 'node')}",
                variable=TASKS_PER_NODE,
            )
        counts = dict(zip(hosts, counts_by_node, strict=True))
    if not counts:
        raise ConfigurationError("tasks_per_node has no host")
    for host, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigurationError(
                f"tasks_per_node: {count!r} tasks on {host!r}; at least one is needed", host=host
            )
    return counts


def _hosts(environment: Mapping[str, str]) -> list[str]:
    hosts = expand_host_list(read_text(environment, HOSTS), HOSTS)
    repeated = next((host for host in hosts if hosts.count(host) > 1), None)
    if repeated is not None:
        raise ConfigurationError(f"{HOSTS} has the host {repeated!r} twice", variable=HOSTS)
    return hosts


def _in_order(counts: Mapping[str, int], environment: Mapping[str, str]) -> dict[str, int]:
    """Bring given tasks by host into Slurm's order of the hosts where Slurm says one."""
    if not environment.get(HOSTS, "").strip():
        return dict(counts)
    hosts = _hosts(environment)
    unknown = sorted(set(counts) - set(hosts))
    if unknown:
        raise ConfigurationError(
            f"tasks_per_node has the host {unknown[0]!r}, {HOSTS} has {', '.join(hosts[:8])}",
            host=unknown[0],
        )
    return {host: counts[host] for host in hosts if host in counts}


def places_of_ranks(tasks: Mapping[str, int], distribution: str = "") -> list[RankPlace]:
    """Find the place where each rank runs, by rank.

    Args:
        tasks: Tasks on each host, in the order of the hosts.
        distribution: ``SLURM_DISTRIBUTION``, of which the first word counts; empty: block.

    Raises:
        ConfigurationError: It is another; ranks of ``plane`` and ``arbitrary`` do not follow from
            these variables.
    """
    kind = re.split("[:,=]", distribution.strip().lower())[0]
    if kind not in ("", "*", "block", "cyclic"):
        raise ConfigurationError(
            f"SLURM_DISTRIBUTION={distribution!r}: only the places of block and cyclic "
            f"distributions are known. {_REMEDY}",
            distribution=distribution,
        )
    if kind != "cyclic":
        return [RankPlace(host, local) for host, count in tasks.items() for local in range(count)]
    most = max(tasks.values(), default=0)
    return [
        RankPlace(host, local)
        for local in range(most)
        for host, count in tasks.items()
        if local < count
    ]


def check_place(places: Sequence[RankPlace], environment: Mapping[str, str]) -> None:
    """Compare where a rank should be with where Slurm says it is.

    Args:
        places: Places by rank.
        environment: Environment variables of the rank; those that are not set are not compared.

    Raises:
        ConfigurationError: The rank is elsewhere, or there are more or fewer ranks.
    """
    rank = read_number(environment, RANK)
    if rank >= len(places):
        raise ConfigurationError(
            f"{RANK} is {rank}, but the hosts have {counted(len(places), 'task')} (ranks 0 to "
            f"{len(places) - 1}); check tasks_per_node",
            rank=rank,
            tasks=len(places),
        )
    place, host = places[rank], environment.get("SLURMD_NODENAME", "")
    local = environment.get("SLURM_LOCALID", "")
    hosts = {other.host for other in places}
    elsewhere = host in hosts and host != place.host
    if elsewhere or parse_number(local, MAX_TASK_INDEX) not in (None, place.local_id):
        raise ConfigurationError(
            f"rank {rank} should be task {place.local_id} on {place.host}, but Slurm runs it as "
            f"task {local or '?'} on {host or '?'}: "
            f"tasks_per_node is wrong, or Slurm distributes tasks otherwise. {_REMEDY}",
            rank=rank,
        )


def gpus_of_place(place: RankPlace, visible: Sequence[str], gpus_per_task: int) -> list[str]:
    """Choose the GPUs of one task: those of the tasks before it on its host come first.

    Args:
        place: Place of the task.
        visible: GPUs of the job on the host, as ``CUDA_VISIBLE_DEVICES`` names them.
        gpus_per_task: Number of GPUs of each task.
    """
    first = place.local_id * gpus_per_task
    return list(visible[first : first + gpus_per_task])


# -- SlurmClusterResolver: the tasks of a Slurm job step as a cluster --------------------------

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
