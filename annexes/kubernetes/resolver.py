"""KubernetesClusterResolver: the pods of a namespace as a cluster."""

import enum
import threading
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import ClusterSpec
from ...core.clock import Clock, SystemClock
from ...core.errors import AccessError, ConfigurationError, JoinTimeoutError, PeerLostError
from ...core.process.waiting import WaitLog
from ...core.settings import read_environment
from ...core.task import TaskId
from .client.api import KubernetesApi
from .client.refusals import account_of, grant
from .client.requests import kubeconfig_client, own_namespace, pod_client
from .pod_cluster import Addresses, PodCluster, assemble, by_role
from .pods import Pod, read_pod

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
