"""Lists pods: the one module that knows the ``kubernetes`` package, which is an extra.

It needs one permission, ``list`` on ``pods`` of one namespace. The package is loaded when a client
is made, and its global configuration is left alone.
"""

import enum
import json
from pathlib import Path
from typing import Any

from ...cluster.resolvers.pod_access import account_of, grant
from ...cluster.resolvers.pods import Pod, read_pod
from ...core.errors import ConfigurationError, PeerLostError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PAGE = 500
_MOST_PAGES = 20
_RETRIED = (408, 410, 429)  # and all from 500 on


class KubernetesExecutableLocation(enum.Enum):
    """Where the program runs, which says how it finds the Kubernetes API. As TensorFlow's.

    ``WITHIN_CLUSTER``: in a pod, whose service account is used. ``OFF_CLUSTER``: elsewhere, by the
    current context of the kubeconfig.
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


def make_client(location: KubernetesExecutableLocation) -> tuple[Any, str]:
    """Make a client; returns (a ``CoreV1Api``, the namespace of its configuration).

    Raises:
        ImportError: The package is not installed; says how.
        ConfigurationError: There is no service account or no kubeconfig that can be read.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the Kubernetes client: pip install 'ropewalk[k8s]'"
        ) from error
    settings = client.Configuration()
    settings.retries = 0  # who lists waits and tries again, and says so
    within = location is KubernetesExecutableLocation.WITHIN_CLUSTER
    try:
        if within:
            config.load_incluster_config(client_configuration=settings)
            namespace = own_namespace()
        else:
            config.load_kube_config(client_configuration=settings)
            context = config.list_kube_config_contexts()[1] or {}
            namespace = context.get("context", {}).get("namespace") or "default"
    except config.ConfigException as error:
        remedy = (
            "in a pod it needs a service account (automountServiceAccountToken: true), elsewhere "
            "executable_location=KubernetesExecutableLocation.OFF_CLUSTER"
            if within
            else "check KUBECONFIG, or ~/.kube/config"
        )
        raise ConfigurationError(f"the Kubernetes API is not known: {error}; {remedy}") from error
    return client.CoreV1Api(client.ApiClient(settings)), namespace


def own_namespace() -> str:
    """Read the namespace of this pod's service account; ``default`` where there is none."""
    try:
        return (_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


class PodLister:
    """Lists the pods of a namespace.

    Args:
        client: A ``CoreV1Api``; its ``list_namespaced_pod`` is asked for the JSON.
        namespace: Namespace of the pods.
        timeout_s: Timeout of one request. Unit: seconds.
    """

    def __init__(self, client: Any, namespace: str, timeout_s: float = 10.0) -> None:
        self._client = client
        self._namespace = namespace
        self._timeout_s = timeout_s

    def list(self, selector: str) -> list[Pod]:
        """List the pods that a label selector selects.

        Raises:
            ConfigurationError: It may not, or the selector is malformed or selects too many.
            PeerLostError: The API did not answer, or asks to come back later: try again.
        """
        pods: list[Pod] = []
        more = ""
        for _ in range(_MOST_PAGES):
            page = self._page(selector, more)
            pods += [read_pod(item) for item in page.get("items") or ()]
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return pods
        raise ConfigurationError(
            f"the selector {selector!r} selects more than {_PAGE * _MOST_PAGES} pods in namespace "
            f"{self._namespace!r}; give one that selects this job's alone",
            selector=selector,
        )

    def _page(self, selector: str, more: str) -> Any:
        arguments: dict[str, Any] = {"label_selector": selector, "limit": _PAGE}
        if more:
            arguments["_continue"] = more
        try:
            answer = self._client.list_namespaced_pod(
                self._namespace,
                _request_timeout=self._timeout_s,
                _preload_content=False,  # the JSON as it is: see cluster/resolvers/pods.py
                **arguments,
            )
            return json.loads(answer.data)
        except Exception as error:
            raise self._explained(error, selector) from error

    def _explained(self, error: Exception, selector: str) -> Exception:
        """Convert the client's error to ours; one that is no answer of the API and no lost
        connection stays as it is.
        """
        status, where = getattr(error, "status", None), f"namespace {self._namespace!r}"
        if isinstance(status, int):
            said = f"{status} {getattr(error, 'reason', '')}".strip()
            if status in _RETRIED or status >= 500 or status == 0:
                return PeerLostError(f"the Kubernetes API answers {said}", status=status)
            if status == 403:
                body = getattr(error, "body", "") or ""
                words = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
                # The service account of a pod whose answer does not name it, e.g. a proxy's.
                account = account_of(words) or f"system:serviceaccount:{self._namespace}:default"
                return ConfigurationError(
                    f"{account} may not list pods in {where}: {said}. A person who may grant it: "
                    f"`kubectl -n {self._namespace} create role list-pods --verb=list "
                    f"--resource=pods`, and bind it: `"
                    f"{grant(account, 'list-pods', self._namespace)}`",
                    namespace=self._namespace,
                )
            if status == 401:
                return ConfigurationError(
                    f"the Kubernetes API does not accept these credentials: {said}; for a "
                    "kubeconfig log in again, in a pod check its service account"
                )
            return ConfigurationError(
                f"the Kubernetes API refuses to list pods in {where} with the selector "
                f"{selector!r}: {said}",
                selector=selector,
            )
        # urllib3 is the client's own business: its errors are known by where they are made.
        lost = isinstance(error, OSError | json.JSONDecodeError)
        if lost or type(error).__module__.startswith("urllib3."):
            return PeerLostError(f"the Kubernetes API does not answer: {error}")
        return error
