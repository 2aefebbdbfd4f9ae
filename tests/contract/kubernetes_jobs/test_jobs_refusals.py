"""An API that is not well, or refuses: what is asked again, and what is said at once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from helpers.clock import ManualClock
from helpers.connected_api import SELECTOR, connected
from helpers.job_objects import DIGITS, ready, task_pod
from helpers.kubernetes_cluster import KubernetesCluster, Refused
from windlass.core.errors import (
    AccessError,
    ConfigurationError,
    PeerLostError,
    WindlassError,
)
from windlass.launch.k8s.client import KubernetesApi


@pytest.mark.parametrize(
    ("refused", "waited_s"),
    [
        (Refused(429, "slow down", "7"), 7),
        (Refused(503), 0.25),
        (Refused(cut=True), 0.25),
    ],
    ids=["429 says how long", "503", "cut"],
)
def test_it_is_asked_again_after_what_it_wants(
    cluster: KubernetesCluster, api: KubernetesApi, refused: Refused, waited_s: float
) -> None:
    clock = ManualClock()
    cluster.refusals = [refused]
    assert connected(cluster, clock=clock).list_all("Pod").items == []
    assert clock.now() == waited_s


def test_one_that_stays_away_ends_the_tries(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    cluster.refusals = [Refused(503, "etcd is down")] * 20
    with pytest.raises(PeerLostError, match=r"HTTP 503.*list Pods in namespace train.*etcd"):
        connected(cluster, clock=ManualClock()).list_all("Pod")


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (401, AccessError, "Log in again"),
        (403, AccessError, "Ask for a role that may do this"),
        (400, ConfigurationError, "400 no"),
    ],
)
def test_what_waiting_does_not_mend_is_said_at_once(
    cluster: KubernetesCluster,
    api: KubernetesApi,
    code: int,
    kind: type[WindlassError],
    said: str,
) -> None:
    cluster.refusals = [Refused(code, "no")]
    with pytest.raises(kind, match=said):
        api.list_all("Pod")
    assert len(cluster.asked) == 1


def test_a_namespace_that_is_missing_is_named(run: Callable[..., Result]) -> None:
    said = run("status", "--job", str(DIGITS), "--namespace", "typo")
    assert isinstance(said.exception, ConfigurationError)
    assert "kubectl create namespace typo" in said.exception.message


def test_a_watch_of_a_job_that_is_not_there_says_so_and_fails(run: Callable[..., Result]) -> None:
    said = run("status", "--watch", "--name", "typo")
    assert isinstance(said.exception, SystemExit)
    assert said.exception.code == 2
    assert "typo: Absent: there is no such job here" in said.output


def test_the_namespace_of_the_command_wins_over_that_of_the_file(
    cluster: KubernetesCluster, run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "windlass.yaml"
    file.write_text(DIGITS.read_text() + "kubernetes: {namespace: elsewhere}\n")
    assert "namespace elsewhere" in str(run("apply", "--job", str(file)).exception)
    assert run("apply", "--job", str(file), "--namespace", "train").exception is None
    service = cluster.get("Service", "digits-tasks")
    assert service is not None
    assert service["metadata"]["namespace"] == "train"


def test_a_context_that_is_missing_is_named(run: Callable[..., Result]) -> None:
    said = run("status", "--job", str(DIGITS), "--context", "there")
    assert isinstance(said.exception, ConfigurationError)
    assert "no such context; there are here" in said.exception.message


def test_long_lists_come_in_pages(
    cluster: KubernetesCluster, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.launch.k8s.client._PAGE", 2)
    for index in range(5):
        cluster.put("Pod", task_pod("worker", index, ready()))
    assert len(api.list_all("Pod", SELECTOR).items) == 5
    assert len(cluster.asked) == 3
