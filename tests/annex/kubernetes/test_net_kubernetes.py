"""A pod's own requests to the Kubernetes API: TLS with the cluster's CA, a token, and bounds."""

import datetime
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.tls_files import issued, write
from ropewalk.annexes.kubernetes.api import connect_task
from ropewalk.annexes.kubernetes.requests import own_namespace, pod_client, require_client
from ropewalk.core.errors import (
    AccessError,
    ConfigurationError,
    MissingExtraError,
    NotFoundError,
    PeerLostError,
    RopewalkError,
)


class Server:
    """An API server that answers one status, and remembers what it was asked."""

    def __init__(self, folder: Path, ca: str = "test CA") -> None:
        self.status = 200
        self.asked: list[tuple[str, str, str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers["Authorization"]
                outer.asked.append((self.path, token, self.headers["Content-Type"], body))
                text = json.dumps({"kind": "Status", "message": "so it is"}).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        files = write(folder / "server", issued(ca=ca), ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What Kubernetes mounts into a pod."""
    account = tmp_path / "account"
    write(account, issued())
    (account / "token").write_text("first")
    (account / "namespace").write_text("train\n")
    return account


@pytest.fixture(autouse=True)
def in_pod(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = server.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)


def send(folder: Path) -> None:
    connect_task("ropewalk-chief", folder).patch("ConfigMap", "x", {"a": 1})


def test_a_request_has_the_token_of_the_pod_and_the_name_of_its_manager(
    server: Server, folder: Path
) -> None:
    send(folder)
    path = "/api/v1/namespaces/train/configmaps/x?fieldManager=ropewalk-chief"
    assert server.asked == [(path, "bearer first", "application/merge-patch+json", {"a": 1})]


def test_a_token_that_was_renewed_is_read_again(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.datetime.now()
    module = "kubernetes.config.incluster_config.datetime"
    clock = SimpleNamespace(now=lambda: now)
    monkeypatch.setattr(module, SimpleNamespace(datetime=clock, timedelta=datetime.timedelta))
    api = connect_task(folder=folder)
    (folder / "token").write_text("second")  # renewed every hour
    now += datetime.timedelta(minutes=2)
    api.patch("ConfigMap", "x", {"a": 1})
    assert [token for _, token, _, _ in server.asked] == ["bearer second"]


def test_a_proxy_of_the_environment_is_not_asked_for_the_clusters_own_server(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    send(folder)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, AccessError),
        (401, AccessError),
        (404, NotFoundError),
        (422, ConfigurationError),
        (503, PeerLostError),
    ],
)
def test_an_answer_that_is_an_error_is_one_of_ours(
    server: Server, folder: Path, status: int, kind: type[RopewalkError]
) -> None:
    server.status = status
    with pytest.raises(kind, match=f"change ConfigMap x in namespace train: {status} so it is"):
        send(folder)
    assert len(server.asked) == 1, "who asked tries again"


def test_a_server_of_another_ca_gets_no_token(server: Server, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", issued(ca="another CA"), "another CA")
    (folder / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    with pytest.raises(PeerLostError, match="its certificate is not trusted"):
        send(folder)
    assert server.asked == []


def test_a_certificate_need_not_have_what_python_asks_for_by_itself(folder: Path) -> None:
    made = pod_client(folder)
    trusted = made.rest_client.pool_manager.connection_pool_kw["ssl_context"]
    assert not trusted.verify_flags & ssl.VERIFY_X509_STRICT
    assert trusted.verify_mode is ssl.CERT_REQUIRED
    assert trusted.check_hostname


def test_a_pod_without_an_account_says_so(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="this pod has no service account: service token file"):
        send(tmp_path / "none")


def test_the_namespace_is_that_of_the_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_namespace(folder) == "train"
    assert own_namespace(folder / "none") == "default"
    monkeypatch.setenv("POD_NAMESPACE", "other")
    assert own_namespace(folder) == "other"


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ropewalk\[k8s\]'"):
        require_client()
