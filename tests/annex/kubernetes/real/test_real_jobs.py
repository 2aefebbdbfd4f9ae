"""A job file and the overlay ``dev``, from their first object to their last."""

import json
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from helpers import processes
from helpers.kubernetes.real_cluster import IMAGE, STEPS, RealJob, evict, kubectl
from helpers.waiting import scaled, wait_until

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(1800),
    pytest.mark.needs("a Kubernetes cluster"),
]


def dev_overlay(folder: Path) -> Path:
    """``overlays/dev`` with the image of this run and more steps, as kustomize takes it."""
    name, _, tag = IMAGE.rpartition(":")
    relative = "/".join([".."] * len(folder.parts[1:]))  # kustomize takes no absolute paths
    (folder / "kustomization.yaml").write_text(
        f"resources: [{relative}{processes.ROOT}/deploy/k8s/overlays/dev]\n"
        f"images: [{{name: ropewalk-digits, newName: '{name}', newTag: '{tag}'}}]\n"
        "patches:\n"
        "- target: {kind: Job, name: digits-(chief|worker)}\n"
        "  patch: |\n"
        "    - op: replace\n"
        "      path: /spec/template/spec/containers/0/args\n"
        f"      value: [train.py, --, --steps, '{STEPS}', --pause-s, '0.02']\n"
    )
    return folder


def test_a_job_is_applied_scaled_disrupted_followed_and_deleted(job: RealJob) -> None:
    job.done("apply", "--dry-run")
    job.done("apply")
    wait_until(lambda: job.status()["phase"] != "Pending", 300, "the first pods")
    followed: list[str] = []
    follower = threading.Thread(target=lambda: followed.append(job.done("logs", "-f", "chief")))
    follower.start()
    wait_until(lambda: job.states().get("worker:1") == "Running", 300, "the second worker")
    assert "worker:3 runs" in job.done("scale", "4")
    job.write(changes={"worker: {count: 2": "worker: {count: 3"})
    job.done("apply")  # the file says another number, which counts again
    wait_until(lambda: "worker:3" not in job.states(), 60, "the fourth worker leaves")
    assert "worker:1 has left" in job.done("scale", "1")
    wait_until(lambda: "worker:3" not in job.states(), 60, "the last of its pods")
    job.done("status", "--watch")
    follower.join()
    (log,) = followed
    saved = [line for line in log.splitlines() if "| saved" in line or " saved " in line]
    assert len(saved) == len(set(saved))
    assert "accuracy of the chief's last values: 0.9" in log

    # A ps that is evicted comes back under its name.
    evict(job.namespace, "digits-ps-0")
    wait_until(lambda: job.states()["ps:0"] == "Running", 120)

    job.done("delete", "--checkpoints")
    left = partial(kubectl, "get", "all,pvc", "-n", job.namespace)
    wait_until(lambda: "No resources" in left(), 180)


def test_a_change_that_is_refused_leaves_the_job_alone_and_a_namespace_goes_with_its_job(
    job: RealJob,
) -> None:
    job.done("apply")
    wait_until(lambda: "digits: Running" in job.run("status").stdout, 300)
    before = job.uids()
    job.write(changes={IMAGE: "registry.invalid/none:1"})
    refused = job.run("apply")
    assert refused.returncode == 2
    assert "nothing was changed" in refused.stderr
    assert "--replace" in refused.stderr
    assert len(refused.stderr) < 1000
    assert job.uids() == before
    assert f"Namespace {job.namespace} deleted" in job.done("delete", "--namespace-too")
    assert job.run("status").returncode == 9


def test_what_cannot_start_says_why(job: RealJob) -> None:
    def reasons() -> str:
        return job.run("status").stdout

    job.write(changes={IMAGE: "registry.invalid/none:1", "100m": "99999"})
    job.done("apply")
    wait_until(lambda: "Insufficient cpu" in reasons(), 120)
    assert "lower resources" in reasons()
    job.done("delete")
    job.write(changes={IMAGE: "registry.invalid/none:1"})
    wait_until(lambda: job.run("apply").returncode == 0, 120)
    wait_until(lambda: "registry.invalid/none:1" in reasons(), 180)
    assert "check `image`" in reasons()


def test_the_dev_overlay_trains_is_scaled_and_outlives_an_eviction(
    namespace: str, tmp_path: Path
) -> None:
    overlay = str(dev_overlay(tmp_path))
    kubectl("apply", "-n", namespace, "-k", overlay)

    def field(of: str, path: str) -> str:
        return kubectl("get", "-n", namespace, of, "-o", f"jsonpath={{{path}}}", check=False)

    def scale(count: int) -> None:
        spec = {"parallelism": count, "completions": count}
        patch = json.dumps({"spec": spec})
        kubectl("patch", "-n", namespace, "job/digits-worker", "--type=merge", "-p", patch)

    def is_ready(job: str, count: int) -> bool:
        return field(f"job/digits-{job}", ".status.ready") == str(count)

    wait_until(lambda: is_ready("chief", 1) and is_ready("worker", 2), 300, "the first pods")
    with (tmp_path / "log").open("w") as output:
        command = [*processes.ROPEWALK, "k8s", "logs", "-f", "chief"]
        follower = subprocess.Popen(
            [*command, "--name", "digits", "-n", namespace], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            for count in (4, 1):
                scale(count)
                wait_until(partial(is_ready, "worker", count), 180, f"{count} workers")
            evict(namespace, "digits-ps-0")  # the chief saves, all start anew and go on
            # The chief waits a minute for the worker that has left, and as long at the end.
            complete = ("--for=condition=complete", "--timeout=900s", "job/digits-chief")
            kubectl("wait", "-n", namespace, *complete, limit_s=960)
            assert follower.wait(scaled(120)) == 0
        finally:
            follower.kill()
            follower.wait()
    log = (tmp_path / "log").read_text()  # before and after the eviction, of one pod
    assert log.count("accuracy of the chief's last values: 0.9") == 1, log[-4000:]
    assert log.count(" saved ") >= 2, log[-4000:]
    kubectl("delete", "-n", namespace, "-k", overlay)
    wait_until(lambda: "No resources" in kubectl("get", "all,pvc", "-n", namespace), 180)
