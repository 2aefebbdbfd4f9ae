"""What happens to pods of a running job, and what follows: the table of docs/kubernetes.md."""

import subprocess
from functools import partial
from pathlib import Path

import pytest

from helpers import processes
from helpers.kubernetes.cluster_faults import FAULTS
from helpers.kubernetes.real_cluster import RealJob, evict, kubectl
from helpers.waiting import scaled, wait_until
from ropewalk.core.exit_codes import ExitCode

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(2400),
    pytest.mark.needs("a Kubernetes cluster"),
]
# The Job's controller waits 10, 20, 40 s before it replaces a pod of the same index.
RECOVERS_S = 180.0


def has_gone_on(job: RealJob, step: int) -> bool:
    return job.step() > step + 20


@pytest.mark.parametrize(
    ("lost_pods", "recovers_s"),
    # The state object has a step every 15 s.
    [pytest.param("wait", RECOVERS_S, id="Jobs"), pytest.param("at-once", 60.0, id="StatefulSets")],
)
def test_ten_faults_of_every_role_in_turn_cost_one_pod_each_and_fail_no_job(
    job: RealJob, lost_pods: str, recovers_s: float
) -> None:
    more = f", retries: 1, status: true, lost_pods: {lost_pods}"
    job.write(more=more, changes={"24000": "1000000"})
    job.done("apply")
    job.until_running()
    wait_until(lambda: job.step() > 0, 120, "the first steps")
    for fault in FAULTS:
        pods, before, began = job.pods(), job.uids(), job.step()
        fault.happen(job.namespace, pods[fault.task])
        wait_until(partial(has_gone_on, job, began), recovers_s, f"steps after {fault}")
        job.until_running(recovers_s)
        after = job.uids()
        others = [pod for task, pod in pods.items() if task != fault.task]
        assert {pod: after.get(pod) for pod in others} == {pod: before[pod] for pod in others}, (
            f"{fault} has cost others their pods"
        )
        assert job.status()["phase"] == "Running", fault


def test_a_job_of_stateful_sets_ends_all_of_them_and_says_how(job: RealJob) -> None:
    job.write(more=", lost_pods: at-once", changes={"24000": "3000"})
    job.done("apply")
    assert job.run("status", "--watch").returncode == 0
    record = ("configmap/digits-status", "-n", job.namespace)
    kubectl("wait", "--for=jsonpath={.data.ended}=0", *record, "--timeout=60s")
    wait_until(lambda: not job.uids(), 180, "no pod is left")


def test_a_program_that_fails_ends_its_job_and_the_first_line_says_why(job: RealJob) -> None:
    job.write(more=", end_job: true", changes={"--steps, 24000": "--no-such-option, 24000"})
    job.done("apply")
    ended = job.run("status", "--watch")
    assert ended.returncode == ExitCode.USAGE
    assert job.status()["phase"] == "Failed"
    first = job.run("status").stdout.splitlines()[0]
    assert "Failed" in first
    assert "exit code 2" in first
    wait_until(lambda: "Running" not in job.states().values(), 120, "nothing runs on")


def test_a_worker_that_fails_alone_ends_the_chief_and_frees_what_the_job_held(
    job: RealJob,
) -> None:
    worker = "worker: {count: 2, "
    job.write(more=", end_job: true", changes={worker: f"{worker}arguments: [--no-such-option], "})
    job.done("apply")
    assert job.run("status", "--watch").returncode == ExitCode.USAGE
    assert "worker:" in job.run("status").stdout.splitlines()[0]
    wait_until(lambda: "Running" not in job.states().values(), 180, "nothing runs on")


def test_ps_with_replicas_are_rolled_without_a_stop(job: RealJob) -> None:
    job.write(
        more=", status: true",
        changes={"24000": "1000000", "security:": "settings: {ps_replicas: 2}\nsecurity:"},
    )
    job.done("apply")
    job.until_running()
    wait_until(lambda: job.step() > 0, 120, "the first steps")
    before, where = job.uids(), ("-n", job.namespace, "statefulset/digits-ps")
    kubectl("rollout", "restart", *where)
    kubectl("rollout", "status", *where, "--timeout=300s")
    wait_until(partial(has_gone_on, job, job.step()), 60, "steps after the rolling update")
    after = job.uids()
    stayed = {name: uid for name, uid in before.items() if "-ps-" not in name}
    assert {name: after.get(name) for name in stayed} == stayed
    assert not [name for name in before if "-ps-" in name and after.get(name) == before[name]]
    assert "the job was stopped" not in job.done("logs", "chief")


def test_a_log_is_followed_into_the_pod_that_replaces_a_ps(job: RealJob, tmp_path: Path) -> None:
    job.done("apply")
    job.until_running()
    path = tmp_path / "log"
    command = [*processes.ROPEWALK, "k8s", "logs", "-f", "ps:0"]
    with path.open("w") as output:
        follower = subprocess.Popen(
            command, cwd=job.folder, stdout=output, stderr=subprocess.DEVNULL
        )
    try:
        wait_until(lambda: path.stat().st_size > 0, 60, "its first lines")
        old = job.uids()["digits-ps-0"]
        evict(job.namespace, "digits-ps-0")
        wait_until(lambda: job.uids().get("digits-ps-0", old) != old, 120, "the next pod")
        lines = len(path.read_text().splitlines())
        wait_until(lambda: len(path.read_text().splitlines()) > lines, 120, "lines of the next pod")
        assert "unable to retrieve container logs" not in path.read_text()
        assert follower.poll() is None
    finally:
        follower.kill()
        follower.wait(scaled(30))


def test_what_cannot_come_is_freed_by_the_chief(job: RealJob) -> None:
    # The workers ask for more than any node has.
    worker = "worker: {count: 2, resources: {cpu: 100m"
    job.write(
        more=", gang: {by: chief, wait_s: 30}",
        changes={worker: worker.replace("100m", "9999")},
    )
    job.done("apply")
    assert job.run("status", "--watch").returncode == ExitCode.JOIN_TIMEOUT
    assert job.status()["phase"] == "Failed"

    def left() -> set[str]:
        return {state for state in job.states().values() if state in ("Running", "Pending")}

    wait_until(lambda: not left(), 180, "what the job held")
