"""ClusterSpec: the addresses of a cluster's tasks, by job and index; and what the jobs are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from ..core.errors import ConfigurationError
from ..core.task import MAX_TASK_INDEX, TaskId
from ..core.terminal import Shown

# -- ClusterSpec: the addresses of a cluster's tasks, by job and index -------------------------


JobTasks = Sequence[str] | Mapping[int, str] | Mapping[str, str]


class ClusterSpec(Shown):
    """Jobs and their tasks' addresses, as ``tf.train.ClusterSpec``.

    A job is a list of addresses, or a mapping from index to address ("sparse": not every task
    need be known). JSON's string keys count as integers.

    ::

        ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {1: "c:2222"}})
    """

    def __init__(self, cluster: Union[Mapping[str, JobTasks], "ClusterSpec"]) -> None:
        """Copy a cluster.

        Raises:
            TypeError: A container, index or address of the wrong type.
            ValueError: A negative index, or one that no cluster has.
        """
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, Mapping):
            raise TypeError(
                "`cluster` must be a dictionary mapping job names to lists or dictionaries of "
                f"addresses, or a ClusterSpec; got {type(cluster).__name__}"
            )
        self._jobs: dict[str, dict[int, str]] = {}
        for job, tasks in cluster.items():
            if not isinstance(job, str):
                raise TypeError(f"job names must be strings, got {job!r}")
            self._jobs[job] = _tasks_of(job, tasks)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Copy the cluster: job → list of addresses, or index → address where indices are
        missing.
        """
        result: dict[str, list[str] | dict[int, str]] = {}
        for job, tasks in self._jobs.items():
            dense = bool(tasks) and max(tasks) + 1 == len(tasks)
            result[job] = [tasks[i] for i in range(len(tasks))] if dense else dict(tasks)
        return result

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Count the known tasks of a job."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """List the indices of a job's tasks, ascending."""
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Find the address of one task."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """List the addresses of a job by index; None where one is not known."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def tasks(self) -> Iterator[TaskId]:
        """Yield every known task, jobs in their order, indices ascending."""
        for job in self._jobs:
            for index in self.task_indices(job):
                yield TaskId(job, index)

    def _job(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ValueError(f"No such job in cluster: {job_name!r}")
        return self._jobs[job_name]

    def _shown(self) -> Mapping[str, Any]:
        return self.as_dict()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(repr(sorted((job, sorted(tasks.items())) for job, tasks in self._jobs.items())))

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(sorted(self.as_dict().items()))!r})"


def _tasks_of(job: str, tasks: object) -> dict[int, str]:
    pairs: list[tuple[object, object]]
    if isinstance(tasks, Mapping):
        pairs = list(tasks.items())
    elif isinstance(tasks, list | tuple):
        pairs = list(enumerate(tasks))
    else:
        raise TypeError(
            f"the tasks of job {job!r} must be a list or a dictionary, got {type(tasks).__name__}"
        )
    result: dict[int, str] = {}
    for key, address in pairs:
        # JSON objects have string keys.
        number = int(key) if isinstance(key, str) and re.fullmatch(r"-?[0-9]{1,18}", key) else key
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"task indices of job {job!r} must be integers, got {key!r:.200}")
        if number > MAX_TASK_INDEX:
            raise ValueError(
                f"task indices of job {job!r} must be at most {MAX_TASK_INDEX}, got {number!r:.200}"
            )
        if number < 0:
            raise ValueError(f"task indices of job {job!r} must not be negative, got {number}")
        if not isinstance(address, str):
            raise TypeError(
                f"address of task {number} of job {job!r} must be a string: {address!r}"
            )
        result[number] = address
    return result


def counted(spec: ClusterSpec) -> dict[str, int]:
    """Count the tasks of each job of a cluster."""
    return {job: len(tasks) for job, tasks in spec.as_dict().items()}


# -- The task types, and which task is the chief -----------------------------------------------
# Rules of TensorFlow's multi-worker helpers: at most one chief; without one, worker 0 is the
# chief; ``master`` is an old name of ``chief``; the evaluator is not part of the training cluster.

CHIEF = "chief"
WORKER = "worker"
PS = "ps"
EVALUATOR = "evaluator"
TASK_TYPES = (CHIEF, WORKER, PS, EVALUATOR)


def canonical_type(task_type: str) -> str:
    """Replace ``master`` by ``chief``."""
    return CHIEF if task_type == "master" else task_type


def canonical_spec(spec: ClusterSpec) -> ClusterSpec:
    """Rename ``master`` in a spec.

    Raises:
        ConfigurationError: Both names are there, a job is unknown, or there are several chiefs.
    """
    jobs = spec.as_dict()
    if CHIEF in jobs and "master" in jobs:
        raise ConfigurationError(
            "the cluster has both 'chief' and 'master', which is an old name of chief; keep one"
        )
    renamed = {canonical_type(job): tasks for job, tasks in jobs.items()}
    unknown = sorted(set(renamed) - set(TASK_TYPES))
    if unknown:
        raise ConfigurationError(
            f"the cluster has a job {unknown[0]!r}; jobs are {', '.join(TASK_TYPES)}",
            job=unknown[0],
        )
    for single in (CHIEF, EVALUATOR):
        if len(renamed.get(single, ())) > 1:
            raise ConfigurationError(
                f"the cluster has {len(renamed[single])} tasks of job {single!r}; at most one is "
                "allowed"
            )
    return ClusterSpec(renamed)


def training_spec(spec: ClusterSpec) -> ClusterSpec:
    """Drop the evaluator from a spec, to which no task connects."""
    return ClusterSpec({job: tasks for job, tasks in spec.as_dict().items() if job != EVALUATOR})


def chief_of(spec: ClusterSpec) -> TaskId:
    """Find the chief, or worker 0 if the spec has none."""
    if CHIEF in spec.jobs and spec.num_tasks(CHIEF):
        return TaskId(CHIEF, spec.task_indices(CHIEF)[0])
    return TaskId(WORKER, 0)


def workers_of(spec: ClusterSpec) -> list[TaskId]:
    """List the tasks that train: chief and workers."""
    return [task for task in spec.tasks() if task.type in (CHIEF, WORKER)]


def ps_of(spec: ClusterSpec) -> list[TaskId]:
    """List the parameter servers, by index."""
    return [task for task in spec.tasks() if task.type == PS]
