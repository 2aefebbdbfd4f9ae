"""A Slurm job step as a cluster: which rank runs where, in which job, with which GPUs.

Pure: what ``srun`` puts into a task's environment arrives as an argument.

Ranks are placed as Slurm places them: node after node in the order of ``SLURM_STEP_NODELIST``
(``--distribution=block``, its default where nodes have several tasks), or dealt out in turn
(``cyclic``). TensorFlow's resolver sorts host names as strings instead, and so takes n10 for rank 1
of ``n[1-12]``, where Slurm has n2. A rank compares its place with ``SLURMD_NODENAME`` and
``SLURM_LOCALID``, so that another distribution is an error and not a wrong cluster.

Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES" and ``--distribution``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.showing import counted
from ...core.task import MAX_TASK_INDEX
from .host_list import expand_counts, expand_host_list

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
