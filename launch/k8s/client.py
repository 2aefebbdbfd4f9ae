"""The Kubernetes API: objects of one namespace, watches of them, and logs."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from ...core.clock import Clock, SystemClock
from ...core.errors import AccessError
from .answers import ByteChunks, RefusedRequestError
from .explaining import error_of, missing_namespace
from .kinds import Listing, in_namespace, kind_of, path_of
from .names import FIELD_MANAGER
from .refusals import Refusal
from .requests import ANSWER_S, Requests, official_client
from .where import Where

Json = dict[str, Any]
_Answer = TypeVar("_Answer")

_LATE_S = 10.0  # after which a watch that the server should have ended counts as dead
_PAGE = 500
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


def connect(context: str = "", namespace: str = "") -> "KubernetesApi":
    """Connect to the API of a context of the kubeconfig; inside a pod without one, of its cluster.

    Raises:
        ConfigurationError: The package is not installed, or nothing says where the API is.
    """
    api_client, named = official_client(context)
    return KubernetesApi(api_client, namespace or named, context=context)


class KubernetesApi:
    """Objects of one namespace. Thread-safe, as the client is.

    Args:
        api_client: The official ``ApiClient``.
        namespace: The namespace.
        clock: For waiting between tries.
        context: The context of the kubeconfig that was asked for; empty: the current one.

    Attributes:
        namespace: The namespace.
        where: Cluster and namespace, for messages.
        clock: For waiting between tries.
    """

    def __init__(
        self, api_client: Any, namespace: str, clock: Clock | None = None, *, context: str = ""
    ) -> None:
        self.namespace = namespace
        self.where = Where(namespace, str(api_client.configuration.host or ""), context)
        self.clock = clock or SystemClock()
        self._requests = Requests(api_client, self.clock)

    @property
    def on_warning(self) -> Callable[[str], None]:
        """Called with what the API server warns of, each once."""
        return self._requests.on_warning

    @on_warning.setter
    def on_warning(self, told: Callable[[str], None]) -> None:
        self._requests.on_warning = told

    def now(self) -> datetime:
        """Read the time of day, by which ages are told."""
        return datetime.now(UTC)

    # -- objects -----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Json | None:
        """Get an object; None if there is none."""
        try:
            return self._json("get", kind, name)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return None
            raise error_of(error.refusal, f"get {kind} {name}", self.where) from error

    def exists(self, kind: str, name: str) -> bool:
        """Return whether there is such an object. Its contents, a Secret's say, are not fetched."""
        try:
            self._json("get", kind, name, accept=_METADATA)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return False
            raise error_of(error.refusal, f"get {kind} {name}", self.where) from error
        return True

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
        """Apply an object server-side, as the field manager of this command.

        Raises:
            IncompatibleError: Another manager owns a field (409), and ``force`` is off.
        """
        what = f"apply {body['kind']} {body['metadata']['name']}"
        return self._told(what, lambda: self._apply(body, force=force, dry_run=dry_run))

    def _apply(self, body: Json, *, force: bool, dry_run: bool) -> Json:
        try:
            return self._apply_once(body, force=force, dry_run=dry_run)
        except RefusedRequestError as error:
            if force or not error.refusal.is_conflict_with(FIELD_MANAGER):
                raise
        # What ``scale`` has patched: by this command, so nobody else's.
        return self._apply_once(body, force=True, dry_run=dry_run)

    def _apply_once(self, body: Json, *, force: bool, dry_run: bool) -> Json:
        body = in_namespace(body, self.namespace)
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        query += [("force", "true")] if force else []
        query += [("dryRun", "All")] if dry_run else []
        name = body["metadata"]["name"]
        return self._json("patch", kind_of(body), name, query, body, "application/apply-patch+yaml")

    def patch(self, kind: str, name: str, body: Json) -> Json:
        """Change fields of an object (a merge patch)."""
        query = [("fieldManager", FIELD_MANAGER)]
        return self._told(
            f"change {kind} {name}",
            lambda: self._json("patch", kind, name, query, body, "application/merge-patch+json"),
        )

    def delete(self, kind: str, name: str, *, dry_run: bool = False) -> bool:
        """Delete an object and what it made, or only ask whether that is allowed; False if there
        was none.
        """
        query = [("propagationPolicy", "Background")]
        query += [("dryRun", "All")] if dry_run else []
        try:
            self._json("delete", kind, name, query)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return False
            raise error_of(error.refusal, f"delete {kind} {name}", self.where) from error
        return True

    def list_all(self, kind: str, selector: str = "", fields: str = "") -> Listing:
        """List all objects of a kind that a label selector and a field selector select."""
        return self._told(f"list {kind}s", lambda: self._list(kind, selector, fields))

    def _list(self, kind: str, selector: str, fields: str) -> Listing:
        more, items, version = "", list[Json](), ""
        while True:
            query = [("limit", str(_PAGE))]
            query += [("labelSelector", selector)] if selector else []
            query += [("fieldSelector", fields)] if fields else []
            query += [("continue", more)] if more else []
            try:
                page = self._json("get", kind, "", query)
            except RefusedRequestError as error:
                if error.refusal.is_gone and more:  # the pages have become too old
                    more, items = "", []
                    continue
                raise
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            version = str(metadata.get("resourceVersion", ""))
            more = str(metadata.get("continue") or "")
            if not more:
                return Listing(items, version)

    # -- streams -----------------------------------------------------------------------------

    def watch(self, kind: str, selector: str, version: str, timeout_s: int) -> ByteChunks:
        """Watch objects, in chunks, from ``version`` on; it ends after ``timeout_s``, or earlier.

        Raises:
            RefusedRequestError: There was no answer.
        """
        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(timeout_s)),
        ]
        query += [("labelSelector", selector)] if selector else []
        # The server ends it; a connection that died is noticed by the read timeout.
        return self._requests.stream(path_of(kind, self.namespace), query, timeout_s + _LATE_S)

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
        path = f"{path_of('Pod', self.namespace, pod)}/log"
        # A quiet task is no dead connection: asked again every five minutes.
        return self._requests.stream(path, query, 300.0 if follow else ANSWER_S)

    def _told(self, what: str, request: Callable[[], _Answer]) -> _Answer:
        try:
            return request()
        except RefusedRequestError as error:
            raise error_of(error.refusal, what, self.where) from error

    def _json(
        self,
        method: str,
        kind: str,
        name: str,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
        content_type: str | None = None,
        accept: str = "",
    ) -> Json:
        path = path_of(kind, self.namespace, name)
        return self._requests.json(method, path, query, body, content_type, accept)
