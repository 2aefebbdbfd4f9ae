"""Pods as a cluster: which pod is which task, and which tasks have none that runs.

Pure: a decision about one listing. Indices do not depend on which pods run at the moment: they come
from the labels that controllers give, or from ordinals in names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...cluster.resolvers.natural_order import natural
from ...cluster.roles import EVALUATOR, TASK_TYPES, canonical_type
from ...cluster.spec import ClusterSpec
from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.task import TaskId
from .pods import COMPLETION, INDEX_LABELS, JOBSET_JOB, Pod

Addresses = Literal["auto", "ip", "name"]
_MOST = 65_536  # an index above is none
_SHOWN = 3  # pods that ended, as a reason
_PREFERENCE = ("Running", "Pending", "Unknown", "Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class PodCluster:
    """The cluster of one listing of pods.

    Attributes:
        spec: Tasks whose pod runs.
        waiting: Tasks that are waited for → why.
        pods: The pod of each task that has one.
    """

    spec: ClusterSpec
    waiting: dict[TaskId, str] = field(default_factory=dict)
    pods: dict[TaskId, Pod] = field(default_factory=dict)

    def task_of(self, name: str) -> TaskId | None:
        """Find the task of the pod with this name or host name; None: no task has it."""
        for task, pod in self.pods.items():
            if name and name in (pod.name, pod.hostname):
                return task
        return None


def by_role(pods: Sequence[Pod]) -> dict[str, list[list[Pod]]]:
    """Group the pods of one selector by the task type that their labels say; others are left out.

    Raises:
        ConfigurationError: There are pods, and none says a task type.
    """
    jobs: dict[str, list[Pod]] = {}
    for pod in pods:
        if canonical_type(pod.role) in TASK_TYPES:
            jobs.setdefault(pod.role, []).append(pod)
    if pods and not jobs:
        shown = ", ".join(f"{pod.name} ({pod.role or 'no role'})" for pod in pods[:5])
        raise ConfigurationError(
            f"no pod of the selector says by a label that it is one of {', '.join(TASK_TYPES)}: "
            f"{shown}. Give job_to_label_mapping, with a selector for each job"
        )
    return {job: [selected] for job, selected in sorted(jobs.items())}


def assemble(
    listed: Mapping[str, Sequence[Sequence[Pod]]],
    *,
    port: int,
    replicas: Mapping[str, int] | None = None,
    addresses: Addresses = "auto",
) -> PodCluster:
    """Assemble the cluster of a listing.

    Args:
        listed: Job → for each of its selectors the pods it selects. The tasks of a selector follow
            those of the one before.
        port: Port of every task.
        replicas: Tasks of each job that must exist; None: those up to the highest existing index,
            and at least one.
        addresses: ``ip``: the pod's IP address. ``name``: its DNS name below its headless Service,
            which stays when a pod is replaced. ``auto``: its name if it has one.

    Raises:
        ConfigurationError: A pod is selected twice, or has no DNS name.
    """
    _check_once(listed)
    unknown = sorted(set(replicas or {}) - set(listed)) if listed else []
    waiting = {
        TaskId(job, index): "there is no pod"
        for job in unknown
        for index in range((replicas or {})[job])
    }
    cluster: dict[str, dict[int, str]] = {}
    pods: dict[TaskId, Pod] = {}
    for job, selectors in listed.items():
        tasks = _tasks(selectors)
        nobody = _why_nobody(selectors, tasks)
        wanted = max(tasks, default=0) + 1 if replicas is None else replicas.get(job, 0)
        for index in range(wanted):
            task, pod = TaskId(job, index), tasks.get(index)
            if pod is not None:
                pods[task] = pod
            if pod is not None and pod.runs:
                cluster.setdefault(job, {})[index] = f"{_host(pod, addresses)}:{port}"
            elif canonical_type(job) != EVALUATOR:  # nobody dials it
                waiting[task] = f"pod {pod.name} is {pod.state}" if pod else nobody
    return PodCluster(ClusterSpec(cluster), waiting, pods)


def _check_once(listed: Mapping[str, Sequence[Sequence[Pod]]]) -> None:
    owner: dict[str, str] = {}
    for job, selectors in listed.items():
        for number, pods in enumerate(selectors):
            for pod in pods:
                here = f"selector {number + 1} of job {job!r}"
                if owner.setdefault(pod.name, here) != here:
                    raise ConfigurationError(
                        f"pod {pod.name} is selected by {owner[pod.name]} and by {here}; every "
                        "task needs its own",
                        pod=pod.name,
                    )


def _tasks(selectors: Sequence[Sequence[Pod]]) -> dict[int, Pod | None]:
    """Find the pod of each index of a job; None where a selector selects none."""
    tasks: dict[int, Pod | None] = {}
    for pods in selectors:
        first = max(tasks, default=-1) + 1
        if not pods:
            tasks[first] = None
        for index, pod in _indexed(pods):
            before = tasks.get(first + index)
            if before is None or _rank(pod) < _rank(before):
                tasks[first + index] = pod
    return tasks


def _why_nobody(selectors: Sequence[Sequence[Pod]], tasks: Mapping[int, Pod | None]) -> str:
    """Say why a task has no pod: pods that ended and count for no task may say it."""
    counted = {pod.name for pod in tasks.values() if pod is not None}
    ended = [
        f"pod {pod.name} is {pod.state}"
        for pods in selectors
        for pod in pods
        if pod.name not in counted and pod.phase == "Failed"
    ]
    more = f" and {len(ended) - _SHOWN} more" if len(ended) > _SHOWN else ""
    return "; ".join(["there is no pod", *ended[-_SHOWN:]]) + more


def _indexed(pods: Sequence[Pod]) -> list[tuple[int, Pod]]:
    """Give pods their indices; if they do not all have one, they are numbered by name.

    Ordinals in names of pods without a controller are indices if they begin at 0: of tf-1, tf-2 and
    tf-10 none is missing.
    """
    indices = [pod.index for pod in pods]
    valid = [index for index in indices if index is not None and index < _MOST]
    if len(valid) < len(pods) or (min(valid, default=0) > 0 and all(map(_is_bare, pods))):
        # Also those that are gone would be numbered, and shift the others: a controller has put
        # another one in the place of each. Nobody has where there is none.
        alive = [
            pod
            for pod in pods
            if not pod.leaving and (pod.phase not in _PREFERENCE[3:] or _is_bare(pod))
        ]
        return list(enumerate(sorted(alive, key=lambda pod: natural(pod.name))))
    width = max(valid, default=0) + 1
    return [(_jobset_job(pod) * width + index, pod) for pod, index in zip(pods, valid, strict=True)]


def _is_bare(pod: Pod) -> bool:
    """Return whether nothing but its name says who it is, and nothing replaces it."""
    return not pod.owner and not any(name in pod.labels for name in INDEX_LABELS)


def _jobset_job(pod: Pod) -> int:
    """Find the number of the Job in its JobSet: each has pods from index 0."""
    label = pod.labels.get(JOBSET_JOB, "") if COMPLETION in pod.labels else ""
    return parse_number(label, _MOST - 1) or 0


def _rank(pod: Pod) -> tuple[bool, int, list[int]]:
    """Sort key of a pod; of two of one index the lower counts: alive before ended, then newer."""
    place = _PREFERENCE.index(pod.phase) if pod.phase in _PREFERENCE else len(_PREFERENCE)
    return pod.leaving, place, [-ord(letter) for letter in pod.created]


def _host(pod: Pod, addresses: Addresses) -> str:
    named = bool(pod.hostname and pod.subdomain)
    if addresses == "name" and not named:
        raise ConfigurationError(
            f"pod {pod.name} has no name in DNS: its template has no hostname and subdomain. Give "
            "addresses='ip', or a headless Service",
            pod=pod.name,
        )
    if named and addresses != "ip":
        return f"{pod.hostname}.{pod.subdomain}.{pod.namespace}.svc"
    return f"[{pod.ip}]" if ":" in pod.ip else pod.ip
