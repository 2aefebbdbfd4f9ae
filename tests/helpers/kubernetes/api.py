"""A Kubernetes API server that lists pods of the namespace ``train``, on loopback.

As a service account with ``list`` on ``pods`` of that namespace alone meets it: whatever else is
asked is 403. Answers have the form of the real one (``PodList``, ``Status``); pages have
``continue``.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from helpers.kubernetes.pod_listings import Listed


def use_kubeconfig(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the official client find a kubeconfig that names a server.

    Args:
        folder: Where the file is written.
        url: The server's.
        monkeypatch: Puts the client's own place back.
    """
    path = folder / "kubeconfig"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me, namespace: train}}}}]
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
users: [{{name: me, user: {{token: secret}}}}]
"""
    )
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


class KubernetesApi:
    """What the server has, and what it was asked.

    Attributes:
        pods: All pods of the namespace.
        answers: Statuses of the next requests instead of an answer: a number, or ``"cut"`` for a
            connection that is closed.
        page: Pods of one page at most, beside the client's own limit.
        asked: (path, parameters) of every request.
    """

    def __init__(self) -> None:
        self.pods: list[Listed] = []
        self.answers: list[int | str] = []
        self.page = 500
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, Any]:
        """(status, body) of a GET."""
        parts = urlparse(path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append((parts.path, asked))
        if self.answers:
            status = self.answers.pop(0)
            return (0, None) if status == "cut" else (int(status), _status(int(status)))
        if parts.path != "/api/v1/namespaces/train/pods":
            return 403, _status(403)
        wanted = dict(text.split("=") for text in asked["labelSelector"].split(","))
        chosen = [
            pod for pod in self.pods if wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]
        first = int(asked.get("continue", "0"))
        last = first + min(self.page, int(asked.get("limit", "500")))
        metadata = {"resourceVersion": "4711"}
        if last < len(chosen):
            metadata["continue"] = str(last)
        return 200, {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": chosen[first:last],
        }


def _status(code: int) -> Listed:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    if code != 403:
        return status
    message = (
        'pods is forbidden: User "system:serviceaccount:train:trainer" cannot list resource "pods" '
        'in API group "" in the namespace "train"'
    )
    return {**status, "message": message, "reason": "Forbidden"}


@contextmanager
def serve() -> Iterator[KubernetesApi]:
    """A server, for the length of a block."""
    api = KubernetesApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = api.answer(self.path)
            if not status:
                self.close_connection = True
                return
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
