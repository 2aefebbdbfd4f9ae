"""etcd and kube-apiserver as processes, from the folder that ``KUBEBUILDER_ASSETS`` names.

There is no controller, scheduler or kubelet: objects are checked, kept and watched, and make no
pods. ``setup-envtest use -p path`` (sigs.k8s.io/controller-runtime) brings the two programs.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.tools import assets
from helpers.waiting import scaled
from ropewalk.net.this_machine import free_ports

TOKEN = "test-token"  # noqa: S105 - of a server that lives for one test


@contextmanager
def serve_api(folder: Path) -> Iterator[str]:
    """An API server for the length of a block; its address. :data:`TOKEN` may do everything."""
    programs = assets()
    assert programs is not None
    client_port, peer_port, port = free_ports(3)
    etcd_url = f"http://127.0.0.1:{client_port}"
    key = _service_account_key(folder)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    etcd = [
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
    ]
    server = [
        f"--etcd-servers={etcd_url}",
        f"--cert-dir={folder}/certificates",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",  # no controller makes the default account
        f"--token-auth-file={folder}/tokens.csv",
        f"--service-account-issuer=https://127.0.0.1:{port}/",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
    ]
    with (
        _process(programs / "etcd", etcd, folder),
        _process(programs / "kube-apiserver", server, folder) as process,
    ):
        url = f"https://127.0.0.1:{port}"
        _wait_until_ready(url, process, folder)
        yield url


@contextmanager
def _process(program: Path, flags: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{program.name}.log").open("wb") as log:
        process = subprocess.Popen([program, *flags], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(scaled(30))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _service_account_key(folder: Path) -> Path:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = folder / "account.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


def client_of(url: str) -> Any:
    """The official ``ApiClient`` for the server."""
    from kubernetes import client

    settings = client.Configuration(host=url)
    settings.verify_ssl = False  # it makes a certificate of its own
    settings.api_key = {"authorization": TOKEN}
    settings.api_key_prefix = {"authorization": "Bearer"}
    settings.retries = 0
    return client.ApiClient(settings)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    api = client_of(url)
    until = time.monotonic() + scaled(90)
    while time.monotonic() < until:
        with contextlib.suppress(Exception):
            api.call_api(url + "/readyz", "GET", _request_timeout=2)
            return
        assert process.poll() is None, (folder / "kube-apiserver.log").read_text()[-4000:]
        time.sleep(0.2)
    raise AssertionError((folder / "kube-apiserver.log").read_text()[-4000:])
