"""Requests to the Kubernetes API: the one module of this package that imports ``kubernetes``.

They go through the official client's own request function, with its configuration, credentials and
connections; answers are JSON as the API writes it, whose form is stable, and not the client's
classes, which refuse an object that lacks a field their version requires. (Its ``Watch`` is not
used: without classes it fails on every error event, 410 included.)
"""

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from ...core.clock import Clock
from ...core.errors import ConfigurationError
from .answers import ByteChunks, RefusedRequestError, refused, warnings_of
from .retrying import is_tried_again, wait_before

Json = dict[str, Any]

_CONNECT_S = 3.0
ANSWER_S = 30.0
"""Longest time of an answer that is no stream. Unit: seconds."""


def official_client(context: str) -> tuple[Any, str]:
    """Make the official ``ApiClient`` of a context; returns also the context's namespace.

    Args:
        context: Context of the kubeconfig; empty: the current one, or inside a pod without a
            kubeconfig that of its cluster.

    Raises:
        ConfigurationError: The package is not installed, or nothing says where the API is.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigurationError(
            "`ropewalk k8s` needs the Kubernetes client: pip install 'ropewalk[k8s]'. `ropewalk "
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
            f"the Kubernetes API is not known: {str(error).rstrip('.')}; check KUBECONFIG, or "
            "~/.kube/config, and that `kubectl get pods` works"
        ) from error
    return client.ApiClient(settings), named


def _contexts(config: Any) -> tuple[dict[str, str], str]:
    """List (namespace by context, the current context); nothing without a kubeconfig."""
    try:
        contexts, current = config.list_kube_config_contexts()
    except config.ConfigException:
        return {}, ""
    named = {each["name"]: each.get("context", {}).get("namespace", "") for each in contexts}
    return named, (current or {}).get("name", "")


class Requests:
    """Sends requests, and tries again those for which that is worth it. Thread-safe.

    Args:
        api_client: The official ``ApiClient``.
        clock: For waiting between tries.

    Attributes:
        on_warning: Called with what the API server warns of, each once.
    """

    def __init__(self, api_client: Any, clock: Clock) -> None:
        from kubernetes import dynamic

        # With a discoverer that asks nothing: our kinds and their paths are known.
        self._client = dynamic.DynamicClient(api_client, discoverer=lambda *_: None)
        self._clock = clock
        self._reached = False  # it has answered
        self.on_warning: Callable[[str], None] = lambda _: None
        self._warned: set[str] = set()

    def stream(self, path: str, query: list[tuple[str, str]], read_s: float) -> ByteChunks:
        """Open an answer as a stream; tried once.

        Args:
            path: Path of the request.
            query: Parameters of the request.
            read_s: Longest time in which nothing may come. Unit: seconds.

        Raises:
            RefusedRequestError: There was no answer.
        """
        return ByteChunks(self._send("get", path, query, None, None, (_CONNECT_S, read_s)))

    def json(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
        content_type: str | None = None,
        accept: str = "",
    ) -> Json:
        """Send a request, tried again while that is worth it, and read the answer.

        Args:
            method: ``get``, ``patch`` or ``delete``.
            path: Path of the request.
            query: Parameters of the request.
            body: Body to send, as JSON.
            content_type: Kind of the body.
            accept: Form of the answer; empty: as usual.

        Raises:
            RefusedRequestError: The answer is an error, or there was none.
        """
        timeout = (_CONNECT_S, ANSWER_S)
        began = self._clock.now()
        for attempt in itertools.count():
            try:
                response = self._send(
                    method, path, query or [], body, content_type, timeout, accept
                )
                return self._read(response)
            except RefusedRequestError as error:
                refusal = error.refusal
                self._reached = self._reached or refusal.status != 0
                elapsed_s = self._clock.now() - began
                if not is_tried_again(refusal, attempt, elapsed_s, reached=self._reached):
                    raise
                self._clock.wait(threading.Event(), wait_before(refusal, attempt))
        raise AssertionError("unreachable")

    def _read(self, response: Any) -> Json:
        try:
            answer: Json = json.loads(response.data)
        except Exception as error:
            raise refused(error) from error
        self._reached = True
        for text in warnings_of(response):
            if text not in self._warned:
                self._warned.add(text)
                self.on_warning(text)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Any,
        content_type: str | None,
        timeout: tuple[float, float],
        accept: str = "",
    ) -> Any:
        try:
            return self._client.request(
                method,
                path,
                body=body,
                query_params=list(query),
                header_params={"Accept": accept} if accept else {},
                content_type=content_type,
                serialize=False,
                _request_timeout=timeout,
            )
        except Exception as error:
            raise refused(error) from error
