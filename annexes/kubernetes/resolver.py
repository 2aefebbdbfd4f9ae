"""KubernetesClusterResolver: the pods of a namespace as a cluster."""

import enum
import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from ...cluster.resolvers.resolver import ClusterResolver, natural
from ...cluster.spec import EVALUATOR, TASK_TYPES, ClusterSpec, canonical_type
from ...core.clock import Clock, SystemClock
from ...core.errors import AccessError, ConfigurationError, JoinTimeoutError, PeerLostError
from ...core.outside_text import parse_number
from ...core.process.waiting import WaitLog
from ...core.settings import read_environment
from ...core.task import TaskId
from .api import KubernetesApi
from .pods import COMPLETION, INDEX_LABELS, JOBSET_JOB, Pod, read_pod
from .refusals import account_of, grant
from .requests import kubeconfig_client, own_namespace, pod_client

# -- Pods as a cluster: which pod is which task, and which tasks have none that runs ------------
# Pure: a decision about one listing. Indices do not depend on which pods run at the moment: they
# come from the labels that controllers give, or from ordinals in names.

Addresses = Literal["auto", "ip", "name"]
_MOST = 65_536  # an index above is none
_NAMED = 3  # pods that ended, as a reason
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
    more = f" and {len(ended) - _NAMED} more" if len(ended) > _NAMED else ""
    return "; ".join(["there is no pod", *ended[-_NAMED:]]) + more


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


_LOOK_S = 1.0
_SHOWN = 8  # pods in an error
_MOST_PODS = 10_000


class KubernetesExecutableLocation(enum.Enum):
    """The program's place, which says how it finds the Kubernetes API. As TensorFlow's.

    ``WITHIN_CLUSTER``: in a pod, whose service account is used. ``OFF_CLUSTER``: elsewhere, by the
    current context of the kubeconfig.
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(ClusterResolver):
    """A resolver like ``tf.distribute.cluster_resolver.KubernetesClusterResolver``, for pods of one
    namespace.

    ::

        KubernetesClusterResolver(
            {"ps": ["app=mnist,role=ps"], "worker": ["app=mnist,role=worker"]},
            tf_server_port=2222, replicas={"ps": 2, "worker": 4},
        )
        KubernetesClusterResolver(selector="jobset.sigs.k8s.io/jobset-name=mnist")

    Where TensorFlow's takes the address of the node, this takes that of the pod, or its name in
    DNS; where it lists all namespaces, one; where it raises for the first pod that does not run,
    this waits, and says for which and why. Indices come from labels, else from the ordinals of
    names, which are compared as numbers. In a pod of the cluster :attr:`task_type` and
    :attr:`task_id` are known; elsewhere they are None until they are set.

    Args:
        job_to_label_mapping: Job → label selectors; None: ``{"worker": ["job-name=tensorflow"]}``.
        tf_server_port: Port of every task.
        rpc_layer: Protocol in front of addresses.
        override_client: A ``CoreV1Api`` of the official client, with its own credentials.
        executable_location: Whether this program runs in a pod.
        selector: Instead of the mapping: one selector for all pods of the job, whose labels say
            their types.
        replicas: Tasks of each job that must run; None: those that are there, without a gap.
        namespace: Namespace of the pods; None: this pod's, or that of the kubeconfig's context.
        addresses: ``"ip"``, ``"name"`` (in DNS), or ``"auto"``: the name of pods that have one.
        pod_name: Name of this pod; None: ``POD_NAME``, or ``HOSTNAME``.
        timeout_s: Longest time that :meth:`cluster_spec` waits for pods. Unit: seconds.
        clock: Clock, replaced in tests.

    Raises:
        ImportError: The Kubernetes client is not installed.
        ConfigurationError: The arguments do not fit, or the Kubernetes API is not known.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
        *,
        selector: str | None = None,
        replicas: Mapping[str, int] | None = None,
        namespace: str | None = None,
        addresses: Addresses = "auto",
        pod_name: str | None = None,
        timeout_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(executable_location, KubernetesExecutableLocation):
            raise ConfigurationError(
                f"executable_location must be a KubernetesExecutableLocation, got "
                f"{executable_location!r}"
            )
        if selector and job_to_label_mapping:
            raise ConfigurationError("give job_to_label_mapping or selector, not both")
        if addresses not in ("auto", "ip", "name"):
            raise ConfigurationError(f"addresses must be auto, ip or name, got {addresses!r}")
        self._mapping = _checked(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._selector = selector
        self._port = tf_server_port
        self._rpc_layer = rpc_layer
        self._replicas = dict(replicas) if replicas is not None else None
        self._addresses: Addresses = addresses
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._within = executable_location is KubernetesExecutableLocation.WITHIN_CLUSTER
        if override_client is None:
            self._client, found = _find_client(within=self._within)
        else:
            self._client, found = override_client, own_namespace()
        self._namespace = namespace or found
        self._pod_name = pod_name if pod_name is not None else self._own_name()
        self._own: TaskId | None = None
        self._asked = False
        self._fixed: PodCluster | None = None  # of a snapshot

    def _own_name(self) -> str:
        if not self._within:
            return ""
        return read_environment("POD_NAME") or read_environment("HOSTNAME")

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster, once all of its pods run.

        Raises:
            JoinTimeoutError: Some do not in time; it says which and why.
            ConfigurationError: Pods may not be listed, or do not make a cluster.
        """
        return self._settled().spec

    def snapshot(self) -> "KubernetesClusterResolver":
        """Make a resolver of the pods that run now; waits for them."""
        fixed = copy(self)
        fixed._fixed = self._settled()
        fixed._own, fixed._asked = self._own, True
        return fixed

    def _settled(self) -> PodCluster:
        """Wait until every task has a pod that runs, and return the listing."""
        if self._fixed is not None:
            return self._fixed
        ends, never = self._clock.now() + self._timeout_s, threading.Event()
        waits = WaitLog(self, limit_s=self._timeout_s, limit="timeout_s", clock=self._clock)
        while True:
            whom, why, found = self._look()
            if found is not None:
                waits.done()
                self._own, self._asked = found.task_of(self._pod_name), True
                return found
            if self._clock.now() >= ends:
                raise JoinTimeoutError(
                    f"{self}: after {self._timeout_s:g} s (timeout_s) still without {whom}: {why}",
                    namespace=self._namespace,
                )
            waits.tick(whom, why)
            self._clock.wait(never, _LOOK_S)

    def _look(self) -> tuple[str, str, PodCluster | None]:
        """List the pods; returns (tasks to wait for, why, the cluster if there are none)."""
        try:
            found = assemble(
                self._listed(),
                port=self._port,
                replicas=self._replicas,
                addresses=self._addresses,
            )
        except PeerLostError as error:
            return "the list of pods", error.message, None
        if not found.waiting and found.spec:
            return "", "", found
        waiting = sorted(found.waiting.items())
        whom = ", ".join(task.short for task, _ in waiting[:_SHOWN]) or "pods"
        why = "; ".join(f"{task.short}: {reason}" for task, reason in waiting[:_SHOWN])
        rest = f"; and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
        return whom, (why or f"the selector {self._selector!r} selects none") + rest, None

    def _listed(self) -> Mapping[str, Sequence[Sequence[Any]]]:
        client = getattr(self._client, "api_client", self._client)
        api = KubernetesApi(client, self._namespace, is_task=True)
        if self._selector is not None:
            return by_role(_pods(api, self._selector))
        return {
            job: [_pods(api, selector) for selector in selectors]
            for job, selectors in self._mapping.items()
        }

    def _found(self, name: str) -> Any:
        if name == "rpc_layer" or not self._pod_name:
            return None
        if not self._asked:
            self._settled()
        if self._own is None:
            return None
        return self._own.type if name == "task_type" else self._own.index

    @property
    def source(self) -> str:
        """``"Kubernetes"``."""
        return "Kubernetes"

    @property
    def sources(self) -> dict[str, str]:
        """The namespace, and this pod."""
        return {
            "cluster": f"pods of namespace {self._namespace}",
            "task": f"pod {self._pod_name}" if self._pod_name else "the program",
        }

    @property
    def from_launcher(self) -> bool:
        """Whether the launcher has given the task: in a pod it has."""
        return self._within

    def __str__(self) -> str:
        return f"KubernetesClusterResolver in namespace {self._namespace!r}"


def _checked(mapping: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    for job, selectors in mapping.items():
        if isinstance(selectors, str) or not all(isinstance(text, str) for text in selectors):
            raise ConfigurationError(
                f"job_to_label_mapping: job {job!r} needs a list of label selectors, e.g. "
                f"['job-name=mnist'], got {selectors!r}"
            )
    return {job: list(selectors) for job, selectors in mapping.items()}


def _find_client(*, within: bool) -> tuple[Any, str]:
    """Make (the official ``ApiClient``, the namespace of its configuration)."""
    if not within:
        if (found := kubeconfig_client()) is None:
            raise ConfigurationError(
                "the Kubernetes API is not known: there is no kubeconfig; check KUBECONFIG, or "
                "~/.kube/config"
            )
        return found
    try:
        return pod_client(), own_namespace()
    except AccessError as error:
        raise ConfigurationError(
            f"the Kubernetes API is not known: {error.message}; in a pod it needs a service "
            "account (automountServiceAccountToken: true), elsewhere "
            "executable_location=KubernetesExecutableLocation.OFF_CLUSTER"
        ) from error


def _pods(api: KubernetesApi, selector: str) -> list[Pod]:
    """List the pods that a label selector selects.

    Raises:
        AccessError: They may not be listed.
        ConfigurationError: The selector is malformed, or selects too many.
        PeerLostError: The API did not answer, or asks to come back later: try again.
    """
    try:
        return [read_pod(each) for each in api.list_all("Pod", selector, _MOST_PODS).items]
    except AccessError as error:
        account = account_of(error.message)
        if not account:
            raise
        where = api.namespace
        raise AccessError(
            f"{error.message}. A person who may grant it: `kubectl -n {where} create role "
            "list-pods --verb=list --resource=pods`, and bind it: "
            f"`{grant(account, 'list-pods', where)}`",
            namespace=where,
        ) from error
