"""``ropewalk k8s scale`` and ``delete``: workers drain before they leave."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.connected_api import completions
from helpers.kubernetes.job_objects import ended, ready, started, task_pod
from helpers.kubernetes.pod_listings import Listed
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.removal import delete_all
from ropewalk.annexes.kubernetes.scaling import read_ps_scale, read_scale, scale
from ropewalk.core.errors import (
    AccessError,
    ConfigurationError,
    PeerLostError,
)


class Controller:
    """Kubernetes' own part: makes and drains the pods of the workers' Job."""

    def __init__(self, cluster: KubernetesCluster, code: int = 143) -> None:
        self._cluster = cluster
        self._code = code
        self._threads: list[threading.Thread] = []
        cluster.on_patch = self._on_patch
        for index in range(2):
            cluster.put("Pod", task_pod("worker", index, ready()))

    def _on_patch(self, kind: str, item: Listed) -> None:
        if kind == "Job":
            thread = threading.Thread(target=self._reconcile, args=(item["spec"]["completions"],))
            self._threads.append(thread)
            thread.start()

    def _reconcile(self, wanted: int) -> None:
        for index in range(8):
            name = f"digits-worker-{index}-x7k2p"
            there = self._cluster.get("Pod", name) is not None
            if there and index >= wanted:
                going = {"deletionTimestamp": "2026-11-20T10:05:00Z"}
                self._cluster.put("Pod", task_pod("worker", index, ready(), **going))
                self._cluster.put("Pod", task_pod("worker", index, ended(self._code), **going))
                self._cluster.remove("Pod", name)
            elif not there and index < wanted:
                self._cluster.put("Pod", task_pod("worker", index, {"phase": "Pending"}))
                self._cluster.put("Pod", task_pod("worker", index, ready()))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def scaled_to(api: KubernetesApi, workers: int, **how: Any) -> list[str]:
    told: list[str] = []
    plan = read_scale(api, "digits", workers)
    scale(api, "digits", plan, told.append, watch_s=1, **{"timeout_s": 60, **how})
    return told


def test_workers_come_and_leave_after_they_have_drained(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    controller = Controller(cluster)
    assert scaled_to(api, 4) == ["digits: 2 → 4 workers", "worker:2 runs", "worker:3 runs"]
    told = scaled_to(api, 1)
    assert told[0] == "digits: 4 → 1 workers"
    assert set(told[1:]) == {f"worker:{index} has left: drained" for index in (1, 2, 3)}
    assert scaled_to(api, 1) == ["digits has 1 workers already"]
    assert completions(cluster) == 1
    patches = [each for each in cluster.asked if each.method == "PATCH"]
    assert {each.query["fieldManager"] for each in patches} == {"ropewalk"}
    controller.join()


def test_one_that_did_not_drain_in_time_is_told_apart(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    controller = Controller(cluster, code=137)
    assert "worker:1 has left: killed: it did not leave within its grace period" in (
        "\n".join(scaled_to(api, 1))
    )
    controller.join()


def test_a_scale_that_takes_too_long_says_who_is_waited_for(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    with pytest.raises(PeerLostError, match=r"worker:2, worker:3 do not run yet"):
        scaled_to(api, 4, timeout_s=0.1)


def shared_digits() -> JobFile:
    job = digits()
    return job.model_copy(update={"settings": job.settings.model_copy(update={"ps_shares": 4})})


def test_ps_come_and_hand_over_before_they_leave(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster, shared_digits())
    now = shared_digits().count("ps")
    for index in range(now):
        cluster.put("Pod", task_pod("ps", index, ready()))
    threads: list[threading.Thread] = []

    def come_and_leave(wanted: int) -> None:
        for index in range(4):
            there = cluster.get("Pod", f"digits-ps-{index}") is not None
            if there and index >= wanted:
                cluster.put("Pod", task_pod("ps", index, ended(0)))
                cluster.remove("Pod", f"digits-ps-{index}")
            elif not there and index < wanted:
                cluster.put("Pod", task_pod("ps", index, ready()))

    def on_patch(kind: str, item: Listed) -> None:
        assert kind == "StatefulSet"
        threads.append(threading.Thread(target=come_and_leave, args=(item["spec"]["replicas"],)))
        threads[-1].start()

    cluster.on_patch = on_patch

    def ps_scaled_to(count: int) -> list[str]:
        told: list[str] = []
        scale(api, "digits", read_ps_scale(api, "digits", count), told.append,
              timeout_s=60, watch_s=1)  # fmt: skip
        return told

    came = [f"ps:{index} runs" for index in range(now, 4)]
    assert ps_scaled_to(4) == [f"digits: {now} → 4 ps", *came]
    told = ps_scaled_to(1)
    assert told[0] == "digits: 4 → 1 ps"
    assert set(told[1:]) == {f"ps:{index} has left: handed over" for index in (1, 2, 3)}
    assert ps_scaled_to(1) == ["digits has 1 ps already"]
    with pytest.raises(ConfigurationError, match="can have 1 to 4 ps, not 5"):
        read_ps_scale(api, "digits", 5)
    for thread in threads:
        thread.join()


def test_the_ps_of_a_job_whose_shares_stay_are_not_scaled(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result]
) -> None:
    started(cluster)
    with pytest.raises(ConfigurationError, match=r"give it settings.ps_shares in the job file"):
        read_ps_scale(api, "digits", 2)
    both = run("scale", "3", "--ps", "2", "--name", "digits")
    assert "scale changes one number: give WORKERS, or --ps N" in str(both.exception)


def test_a_dry_run_of_scale_names_who_would_leave(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    said = run("scale", "0", "--name", "digits", "--dry-run")
    assert said.output.splitlines() == [
        "worker:0 would drain and leave",
        "worker:1 would drain and leave",
    ]
    assert not [each for each in cluster.asked if each.method == "PATCH"]


def test_a_job_in_sync_is_not_scaled(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    started(cluster, digits().with_counts({"ps": 0}))
    with pytest.raises(
        ConfigurationError, match=r"without another.*`ropewalk k8s delete --name digits -n train`"
    ):
        read_scale(api, "digits", 1)


def test_delete_leaves_the_checkpoints_unless_it_is_told_otherwise(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result]
) -> None:
    started(cluster)
    said = run("delete", "--job", str(DIGITS)).output.splitlines()
    assert said[-1] == ("PersistentVolumeClaim digits-checkpoints kept (--checkpoints deletes it)")
    assert len(said) == len(manifests(digits()))
    assert all(
        each.query["propagationPolicy"] == "Background"
        for each in cluster.asked
        if each.method == "DELETE"
    )
    # What is gone already is no error.
    done = delete_all(api, "digits", checkpoints=True)
    assert [(each.kind, each.what) for each in done] == [("PersistentVolumeClaim", "deleted")]
    assert "there is nothing of digits in namespace train" in run("delete", "--name=digits").output


def deletions(cluster: KubernetesCluster) -> list[str]:
    """What was deleted, without what was only tried."""
    asked = [
        each for each in cluster.asked if each.method == "DELETE" and "dryRun" not in each.query
    ]
    return [each.path.rpartition("/")[2] for each in asked]


def test_a_namespace_is_deleted_after_the_pods_have_left(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    # It has ended, and its Job is gone before it was counted: only the finalizer holds it.
    tracked: dict[str, Any] = {
        "deletionTimestamp": "2026-11-20T10:05:00Z",
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    }
    cluster.put("Pod", task_pod("worker", 0, ended(143), **tracked))

    def freed(kind: str, item: Listed) -> None:
        if kind == "Pod" and not item["metadata"].get("finalizers"):
            cluster.remove("Pod", item["metadata"]["name"])

    cluster.on_patch = freed
    said = run("delete", "--job", str(DIGITS), "--namespace-too")
    assert said.exception is None, said.exception
    assert said.output.splitlines()[-1] == "Namespace train deleted"
    assert "PersistentVolumeClaim digits-checkpoints deleted" in said.output
    assert cluster.namespaces == set()
    order = deletions(cluster)
    assert order.index("digits-worker") < order.index("digits-ps") < order.index("train")


def test_who_may_not_delete_the_namespace_keeps_the_job_and_its_checkpoints(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    message = (
        'namespaces "train" is forbidden: User "ann" cannot delete resource "namespaces" in API '
        'group "" in the namespace "train"'
    )
    cluster.refusals = [Refused(403, message, method="DELETE", path="/namespaces/train")]
    said = run("delete", "--job", str(DIGITS), "--namespace-too")
    assert isinstance(said.exception, AccessError)
    assert "without --namespace-too the job alone is deleted" in said.exception.message
    assert "rolebinding" not in said.exception.message, "no role of ours has that right"
    assert deletions(cluster) == []


def test_a_namespace_in_which_others_run_is_not_deleted(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    other = task_pod("worker", 0, ready())
    other["metadata"]["labels"]["app.kubernetes.io/instance"] = "faces"
    cluster.put("Pod", other)
    said = run("delete", "--job", str(DIGITS), "--namespace-too")
    assert isinstance(said.exception, ConfigurationError)
    assert "other pods run in it: digits-worker-0-x7k2p" in said.exception.message
    assert deletions(cluster) == []


def test_a_namespace_that_holds_checkpoints_of_others_is_not_deleted(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    labels = {"app.kubernetes.io/instance": "faces"}
    cluster.put(
        "PersistentVolumeClaim",
        {"metadata": {"name": "faces-checkpoints", "labels": labels}, "status": {"phase": "Bound"}},
    )
    said = run("delete", "--job", str(DIGITS), "--namespace-too")
    assert isinstance(said.exception, ConfigurationError)
    assert "it has claims of others: faces-checkpoints. Without" in said.exception.message
    assert deletions(cluster) == []


def test_pods_that_do_not_leave_keep_the_namespace_and_are_named(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("worker", 0, ready()))
    said = run("delete", "--job", str(DIGITS), "--namespace-too", "--timeout-s", "0.1")
    assert isinstance(said.exception, PeerLostError)
    assert "these pods are still there: digits-worker-0-x7k2p" in said.exception.message
    assert "train" not in deletions(cluster)
