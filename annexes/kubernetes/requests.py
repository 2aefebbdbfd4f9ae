"""Requests to the Kubernetes API: the one module that imports ``kubernetes``, the official client.

Configuration, credentials, connections and watches are the client's. Answers are JSON as the API
writes it, whose form is stable, and not the client's classes: those refuse an object that lacks a
field their version requires, and importing them takes 80 MiB. It is loaded when a client is made.
"""

import contextlib
import importlib.util
import itertools
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ...core.clock import Clock
from ...core.errors import AccessError, ConfigurationError, MissingExtraError
from ...core.settings import read_environment
from .refusals import Refusal, RefusedRequestError, refused

Json = dict[str, Any]

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_S = 3.0
_WARNING = re.compile(r'^\d{3} \S+ "(.*)"$', re.S)


def is_in_pod() -> bool:
    """Return whether this process runs in a pod."""
    return bool(read_environment("KUBERNETES_SERVICE_HOST"))


def own_namespace(folder: Path = ACCOUNT_FOLDER) -> str:
    """Find the namespace of this pod; ``default`` where nothing says one."""
    with contextlib.suppress(OSError):
        return (
            read_environment("POD_NAMESPACE")
            or (folder / "namespace").read_text().strip()
            or "default"
        )
    return "default"


def pod_client(folder: Path = ACCOUNT_FOLDER) -> Any:
    """Make the official ``ApiClient`` of this pod's service account, whose token is read anew when
    it is a minute old.

    Args:
        folder: Folder with ``token`` and ``ca.crt``.

    Raises:
        MissingExtraError: The package is not installed.
        AccessError: There is no account.
    """
    client, config = _packages()
    settings = _settings(client)
    loader = config.incluster_config.InClusterConfigLoader(
        str(folder / "token"), str(folder / "ca.crt")
    )
    try:
        loader.load_and_set(settings)
    except config.ConfigException as error:
        said = str(error).rstrip(".").lower()
        raise AccessError(f"this pod has no service account: {said}") from error
    settings.proxy = None  # the API server is in the cluster
    made = client.ApiClient(settings)
    trusted = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    # Of many clusters the certificate lacks what RFC 5280 asks for, and Python 3.13 by itself.
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.rest_client.pool_manager.connection_pool_kw["ssl_context"] = trusted
    return made


def kubeconfig_client(context: str = "") -> tuple[Any, str] | None:
    """Make the official ``ApiClient`` of a context, and name its namespace; None: no kubeconfig.

    Args:
        context: Context of the kubeconfig; empty: the current one.

    Raises:
        MissingExtraError: The package is not installed.
        ConfigurationError: There is no such context, or it cannot be used.
    """
    client, config = _packages()
    settings = _settings(client)
    try:
        contexts, current = config.list_kube_config_contexts()
    except config.ConfigException:
        contexts, current = [], None
    named = {each["name"]: each.get("context", {}).get("namespace", "") for each in contexts}
    if context and context not in named:
        raise ConfigurationError(
            f"--context {context}: there is no such context; there are {', '.join(named) or 'none'}"
        )
    if not named:
        return None
    try:
        config.load_kube_config(context=context or None, client_configuration=settings)
    except config.ConfigException as error:
        raise ConfigurationError(
            f"the Kubernetes API is not known: {str(error).rstrip('.')}; check KUBECONFIG, or "
            "~/.kube/config, and that `kubectl get pods` works"
        ) from error
    return client.ApiClient(settings), named[context or (current or {})["name"]] or "default"


def require_client() -> None:
    """Refuse to go on without the package.

    Raises:
        MissingExtraError: It is not installed.
    """
    if importlib.util.find_spec("kubernetes") is None:
        raise MissingExtraError(
            "this needs the Kubernetes client: pip install 'ropewalk[k8s]'. (`ropewalk k8s render "
            "| kubectl apply --server-side -f -` works without.)"
        )


def _packages() -> tuple[Any, Any]:
    require_client()
    from kubernetes import client, config

    return client, config


def _settings(client: Any) -> Any:
    settings = client.Configuration()
    settings.retries = 0  # we try again ourselves, and say so
    return settings


class ByteChunks:
    """The body of an answer as it comes. Iterate once, in one thread; any thread may cancel."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        """Yield the chunks.

        Raises:
            RefusedRequestError: The connection broke off.
        """
        try:
            yield from self._response.stream(64 * 1024, decode_content=False)
        except Exception as error:
            raise refused(error) from error
        finally:
            self._response.close()  # its connection may be in the middle of an answer

    def cancel(self) -> None:
        """Let the thread that iterates go on, with an error or an end."""
        with contextlib.suppress(Exception):  # it has ended, or urllib3 is older than 2.3
            self._response.shutdown()


class Requests:
    """Sends requests, and tries again those for which that is worth it. Thread-safe.

    Args:
        api_client: The official ``ApiClient``.
        clock: Clock of the waits between tries.
        answer_s: Longest time of an answer that is no stream. Unit: seconds.
        tries_again: Whether a request is sent again at all.

    Attributes:
        on_warning: Called with what the API server warns of, each once.
    """

    def __init__(
        self, api_client: Any, clock: Clock, answer_s: float, *, tries_again: bool
    ) -> None:
        from kubernetes import dynamic

        # With a discoverer that asks nothing: our kinds and their paths are known.
        self._client = dynamic.DynamicClient(api_client, discoverer=lambda *_: None)
        self._clock = clock
        self._answer_s = answer_s
        self._tries_again = tries_again
        self._reached = False  # it has answered
        self.on_warning: Callable[[str], None] = lambda _: None
        self._warned: set[str] = set()

    def watch(self, path: str, read_s: float, **params: Any) -> Iterator[Json]:
        """Watch objects; tried once.

        Args:
            path: Path of the request.
            read_s: Longest time in which nothing may come. Unit: seconds.
            params: Parameters of the request, as the client calls them.

        Raises:
            RefusedRequestError: There was no answer, it broke off, or an event is an error.
        """
        from kubernetes import watch

        begin = partial(self._client.request, "get", path)
        try:
            for event in watch.Watch().stream(begin, **params, **_streamed(read_s)):
                if event is None:
                    raise ValueError("a line of a watch is no event")
                yield event
        except Exception as error:
            raise refused(error) from error

    def stream(self, path: str, read_s: float, query: list[tuple[str, str]]) -> ByteChunks:
        """Open an answer as a stream; tried once.

        Args:
            path: Path of the request.
            read_s: Longest time in which nothing may come. Unit: seconds.
            query: Parameters of the request.

        Raises:
            RefusedRequestError: As :meth:`watch`.
        """
        try:
            answer = self._client.request("get", path, query_params=query, **_streamed(read_s))
        except Exception as error:
            raise refused(error) from error
        return ByteChunks(answer)

    def json(self, method: str, path: str, body: Any = None, **params: Any) -> Json:
        """Send a request, tried again while that is worth it, and read the answer.

        Args:
            method: ``get``, ``post``, ``patch`` or ``delete``.
            path: Path of the request.
            body: Body to send, as JSON.
            params: Parameters, as the client calls them.

        Raises:
            RefusedRequestError: The answer is an error, or there was none.
        """
        began, timeout = self._clock.now(), (_CONNECT_S, self._answer_s)
        for attempt in itertools.count():
            try:
                response = self._client.request(
                    method, path, body, serialize=False, _request_timeout=timeout, **params
                )
                return self._read(response)
            except Exception as error:  # noqa: BLE001 - raised again, but for those of the server
                refusal = self._tried_again(error, attempt, self._clock.now() - began)
                self._clock.wait(threading.Event(), refusal.wait_s(attempt))
        raise AssertionError("unreachable")

    def _tried_again(self, error: Exception, attempt: int, elapsed_s: float) -> Refusal:
        """Return the refusal after which the request is sent again; else it is raised."""
        ours = refused(error)
        if not isinstance(ours, RefusedRequestError):
            raise ours from error
        refusal = ours.refusal
        self._reached = self._reached or refusal.status != 0
        again = refusal.is_tried_again(attempt, elapsed_s, reached=self._reached)
        if not (self._tries_again and again):
            raise ours from error
        return refusal

    def _read(self, response: Any) -> Json:
        answer: Json = json.loads(response.data)
        self._reached = True
        for text in _warnings(response):
            if text not in self._warned:
                self._warned.add(text)
                self.on_warning(text)
        return answer


def _streamed(read_s: float) -> Json:
    return {"serialize": False, "_request_timeout": (_CONNECT_S, read_s)}


def _warnings(response: Any) -> list[str]:
    """Find what the API server warns of beside its answer, e.g. that pods would break a policy.

    Source: RFC 7234, section 5.5: ``299 - "would violate PodSecurity …"``, one a header.
    """
    headers: Any = getattr(response, "headers", None)
    lines = headers.getlist("Warning") if hasattr(headers, "getlist") else []
    matches = [_WARNING.match(line.strip()) for line in lines]
    return [match[1].replace('\\"', '"') for match in matches if match]
