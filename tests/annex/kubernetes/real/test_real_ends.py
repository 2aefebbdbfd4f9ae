"""What a job leaves and what others see of it; code without an image; one object; a desk."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from helpers import processes
from helpers.kubernetes.real_cluster import IMAGE, RealJob, kubectl, output_of
from helpers.waiting import scaled, wait_until
from ropewalk.core.exit_codes import ExitCode

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(1200),
    pytest.mark.needs("a Kubernetes cluster"),
]
SHORT = {"--steps, 24000": "--steps, 500"}
OWN_PROGRAM = """\
import ropewalk as rw
from beside import SIZE
import numpy as np

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(SIZE, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
while strategy.global_step < 50:
    strategy.run(lambda: optimizer.apply_gradients([(np.ones(SIZE, np.float32), w)]))
print("the code came from a desk:", open("data.txt").read().strip())
"""


def test_the_kernels_of_the_image_are_used_in_a_pod(namespace: str) -> None:
    assert ", 0 compiled, in " in output_of(namespace, "ropewalk", "warm-kernels")


def test_a_job_that_is_done_leaves_nothing_running_and_says_what_it_did(job: RealJob) -> None:
    job.write(more=", status: true, end_job: true, keep_s: 90", changes=SHORT)
    job.done("apply")
    job.done("status", "--watch")
    where = ("-n", job.namespace)
    replicas = ("get", "statefulset/digits-ps", *where, "-o", "jsonpath={.spec.replicas}")
    wait_until(lambda: kubectl(*replicas) == "0", 60, "the ps are scaled to none")
    running = ("get", "pods", *where, "--field-selector", "status.phase=Running", "-o", "name")
    wait_until(lambda: not kubectl(*running).startswith("pod/"), 120, "no pod runs")
    record = json.loads(kubectl("get", "configmap/digits-status", *where, "-o", "json"))["data"]
    assert record["phase"] == "done"
    assert int(record["step"]) >= 500
    events = kubectl("get", "events", *where, "-o", "jsonpath={.items[*].reason}").split()
    assert {"Joined", "Checkpoint", "JobDone"} <= set(events)
    [row] = json.loads(job.done("list", "--json", *where))
    assert (row["name"], row["phase"]) == ("digits", "Done")
    refused = job.run("apply")
    assert refused.returncode == ExitCode.USAGE
    assert "digits is done, and applying it again starts nothing; with --replace" in refused.stderr
    gone = ("get", "jobs", *where, "-o", "name")
    wait_until(lambda: "job" not in kubectl(*gone), 240, "Jobs that have ended are deleted")


def test_a_job_that_failed_is_replaced_when_that_is_asked_for(job: RealJob) -> None:
    job.write(changes={"--steps, 24000": "--no-such-option, 24000"})
    job.done("apply")
    assert job.run("status", "--watch").returncode == ExitCode.USAGE
    refused = job.run("apply")
    assert refused.returncode == ExitCode.USAGE
    assert "digits has failed" in refused.stderr
    assert "--replace" in refused.stderr
    job.write(changes=SHORT)
    job.done("apply", "--replace")
    job.done("status", "--watch")


def test_what_is_not_there_is_said_within_seconds(
    job: RealJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = job.run("status", "--name", "digits", "-n", "no-such-namespace")
    assert missing.returncode == ExitCode.NOT_FOUND
    server = "https://127.0.0.1:1"
    config = tmp_path / "nowhere"
    monkeypatch.setenv("KUBECONFIG", str(config))
    for words in (
        ("set-cluster", "nowhere", f"--server={server}"),
        ("set-context", "nowhere", "--cluster=nowhere"),
        ("use-context", "nowhere"),
    ):
        kubectl("config", *words)
    began = time.monotonic()
    refused = job.run("status", "--name", "digits", "-n", job.namespace)
    assert refused.returncode == ExitCode.PEER_LOST
    assert f"the Kubernetes API server at {server} cannot be reached" in refused.stderr
    assert "MaxRetryError" not in refused.stderr
    assert time.monotonic() - began < scaled(15)


def test_code_from_a_desk_runs_in_an_image_that_does_not_have_it(job: RealJob) -> None:
    folder = job.folder / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN_PROGRAM)
    (folder / "beside.py").write_text("SIZE = 4\n")
    (folder / "data.txt").write_text("whole\n")
    arguments = 'arguments: [--steps, 24000, --pause-s, "0.02"]\n'
    job.write(changes={"program: train.py\n": "program: mine.py\n", arguments: ""})
    job.done("apply", "--code", "project")
    job.done("status", "--watch")
    assert "the code came from a desk: whole" in job.done("logs", "chief")
    maps = ("get", "configmaps", "-n", job.namespace, "-o", "name")
    before = kubectl(*maps)
    assert "digits-code-" in before
    (folder / "data.txt").write_text("other\n")
    job.done("apply", "--code", "project", "--replace")
    job.done("status", "--watch")
    assert "the code came from a desk: other" in job.done("logs", "chief")
    assert kubectl(*maps).count("digits-code-") == 1
    job.done("delete")
    assert "digits-code-" not in kubectl(*maps)


@pytest.mark.needs("JobSet's controller")
def test_a_job_file_trains_as_a_jobset(job: RealJob) -> None:
    job.write(more=", status: true", changes=SHORT)
    job.done("apply", "--as", "jobset")
    job.done("status", "--watch")
    assert "accuracy of the chief's last values" in job.done("logs", "chief")
    assert "JobSet digits deleted" in job.done("delete", "--checkpoints")
    pods = ("get", "pods", "-n", job.namespace, "-o", "name")
    wait_until(lambda: "pod/" not in kubectl(*pods), 180, "its pods")


def test_a_program_at_a_desk_connects_to_a_standing_cluster_and_sends_another(
    namespace: str, tmp_path: Path
) -> None:
    name, _, tag = IMAGE.rpartition(":")
    folder = tmp_path / "overlay"
    folder.mkdir()
    relative = "/".join([".."] * len(folder.parts[1:]))  # kustomize takes no absolute paths
    (folder / "kustomization.yaml").write_text(
        f"resources: [{relative}{processes.ROOT}/deploy/k8s/overlays/standalone]\n"
        f"images: [{{name: ropewalk-digits, newName: '{name}', newTag: '{tag}'}}]\n"
    )
    kubectl("apply", "-n", namespace, "-k", str(folder))
    ready = ("wait", "-n", namespace, "--for=condition=Ready", "pods", "--all", "--timeout=300s")
    wait_until(lambda: "condition met" in kubectl(*ready, check=False, limit_s=360), 360, "pods")
    forward = subprocess.Popen(
        ["kubectl", "port-forward", "-n", namespace, "job/desk-chief", ":2222"],  # noqa: S607
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert forward.stdout is not None
        address = forward.stdout.readline().split(" -> ")[0].rpartition(" ")[2]
        (tmp_path / "connect.py").write_text(
            "import ropewalk as rw\n"
            f"with rw.connect({address!r}, settings={{'insecure': True}}) as at:\n"
            "    print('connected', at.job)\n"
        )
        (tmp_path / "send.py").write_text(OWN_PROGRAM)
        (tmp_path / "beside.py").write_text("SIZE = 4\n")
        (tmp_path / "data.txt").write_text("whole\n")
        connect = [processes.ROPEWALK[0], str(tmp_path / "connect.py")]
        send = [*processes.ROPEWALK, "submit", "send.py", "--cluster", address, "--insecure"]
        for command, wanted in ((connect, "connected"), (send, "came from a desk: whole")):
            code, output, errors = processes.run(
                command, timeout_s=scaled(240), cwd=tmp_path, env=os.environ
            )
            assert code == 0, errors
            assert wanted in output
    finally:
        forward.kill()
        forward.wait()
