"""The Kubernetes API: the one module of this room that knows the ``kubernetes`` package, an extra.

Requests go through the official client's own request function, with its configuration,
credentials and connections; answers are JSON as the API writes it, whose form is stable, and not
the client's classes, which refuse an object that lacks a field their version requires. (Its
``Watch`` is not used: without classes it fails on every error event, 410 included.)
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError
from .kinds import Listing, path_of
from .names import FIELD_MANAGER
from .retrying import Refusal, error_of, read_refusal, wait_before

Json = dict[str, Any]
_Answer = TypeVar("_Answer")

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_PAGE = 500
_TRIES = 6


class RefusedRequestError(Exception):
    """An answer that is none; callers of this room turn it into an error for people."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def connect(context: str = "", namespace: str = "") -> "KubernetesApi":
    """The API of a context of the kubeconfig; inside a pod without one, of its cluster.

    Raises:
        ConfigurationError: The package is not installed, or nothing says where the API is.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigurationError(
            "`windlass k8s` needs the Kubernetes client: pip install 'windlass[k8s]'. `windlass "
            "k8s render | kubectl apply --server-side -f -` works without"
        ) from error
    settings = client.Configuration()
    settings.retries = 0  # we try again ourselves, and say so
    named = "default"
    try:
        contexts, current = _contexts(config)
        if context and context not in contexts:
            raise ConfigurationError(
                f"--context {context}: there is no such context; there are "
                f"{', '.join(contexts) or 'none'}"
            )
        if contexts:
            config.load_kube_config(context=context or None, client_configuration=settings)
            named = contexts.get(context or current, "") or named
        else:
            from ...distribute.resolvers.kubernetes_pods import own_namespace

            config.load_incluster_config(client_configuration=settings)
            named = own_namespace()
    except config.ConfigException as error:
        raise ConfigurationError(
            f"the Kubernetes API is not known: {error}; check KUBECONFIG, or ~/.kube/config, and "
            "that `kubectl get pods` works"
        ) from error
    return KubernetesApi(client.ApiClient(settings), namespace or named)


def _contexts(config: Any) -> tuple[dict[str, str], str]:
    """(namespace by context, the current context); nothing without a kubeconfig."""
    try:
        contexts, current = config.list_kube_config_contexts()
    except config.ConfigException:
        return {}, ""
    named = {each["name"]: each.get("context", {}).get("namespace", "") for each in contexts}
    return named, (current or {}).get("name", "")


class KubernetesApi:
    """Objects of one namespace. Thread-safe, as the client is.

    Args:
        api_client: The official ``ApiClient``.
        namespace: Where.
        clock: For waiting between tries.
    """

    def __init__(self, api_client: Any, namespace: str, clock: Clock | None = None) -> None:
        from kubernetes import dynamic

        # With a discoverer that asks nothing: our kinds and their paths are known.
        self._client = dynamic.DynamicClient(api_client, discoverer=lambda *_: None)
        self.namespace = namespace
        self.clock = clock or SystemClock()

    # -- objects -----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Json | None:
        """An object; None if there is none."""
        try:
            return self._json("get", kind, name)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return None
            raise error_of(error.refusal, f"get {kind} {name}", self.namespace) from error

    def apply(self, body: Json, *, force: bool = False, dry_run: bool = False) -> Json:
        """Server-side apply, as the field manager of this command.

        Raises:
            IncompatibleError: Another manager owns a field (409), and ``force`` is off.
        """
        kind, name = body["kind"], body["metadata"]["name"]
        # The path's namespace and the object's must be one; --namespace wins over the job file.
        body = {**body, "metadata": {**body["metadata"], "namespace": self.namespace}}
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        query += [("force", "true")] if force else []
        query += [("dryRun", "All")] if dry_run else []
        return self._told(
            f"apply {kind} {name}",
            lambda: self._json("patch", kind, name, query, body, "application/apply-patch+yaml"),
        )

    def patch(self, kind: str, name: str, body: Json) -> Json:
        """Change fields of an object (a merge patch)."""
        query = [("fieldManager", FIELD_MANAGER)]
        return self._told(
            f"change {kind} {name}",
            lambda: self._json("patch", kind, name, query, body, "application/merge-patch+json"),
        )

    def delete(self, kind: str, name: str) -> bool:
        """Delete an object and what it made; False if there was none."""
        query = [("propagationPolicy", "Background")]
        try:
            self._json("delete", kind, name, query)
        except RefusedRequestError as error:
            if error.refusal.is_missing:
                return False
            raise error_of(error.refusal, f"delete {kind} {name}", self.namespace) from error
        return True

    def list_all(self, kind: str, selector: str = "", fields: str = "") -> Listing:
        """All objects of a kind that a label selector and a field selector select."""
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

    def watch(self, kind: str, selector: str, version: str, timeout_s: int) -> "ByteChunks":
        """Chunks of a watch from ``version`` on; it ends after ``timeout_s``, or earlier.

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
        return self._stream(path_of(kind, self.namespace), query, timeout_s + _CONNECT_S)

    def log(
        self,
        pod: str,
        container: str,
        *,
        since: str = "",
        follow: bool = False,
        previous: bool = False,
        tail: int = -1,
    ) -> "ByteChunks":
        """Chunks of a container's log, each line behind its time.

        Args:
            pod: Its name.
            container: Of the pod.
            since: RFC 3339; empty: from the beginning.
            follow: Go on until the container ends.
            previous: Of the container before the last restart.
            tail: Lines at the end; -1: all.

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
        return self._stream(path, query, 300.0 if follow else _ANSWER_S)

    def _stream(self, path: str, query: list[tuple[str, str]], read_s: float) -> "ByteChunks":
        return ByteChunks(self._send("get", path, query, None, None, (_CONNECT_S, read_s)))

    # -- requests ----------------------------------------------------------------------------

    def _told(self, what: str, request: Callable[[], _Answer]) -> _Answer:
        try:
            return request()
        except RefusedRequestError as error:
            raise error_of(error.refusal, what, self.namespace) from error

    def _json(
        self,
        method: str,
        kind: str,
        name: str,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
        content_type: str | None = None,
    ) -> Json:
        """One request, tried again while that is worth it."""
        path = path_of(kind, self.namespace, name)
        for attempt in range(_TRIES):
            try:
                timeout = (_CONNECT_S, _ANSWER_S)
                response = self._send(method, path, query or [], body, content_type, timeout)
                return self._read(response)
            except RefusedRequestError as error:
                if not error.refusal.is_retried or attempt == _TRIES - 1:
                    raise
                self.clock.wait(threading.Event(), wait_before(error.refusal, attempt))
        raise AssertionError("unreachable")

    def _read(self, response: Any) -> Json:
        try:
            answer: Json = json.loads(response.data)
        except Exception as error:
            raise _refused(error) from error
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Any,
        content_type: str | None,
        timeout: tuple[float, float],
    ) -> Any:
        try:
            return self._client.request(
                method,
                path,
                body=body,
                query_params=list(query),
                header_params={},
                content_type=content_type,
                serialize=False,
                _request_timeout=timeout,
            )
        except Exception as error:
            raise _refused(error) from error


class ByteChunks:
    """The body of an answer as it comes. Iterate once, in one thread; any thread may cancel."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        """The chunks.

        Raises:
            RefusedRequestError: It broke off.
        """
        try:
            yield from self._response.stream(64 * 1024, decode_content=False)
        except Exception as error:
            raise _refused(error) from error
        finally:
            self._response.close()  # its connection may be in the middle of an answer

    def cancel(self) -> None:
        """Let the thread that iterates go on, with an error or an end."""
        with contextlib.suppress(Exception):  # it has ended, or urllib3 is older than 2.3
            self._response.shutdown()


def _refused(error: Exception) -> Exception:
    """The client's error as a refusal; one that is no answer and no lost connection stays."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        body = getattr(error, "body", "") or ""
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        headers: Mapping[str, str] = getattr(error, "headers", None) or {}
        return RefusedRequestError(read_refusal(status, text or str(error), headers))
    # urllib3 is the client's own business: its errors are known by where they are made.
    if isinstance(error, OSError | ValueError) or type(error).__module__.startswith("urllib3."):
        return RefusedRequestError(Refusal(0, f"{type(error).__name__}: {error}"))
    return error
