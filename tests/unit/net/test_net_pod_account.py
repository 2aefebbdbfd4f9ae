"""A pod's own requests to the Kubernetes API: TLS with the cluster's CA, a token, and bounds."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.certificates import issued, write
from ropewalk.core.errors import AccessError, ConfigurationError, PeerLostError, RopewalkError
from ropewalk.net.pod_account import PodAccount, cluster_url


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
    (account / "token").write_text("first\n")
    return account


def send(url: str, folder: Path) -> None:
    PodAccount(url, folder).send("PATCH", "/api/v1/x", {"a": 1}, "application/merge-patch+json")


def test_a_request_has_the_token_of_the_moment(server: Server, folder: Path) -> None:
    send(server.url, folder)
    (folder / "token").write_text("second\n")  # renewed every hour
    send(server.url, folder)
    assert [token for _, token, _, _ in server.asked] == ["Bearer first", "Bearer second"]
    assert server.asked[0][2:] == ("application/merge-patch+json", {"a": 1})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, AccessError), (401, AccessError), (404, ConfigurationError), (503, PeerLostError)],
)
def test_an_answer_that_is_an_error_is_one_of_ours(
    server: Server, folder: Path, status: int, kind: type[RopewalkError]
) -> None:
    server.status = status
    with pytest.raises(kind, match=f"PATCH /api/v1/x: {status} so it is"):
        send(server.url, folder)


def test_a_server_of_another_ca_gets_no_token(server: Server, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", issued(ca="another CA"), "another CA")
    (folder / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    with pytest.raises(PeerLostError, match="CERTIFICATE_VERIFY_FAILED"):
        send(server.url, folder)
    assert server.asked == []


def test_a_pod_without_an_account_says_so(server: Server, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="this pod has no service account"):
        send(server.url, tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("10.96.0.1", "6443", "https://10.96.0.1:6443"),
        ("fd00::1", "", "https://[fd00::1]:443"),
        ("", "", ""),
    ],
)
def test_the_address_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, host: str, port: str, url: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    assert cluster_url() == url
