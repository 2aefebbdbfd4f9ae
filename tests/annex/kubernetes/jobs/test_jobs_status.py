"""``ropewalk k8s status``: why each task does not run, and how the job ends."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from helpers.jobfile import DIGITS
from helpers.kubernetes.cluster import KubernetesCluster
from helpers.kubernetes.job_objects import ended, event, finish, ready, started, task_pod
from helpers.kubernetes.pod_listings import pulling, unschedulable
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.observing import follow_status


def test_the_status_says_for_every_task_why_it_does_not_run(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, unschedulable()))
    cluster.put("Pod", task_pod("ps", 0, pulling()))
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    cluster.put("Pod", task_pod("ps", 1, {**ready(3, killed), "conditions": []}))
    cluster.put("Pod", task_pod("worker", 0, ready()))
    cluster.put(
        "Event",
        event("Job", "digits-worker", "FailedCreate", "pods is forbidden: exceeded quota: team"),
    )
    cluster.put(
        "Event",
        event("Pod", "digits-ps-0", "Failed", 'Failed to pull image "ropewalk-digits:0.1.0": 404'),
    )
    said = run("status", "--job", str(DIGITS), "--json")
    assert said.exception is None, said.exception
    status = json.loads(said.output)
    assert (status["name"], status["phase"]) == ("digits", "Pending")
    tasks = {each["task"]: each for each in status["tasks"]}
    assert "nvidia.com/gpu" in tasks["chief:0"]["reason"]
    assert "lower resources.gpu" in tasks["chief:0"]["remedy"]
    assert "ropewalk-digits:0.1.0" in tasks["ps:0"]["reason"]
    assert "404" in tasks["ps:0"]["reason"]
    assert "check `image`" in tasks["ps:0"]["remedy"]
    assert (tasks["ps:1"]["state"], tasks["ps:1"]["restarts"]) == ("OOMKilled", 3)
    assert "its limit of 1Gi" in tasks["ps:1"]["reason"]
    assert tasks["worker:0"]["state"] == "Running"
    assert tasks["worker:1"]["state"] == "Missing"
    assert "exceeded quota" in tasks["worker:1"]["reason"]
    text = run("status", "--name", "digits").output
    for each in ("digits: Pending", "OOMKilled", "worker:1", "exceeded quota"):
        assert each in text


def test_a_status_that_is_watched_ends_as_the_job_does(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    shown = []

    def show(status: Any) -> None:
        shown.append(status.phase)
        if shown == ["Pending"]:
            cluster.put("Pod", task_pod("chief", 0, ready()))
        elif shown[-1] == "Running":
            cluster.put("Pod", task_pod("chief", 0, ended(4)))
            finish(cluster, "chief", "Failed", reason="PodFailurePolicy", message="exit code 4")

    status = follow_status(api, "digits", show, round_s=1)
    assert list(dict.fromkeys(shown)) == ["Pending", "Running", "Failed"]
    assert status.exit_code == 4
    assert status.reason.startswith("chief:0: exit code 4: the checkpoint is truncated")
