"""What a chief writes of its job to Kubernetes, and what `ropewalk k8s list` makes of it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import ropewalk as rw
from helpers.jobfile import digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.connected_api import connected
from helpers.kubernetes.job_objects import finish, ready, started, task_pod
from helpers.tls_files import issued, write
from helpers.waiting import wait_until
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.kubernetes.api import KubernetesApi, connect_task
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.chiefs_pod import StatusTarget, StatusWriter, status_target
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.status_objects import check_rendered
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.server.chief.servicer import LockedJob, new_chief

CHIEF, WORKER = TaskId("chief", 0), TaskId("worker", 1)
TARGET = StatusTarget("digits-status", "digits-chief", "uid-1", "digits-chief-0-x7k2p")


def with_state() -> JobFile:
    part = digits().kubernetes.model_copy(update={"status": True})
    return digits().model_copy(update={"kubernetes": part})


@dataclass
class Writing:
    """A chief's job, and what writes its state."""

    locked_job: LockedJob
    writer: StatusWriter


@pytest.fixture
def writing(cluster: KubernetesCluster) -> Writing:
    cluster.put("ConfigMap", {"metadata": {"name": "digits-status"}})
    expected = [(CHIEF, ""), (WORKER, "")]
    locked_job, _ = new_chief(CHIEF, expected, Settings(insecure=True), "digits")
    writer = StatusWriter(
        locked_job, partial(connected, cluster, is_task=True), TARGET, look_s=0.01
    )
    return Writing(locked_job, writer)


def data(cluster: KubernetesCluster) -> dict[str, str]:
    found = cluster.get("ConfigMap", "digits-status")
    assert found is not None
    return dict(found.get("data") or {})


def events(cluster: KubernetesCluster) -> list[tuple[str, str]]:
    posts = [each.body for each in cluster.asked if each.method == "POST"]
    return [(each["reason"], each["message"]) for each in posts]


def test_a_chief_writes_its_jobs_state_and_events(
    cluster: KubernetesCluster, writing: Writing
) -> None:
    writing.writer.start()
    with writing.locked_job.open() as (job, now):
        job.register(WORKER, now=now)
    wait_until(lambda: ("Joined", "worker:1 joined") in events(cluster), 20)
    with writing.locked_job.open() as (job, _):
        writing.locked_job.last_checkpoint = "/checkpoints/digits/ckpt-7"
        job.saved_step = 7
    wait_until(lambda: data(cluster)["checkpointStep"] == "7", 20)
    with writing.locked_job.open() as (job, _):
        job.fail("worker:1 raised ValueError")
    writing.writer.stop()  # the last state is written, too
    assert data(cluster)["phase"] == "failed"
    assert data(cluster)["reason"] == "worker:1 raised ValueError"
    assert ("Checkpoint", "saved /checkpoints/digits/ckpt-7 (step 7)") in events(cluster)
    about = [each.body for each in cluster.asked if each.method == "POST"][-1]
    assert about["involvedObject"]["name"] == "digits-chief"
    assert about["involvedObject"]["uid"] == "uid-1"
    assert about["metadata"]["namespace"] == "train"
    assert {each.content_type for each in cluster.asked if each.method == "PATCH"} == {
        "application/merge-patch+json"
    }


def test_an_api_that_refuses_is_logged_once_and_disturbs_nothing(
    cluster: KubernetesCluster, writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'configmaps "digits-status" is forbidden: User "x" cannot patch resource'
    cluster.refusals = [Refused(403, text, method="PATCH") for _ in range(3)]
    writing.writer.start()
    wait_until(lambda: data(cluster).get("phase") == "running", 20)
    writing.writer.stop()
    said = [each.message for each in caplog.records if "not written to Kubernetes" in each.message]
    assert len(said) == 1
    assert "cannot patch resource" in said[0]


def test_a_pod_without_an_account_or_an_api_ends_in_time(
    writing: Writing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    account = tmp_path / "account"
    write(account, issued())
    (account / "token").write_text("a-token\n")
    for folder in (account, tmp_path / "none"):
        connect = partial(connect_task, folder=folder)
        writer = StatusWriter(writing.locked_job, connect, TARGET, look_s=0.01)
        writer.start()
        began = time.monotonic()
        writer.stop()
        assert time.monotonic() - began < 8
    assert "this pod has no service account" in caplog.text


def test_the_state_of_a_job_that_was_trained_is_done(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("ConfigMap", {"metadata": {"name": "digits-status"}})
    monkeypatch.setenv("ROPEWALK_STATUS_OBJECT", "digits-status")

    def writer(locked_job: LockedJob) -> StatusWriter:
        return StatusWriter(locked_job, partial(connected, cluster), TARGET, look_s=0.05)

    monkeypatch.setattr("ropewalk.annexes.kubernetes.chiefs_pod.status_writer", writer)

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            rw.Variable(np.zeros(2, np.float32), name="w")

    with rw.testing.LocalCluster(workers=1, ps=1) as local:
        local.run(train)
    assert data(cluster)["phase"] == "done"
    assert events(cluster)[-1][0] == "JobDone"


@pytest.mark.annex("replication")
@pytest.mark.parametrize("is_kept", [False, True], ids=["no model_dir", "model_dir"])
def test_a_job_of_which_no_record_is_kept_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_kept: bool
) -> None:
    said: list[str] = []

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            rw.Variable(np.zeros(2, np.float32), name="w")
        status = local.status()
        assert status is not None
        said.append(status.reason)

    kept: dict[str, Any] = {"model_dir": str(tmp_path)} if is_kept else {}
    with rw.testing.LocalCluster(workers=0, ps=2, ps_replicas=2, **kept) as local:
        local.run(train)
    costs = "there is no model_dir to keep a record of who leads which share"
    assert said[0].startswith(costs) is not is_kept
    assert (costs in caplog.text) is not is_kept


def test_only_a_pod_that_is_told_to_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWALK_STATUS_OBJECT", raising=False)
    monkeypatch.setenv("POD_NAMESPACE", "train")
    assert status_target() is None
    monkeypatch.setenv("ROPEWALK_STATUS_OBJECT", "digits-status")
    found = status_target()
    assert found is not None
    assert found.name == "digits-status"


def test_the_account_of_a_chief_may_change_one_object_and_make_events() -> None:
    documents = {each["kind"]: each for each in manifests(with_state())}
    assert documents["Role"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["digits-status"],
            "verbs": ["patch"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    jobs = [each for each in manifests(with_state()) if each["kind"] in ("Job", "StatefulSet")]
    mounts = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for each in jobs
    }
    assert mounts.pop("digits-chief") is True
    assert set(mounts.values()) == {False}
    chief = next(each for each in jobs if each["metadata"]["name"] == "digits-chief")
    env = {each["name"]: each for each in chief["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["ROPEWALK_STATUS_OBJECT"]["value"] == "$(ROPEWALK_JOB_ID)-status"
    # Kubernetes expands variables that stand before.
    assert list(env).index("ROPEWALK_JOB_ID") < list(env).index("ROPEWALK_STATUS_OBJECT")


def test_a_chief_that_ends_its_job_may_do_that_and_nothing_else() -> None:
    part = digits().kubernetes.model_copy(update={"end_job": True})
    made = manifests(digits().model_copy(update={"kubernetes": part}))
    documents = {each["kind"]: each for each in made}
    assert "ConfigMap" not in documents
    assert documents["Role"]["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": ["digits-ps"],
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": ["digits-worker", "digits-evaluator"],
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": ["digits-chief", "digits-worker"],
            "verbs": ["get"],
        },
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "resourceNames": ["digits-ps-0", "digits-ps-1"],
            "verbs": ["get"],
        },
    ]
    assert documents["RoleBinding"]["subjects"][0]["name"] == "digits-chief"
    chief = next(
        each
        for each in made
        if each["metadata"]["name"] == "digits-chief" and each["kind"] == "Job"
    )
    spec = chief["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert env["ROPEWALK_ENDS_JOB"] == "true"
    assert "ROPEWALK_STATUS_OBJECT" not in env


def test_an_account_that_is_named_gets_the_rights_and_is_not_made() -> None:
    part = with_state().kubernetes.model_copy(update={"pod": {"serviceAccountName": "trainer"}})
    made = manifests(with_state().model_copy(update={"kubernetes": part}))
    assert [each["kind"] for each in made[:3]] == ["ConfigMap", "Role", "RoleBinding"]
    assert made[2]["subjects"][0]["name"] == "trainer"
    (leader,) = (
        each
        for each in made
        if each["metadata"]["name"] == "digits-chief" and each["kind"] == "Job"
    )
    assert leader["spec"]["template"]["spec"]["serviceAccountName"] == "trainer"


def test_the_namespace_reaches_the_account_and_delete_takes_all_of_it(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result]
) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.namespace"):
        check_rendered(with_state())
    apply_job(api, with_state())
    binding = cluster.get("RoleBinding", "digits-status")
    assert binding is not None
    assert binding["subjects"][0]["namespace"] == "train"
    run("delete", "--name", "digits", "--checkpoints")
    assert {kind for kind, _ in cluster.names()} == {"StorageClass"}


def test_the_jobs_of_a_namespace_are_listed_with_their_numbers(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ready()))
    labels = {
        "app.kubernetes.io/name": "ropewalk",
        "app.kubernetes.io/instance": "digits",
        "app.kubernetes.io/component": "status",
    }
    numbers = {
        "step": "1200",
        "goalSteps": "3000",
        "stepsPerSecond": "85.2",
        "checkpointStep": "1000",
    }
    state = {"metadata": {"name": "digits-status", "labels": labels}, "data": numbers}
    cluster.put("ConfigMap", state)
    said = run("list")
    assert said.exception is None, said.exception
    line = said.output.splitlines()[-1].split()
    assert line[:3] == ["digits", "Running", "1/6"]
    assert line[4:] == ["1200/3000", "85.2", "1000"]
    (row,) = json.loads(run("list", "--json").output)
    assert (row["phase"], row["progress"]["step"]) == ("Running", "1200")
    headline = run("status", "--name", "digits").output.splitlines()[0].strip()
    assert headline == ("digits: Running: step 1200 of 3000, 85.2 steps/s, checkpoint at step 1000")
    finish(cluster, "chief")
    assert json.loads(run("list", "--json").output)[0]["phase"] == "Done"


def test_a_namespace_without_jobs_and_one_that_is_not_there_are_told_apart(
    run: Callable[..., Result],
) -> None:
    assert run("list").output == "there are no jobs in namespace train\n"
    assert "no namespace typo" in str(run("list", "-n", "typo").exception)
