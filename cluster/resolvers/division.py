"""Addresses divided among jobs, where a launcher starts equal processes and numbers them."""

from collections.abc import Mapping, Sequence

from ...core.errors import ConfigurationError
from ...core.task import TaskId
from ..roles import WORKER
from ..spec import ClusterSpec


def jobs_or_workers(jobs: Mapping[str, int] | None, total: int, launcher: str) -> dict[str, int]:
    """Count the tasks of each job, by the names of the jobs: the order in which they get addresses.

    Args:
        jobs: Tasks of each job, from the user; None: all are workers.
        total: Processes there are.
        launcher: Launcher that started them, for the error.

    Raises:
        ConfigurationError: The jobs have more or fewer tasks than there are processes.
    """
    if jobs is None:
        return {WORKER: total}
    for job, count in jobs.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigurationError(f"jobs: job {job!r} has {count!r} tasks; a number is needed")
    wanted = sum(jobs.values())
    if wanted != total:
        shown = ", ".join(f"{job}={count}" for job, count in sorted(jobs.items())) or "none"
        raise ConfigurationError(
            f"the jobs ({shown}) have {wanted} tasks, but {launcher} runs {total}; start "
            f"{wanted} of them, or change the jobs",
            tasks=total,
            wanted=wanted,
        )
    return {job: count for job, count in sorted(jobs.items()) if count}


def divide(addresses: Sequence[str], jobs: Mapping[str, int]) -> ClusterSpec:
    """Make a cluster of the addresses: the first job has the first of them, and so on.

    Args:
        addresses: Addresses of the processes, by rank.
        jobs: Tasks per job, from :func:`jobs_or_workers`.
    """
    rest = list(addresses)
    cluster: dict[str, list[str]] = {}
    for job, count in jobs.items():
        cluster[job], rest = rest[:count], rest[count:]
    return ClusterSpec(cluster)


def task_of_rank(rank: int, jobs: Mapping[str, int]) -> TaskId:
    """Find the task that has an address.

    Args:
        rank: Position of the address; below the number of tasks.
        jobs: Tasks per job, from :func:`jobs_or_workers`.
    """
    first = 0
    for job, count in jobs.items():
        if rank < first + count:
            return TaskId(job, rank - first)
        first += count
    raise IndexError(rank)
