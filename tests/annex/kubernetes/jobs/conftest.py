"""``ropewalk k8s`` through the official client, against an API server on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.kubernetes.api import use_kubeconfig
from helpers.kubernetes.cluster import KubernetesCluster, serve_cluster
from helpers.kubernetes.connected_api import connected
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.launch import cli


@pytest.fixture
def cluster() -> Iterator[KubernetesCluster]:
    with serve_cluster() as server:
        yield server


@pytest.fixture
def api(cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return connected(cluster)


@pytest.fixture
def run(
    cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """``ropewalk k8s …`` with a kubeconfig that names the server."""
    use_kubeconfig(tmp_path, cluster.url, monkeypatch)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def k8s(*arguments: str) -> Result:
        return CliRunner().invoke(cli.ropewalk, ["k8s", *arguments], standalone_mode=False)

    return k8s
