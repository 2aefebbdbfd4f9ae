"""The task types, and which task is the chief.

Rules of TensorFlow's multi-worker helpers: at most one chief; without one, worker 0 is the chief;
``master`` is an old name of ``chief``; the evaluator is not part of the training cluster.
"""

from ..core.errors import ConfigurationError
from ..core.task import TaskId
from .spec import ClusterSpec

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
