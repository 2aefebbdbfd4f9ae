"""The Kubernetes API: objects of one namespace, watches of them, and logs."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from ...core.clock import Clock, SystemClock
from ...core.errors import AccessError, ConfigurationError
from .refusals import Refusal, RefusedRequestError, Where, error_of, missing_namespace
from .requests import (
    ACCOUNT_FOLDER,
    ByteChunks,
    Requests,
    is_in_pod,
    kubeconfig_client,
    own_namespace,
    pod_client,
)

Json = dict[str, Any]
_Answer = TypeVar("_Answer")

FIELD_MANAGER = "ropewalk"
"""Manager of all fields that commands write: what others own is then a conflict."""

_ANSWER_S, _TASKS_ANSWER_S = 30.0, 3.0
_QUIET_S = 300.0  # a task that says nothing is no dead connection: asked again after that
_LATE_S = 10.0  # after which a watch that the server should have ended counts as dead
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_PLACES = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Namespace": ("api/v1", "namespaces"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "PodGroup": ("apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "PodGroup.volcano.sh": ("apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "TrainJob": ("apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "TrainingRuntime": ("apis/trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses"),
}
KINDS = frozenset(_PLACES)
"""Kinds that this package can send and list."""

_OF_THE_CLUSTER = ("Namespace", "StorageClass")


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Write the path of an object, or of all objects of a kind."""
    version, plural = _PLACES[kind]
    inside = "" if kind in _OF_THE_CLUSTER else f"/namespaces/{namespace}"
    path = f"/{version}{inside}/{plural}"
    return f"{path}/{name}" if name else path


def kind_of(document: dict[str, Any]) -> str:
    """Find the kind by which this package knows an object: two schedulers call theirs PodGroup."""
    is_volcano = str(document["apiVersion"]).startswith("scheduling.volcano.sh/")
    return f"{document['kind']}.volcano.sh" if is_volcano else str(document["kind"])


def in_namespace(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Put an object into a namespace, with the service accounts that it names.

    The path's namespace and the object's must be one; ``--namespace`` wins over the job file.
    """
    body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    if body["kind"] == "RoleBinding":
        body["subjects"] = [
            {**each, "namespace": namespace} if each["kind"] == "ServiceAccount" else each
            for each in body["subjects"]
        ]
    return body


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind as they were at one version."""

    items: list[dict[str, Any]]
    version: str


def connect(context: str = "", namespace: str = "") -> "KubernetesApi":
    """Connect to the API of a context of the kubeconfig; inside a pod without one, of its cluster.

    Raises:
        MissingExtraError: The package is not installed.
        ConfigurationError: Nothing says where the API is.
    """
    if (found := kubeconfig_client(context)) is not None:
        api_client, named = found
    elif is_in_pod():
        api_client, named = pod_client(), own_namespace()
    else:
        raise ConfigurationError(
            "the Kubernetes API is not known: there is no kubeconfig, and this is no pod; check "
            "KUBECONFIG, or ~/.kube/config, and that `kubectl get pods` works"
        )
    return KubernetesApi(api_client, namespace or named, context=context)


def connect_task(manager: str = FIELD_MANAGER, folder: Path = ACCOUNT_FOLDER) -> "KubernetesApi":
    """Connect to the API as the service account of this pod: for a task of a job.

    Args:
        manager: Field manager of what it writes.
        folder: Folder of the account.

    Raises:
        MissingExtraError: The package is not installed.
        AccessError: There is no account.
    """
    return KubernetesApi(pod_client(folder), own_namespace(folder), manager=manager, is_task=True)


class KubernetesApi:
    """Objects of one namespace. Thread-safe, as the client is.

    Args:
        api_client: The official ``ApiClient``.
        namespace: The namespace.
        clock: Clock for waiting between tries.
        context: The context of the kubeconfig that was asked for; empty: the current one.
        manager: Field manager of what is written.
        is_task: Whether a task of a job asks: it is answered in a few seconds, or tries again
            itself.
        page: Objects that are asked for at once.

    Attributes:
        namespace: The namespace.
        where: Cluster and namespace, for messages.
        clock: Clock for waiting between tries.
    """

    def __init__(
        self,
        api_client: Any,
        namespace: str,
        clock: Clock | None = None,
        *,
        context: str = "",
        manager: str = FIELD_MANAGER,
        is_task: bool = False,
        page: int = 500,
    ) -> None:
        self.namespace = namespace
        self._page = page
        host = str(api_client.configuration.host or "")
        self.where = Where(namespace, host, context, is_task=is_task)
        self.clock = clock or SystemClock()
        self._manager = manager
        answer_s = _TASKS_ANSWER_S if is_task else _ANSWER_S
        self._requests = Requests(api_client, self.clock, answer_s, tries_again=not is_task)

    def warn_by(self, told: Callable[[str], None]) -> None:
        """Have a function called with what the API server warns of, each once."""
        self._requests.on_warning = told

    def now(self) -> datetime:
        """Read the time of day, by which ages are told."""
        return datetime.now(UTC)

    # -- objects -----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Json | None:
        """Get an object; None if there is none."""
        return self._found(f"get {kind} {name}", "get", kind, name)

    def exists(self, kind: str, name: str) -> bool:
        """Return whether there is such an object. Its contents, a Secret's say, are not fetched."""
        headers = {"Accept": _METADATA}
        found = self._found(f"get {kind} {name}", "get", kind, name, header_params=headers)
        return found is not None

    def check_namespace(self) -> None:
        """Ask whether the namespace exists, where that may be asked.

        Raises:
            NotFoundError: It does not.
        """
        with contextlib.suppress(AccessError):
            if not self.exists("Namespace", self.namespace):
                raise missing_namespace(self.where)

    def try_apply(self, body: Json, *, force: bool = False) -> Refusal | None:
        """Have the API server check an object without changing anything; None: it accepts.

        Raises:
            PeerLostError: It does not answer.
            AccessError: It does not know the caller.
            NotFoundError: There is no such namespace.
        """
        try:
            self._apply(body, force=force, dry_run=True)
        except RefusedRequestError as error:
            refusal = error.refusal
            of_object = refusal.status in (400, 403, 404, 409, 422) or refusal.is_no_object
            if of_object and not refusal.is_missing_namespace:
                return refusal
            what = f"check {body['kind']} {body['metadata']['name']}"
            raise error_of(refusal, what, self.where) from error
        return None

    def apply(self, body: Json, *, force: bool = False, dry_run: bool = False) -> Json:
        """Apply an object server-side.

        Raises:
            IncompatibleError: Another manager owns a field (409), and ``force`` is off.
        """
        what = f"apply {body['kind']} {body['metadata']['name']}"
        return self._told(what, lambda: self._apply(body, force=force, dry_run=dry_run))

    def _apply(self, body: Json, *, force: bool, dry_run: bool) -> Json:
        try:
            return self._apply_once(body, force=force, dry_run=dry_run)
        except RefusedRequestError as error:
            if force or not error.refusal.is_conflict_with(self._manager):
                raise
        # What ``scale`` has patched: by this command, so nobody else's.
        return self._apply_once(body, force=True, dry_run=dry_run)

    def _apply_once(self, body: Json, *, force: bool, dry_run: bool) -> Json:
        body = in_namespace(body, self.namespace)
        return self._requests.json(
            "patch",
            path_of(kind_of(body), self.namespace, body["metadata"]["name"]),
            body,
            content_type="application/apply-patch+yaml",
            query_params=[("fieldValidation", "Strict")],
            field_manager=self._manager,
            force_conflicts="true" if force else None,
            dry_run="All" if dry_run else None,
        )

    def patch(self, kind: str, name: str, body: Json) -> Json:
        """Change fields of an object (a merge patch); ``NAME/scale``: how many pods it makes.

        Raises:
            NotFoundError: There is no such object.
        """
        path = path_of(kind, self.namespace, name)
        kept = {"content_type": "application/merge-patch+json", "field_manager": self._manager}
        return self._told(
            f"change {kind} {name}", lambda: self._requests.json("patch", path, body, **kept)
        )

    def create(self, kind: str, body: Json) -> Json:
        """Make an object, of which no other has the name."""
        path = path_of(kind, self.namespace)
        return self._told(f"create {kind}", lambda: self._requests.json("post", path, body))

    def delete(self, kind: str, name: str, *, dry_run: bool = False) -> bool:
        """Delete an object and what it made, or only ask whether that is allowed; False if there
        was none.
        """
        how = {"propagation_policy": "Background", "dry_run": "All" if dry_run else None}
        return self._found(f"delete {kind} {name}", "delete", kind, name, **how) is not None

    def list_all(self, kind: str, selector: str = "", most: int | None = None) -> Listing:
        """List all objects of a kind that a label selector selects.

        Raises:
            ConfigurationError: They are more than ``most``.
        """
        return self._told(f"list {kind}s", lambda: self._list(kind, selector, most))

    def _list(self, kind: str, selector: str, most: int | None) -> Listing:
        path, more, items = path_of(kind, self.namespace), "", list[Json]()
        while True:
            asked = {"label_selector": selector or None, "_continue": more or None}
            try:
                page = self._requests.json("get", path, limit=self._page, **asked)
            except RefusedRequestError as error:
                if error.refusal.is_gone and more:  # the pages have become too old
                    more, items = "", []
                    continue
                raise
            items += page.get("items") or []
            if most is not None and len(items) > most:
                raise ConfigurationError(
                    f"the selector {selector!r} selects more than {most} {kind}s in namespace "
                    f"{self.namespace!r}; give one that selects this job's alone",
                    selector=selector,
                )
            metadata = page.get("metadata") or {}
            more = str(metadata.get("continue") or "")
            if not more:
                return Listing(items, str(metadata.get("resourceVersion", "")))

    # -- streams -----------------------------------------------------------------------------

    def watch(self, kind: str, selector: str, version: str, timeout_s: int) -> Iterator[Json]:
        """Watch objects: events from ``version`` on; it ends after ``timeout_s``, or earlier.

        Raises:
            RefusedRequestError: There was no answer, or an event that is an error.
        """
        # The server ends it; a connection that died is noticed by the read timeout.
        return self._requests.watch(
            path_of(kind, self.namespace),
            timeout_s + _LATE_S,
            resource_version=version,
            label_selector=selector or None,
            allow_watch_bookmarks="true",
            timeout_seconds=timeout_s,
        )

    def log(
        self,
        pod: str,
        container: str,
        *,
        since: str = "",
        follow: bool = False,
        previous: bool = False,
        tail: int = -1,
    ) -> ByteChunks:
        """Read a container's log, in chunks, each line behind its time.

        Not by the client's own stream of a log, which knows no time to begin at, and drops a last
        line without an end.

        Args:
            pod: Name of the pod.
            container: Name of a container of the pod.
            since: RFC 3339; empty: from the beginning.
            follow: Go on until the container ends.
            previous: Read the log from before the container's last restart.
            tail: Number of lines at the end; -1: all.

        Raises:
            RefusedRequestError: There was no answer.
        """
        query = [("container", container), ("timestamps", "true")]
        query += [("sinceTime", since)] if since else []
        query += [("follow", "true")] if follow else []
        query += [("previous", "true")] if previous else []
        query += [("tailLines", str(tail))] if tail >= 0 else []
        path = path_of("Pod", self.namespace, f"{pod}/log")
        return self._requests.stream(path, _QUIET_S if follow else _ANSWER_S, query)

    def _found(self, what: str, method: str, kind: str, name: str, **params: Any) -> Json | None:
        """Send a request about an object; None: there is no such object."""
        try:
            path = path_of(kind, self.namespace, name)
            return self._requests.json(method, path, **params)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return None
            raise error_of(error.refusal, what, self.where) from error

    def _told(self, what: str, request: Callable[[], _Answer]) -> _Answer:
        try:
            return request()
        except RefusedRequestError as error:
            raise error_of(error.refusal, what, self.where) from error
