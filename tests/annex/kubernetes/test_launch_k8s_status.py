"""What is said of a job on Kubernetes, from objects as the API lists them. Pure."""

from datetime import UTC, datetime
from typing import Any

import pytest

from helpers.jobfile import digits
from helpers.kubernetes.job_objects import CREATED, ended, event, ready, task_pod
from helpers.kubernetes.pod_listings import Listed, evicted, pulling, unschedulable
from ropewalk.annexes.kubernetes.job_status import ClusterStatus, Observed, TaskLine, job_status
from ropewalk.annexes.kubernetes.k8s_commands import headline
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.pod_state import pod_state

NOW = datetime(2026, 11, 20, 10, 1, 15, tzinfo=UTC)


def owners(**conditions: str) -> tuple[list[Listed], list[Listed]]:
    """(Jobs, StatefulSets) of the digits; ``chief="Complete"`` has ended so."""
    jobs, sets = [], []
    for each in manifests(digits()):
        role = each["metadata"]["labels"]["app.kubernetes.io/component"]
        if role in conditions:
            condition = {"type": conditions[role], "status": "True", "reason": "R", "message": "m"}
            each["status"] = {"conditions": [condition]}
        if each["kind"] == "Job":
            jobs.append(each)
        if each["kind"] == "StatefulSet":
            sets.append(each)
    return jobs, sets


def status(pods: list[Listed] = (), events: list[Listed] = (), **conditions: str) -> ClusterStatus:  # type: ignore[assignment]
    jobs, sets = owners(**conditions)
    return job_status("digits", Observed(jobs, sets, pods, events), NOW)


def line(found: ClusterStatus, task: str) -> TaskLine:
    return next(each for each in found.tasks if each.task == task)


def test_every_task_has_a_line_before_it_has_a_pod() -> None:
    found = status()
    assert [each.task for each in found.tasks] == [
        "chief:0", "ps:0", "ps:1", "worker:0", "worker:1", "evaluator:0",
    ]  # fmt: skip
    assert {each.state for each in found.tasks} == {"Missing"}
    assert (found.phase, found.exit_code, found.is_over) == ("Pending", None, False)


def test_a_job_that_is_not_there_is_absent() -> None:
    found = job_status("digits", Observed(), NOW)
    assert found.phase == "Absent"
    assert headline(found).startswith("digits: Absent: there is no such job here")


def waiting(reason: str, message: str = "", last: Listed | None = None) -> Listed:
    """A container that does not run, and how it ended before."""
    container: Listed = {
        "name": "ropewalk",
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    if last:
        container["lastState"] = {"terminated": last}
    return {"phase": "Pending", "containerStatuses": [container]}


CASES: list[Any] = [
    ("unschedulable", unschedulable(), [], "Pending", "Insufficient nvidia.com/gpu",
     "lower resources.gpu"),
    ("no memory", {"phase": "Pending"}, [("FailedScheduling", "0/3 nodes are available: 3 "
     "Insufficient memory.")], "Pending", "FailedScheduling: 0/3 nodes", "lower resources"),
    ("claim", {"phase": "Pending"}, [("FailedScheduling", "0/3 nodes: pod has unbound immediate "
     "PersistentVolumeClaims")], "Pending", "unbound immediate", "`kubectl describe pvc -n train`"),
    ("no image", pulling(), [("Failed", "Failed to pull image: 401 Unauthorized")], "Pending",
     "ImagePullBackOff", "image_pull_secrets"),
    ("no secret", {"phase": "Pending", "containerStatuses": [{"name": "ropewalk", "state":
     {"waiting": {"reason": "ContainerCreating"}}}]}, [("FailedMount", 'MountVolume.SetUp failed: '
     'secret "digits-ps-tls" not found')], "Pending", 'secret "digits-ps-tls" not found',
     "make the Secret"),
    ("OOM, restarting", {"phase": "Running", "containerStatuses": [{"name": "ropewalk",
     "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState":
     {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}, [], "OOMKilled",
     "its limit of 1Gi", "resources.memory"),
    ("OOM, failed", ended(137, "OOMKilled"), [], "OOMKilled", "its limit of 1Gi",
     "resources.memory"),
    ("OOM, running again", ready(1, {"exitCode": 137, "reason": "OOMKilled"}), [], "Running",
     "was restarted: it used more memory", "resources.memory"),
    ("own failure", ended(1), [], "Failed", "exit code 1: the user's program raised",
     "its log says why"),
    ("peer lost", ended(138), [], "Failed", "exit code 138: a peer", "it is tried again"),
    ("evicted", evicted(), [], "Failed", "Evicted: The node was low on resource",
     "it is tried again"),
    ("a Secret without a key", waiting("CreateContainerConfigError", "couldn't find key secret-key "
     "in Secret train/bucket"), [], "Pending", "couldn't find key", "make the Secret"),
    ("no ConfigMap of variables", waiting("CreateContainerConfigError",
     'configmap "experiment" not found'), [], "Pending", "not found", "make the ConfigMap"),
    ("no ConfigMap of code", waiting("ContainerCreating"), [("FailedMount", "MountVolume.SetUp "
     'failed for volume "code" : configmap "digits-code-1-0" not found')], "Pending",
     "digits-code-1-0", "make the ConfigMap"),
    ("root", waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run "
     "as root"), [], "Pending", "will run as root", "a user that is not root"),
    ("a volume that one node mounts", waiting("ContainerCreating"), [("FailedAttachVolume",
     'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) digits-ps-0')],
     "Pending", "Multi-Attach error", "storage.access ReadWriteMany"),
    ("a volume that cannot be mounted", waiting("ContainerCreating"), [("FailedMount",
     'MountVolume.SetUp failed for volume "pvc-1" : mount failed: exit status 32')], "Pending",
     "exit status 32", "`kubectl describe pvc -n train`"),
    ("a selector without nodes", {"phase": "Pending"}, [("FailedScheduling", "0/3 nodes are "
     "available: 3 node(s) didn't match Pod's node affinity/selector.")], "Pending",
     "node affinity/selector", "kubernetes.pod.nodeSelector"),
    ("ended again and again", {**waiting("CrashLoopBackOff", "back-off 40s "
     "restarting failed container", {"exitCode": 8, "message": "ACCESS (8): the CA is another"})},
     [("BackOff", "Back-off restarting failed container")], "Failed",
     "exit code 8: ACCESS (8): the CA is another", "its log says why"),
    ("preempted", {**ended(143), "conditions": [{"type": "DisruptionTarget", "status": "True",
     "reason": "PreemptionByScheduler", "message": "preempting to accommodate a higher priority "
     "pod"}]}, [], "Preempted", "PreemptionByScheduler",
     "nothing: it is tried again"),
    ("starting", {"phase": "Running", "containerStatuses": [{"name": "ropewalk", "state":
     {"running": {}}}]}, [], "Starting", "its port does not answer yet", ""),
    ("starting again", {"phase": "Running", "containerStatuses": [{"name": "ropewalk", "state":
     {"running": {}}, "lastState": {"terminated": {"exitCode": 8, "message": "ACCESS (8): no"}}}]},
     [], "Starting", "does not answer yet; was restarted: exit code 8: ACCESS (8): no", ""),
    ("waiting for replicas", {"phase": "Running", "containerStatuses": [{"name": "ropewalk",
     "started": True, "state": {"running": {}}}], "asks": "replicated"}, [], "Starting",
     "ready once each share has its replicas again", ""),
    ("starting again in place", {"phase": "Running", "containerStatuses": [{"name": "ropewalk",
     "started": True, "state": {"running": {}}}]}, [("Unhealthy", "Readiness probe failed: "
     "timeout")], "Running", "its task starts again, or ends", ""),
    ("ended, and its pod not yet", {"phase": "Running", "containerStatuses": [{"name": "ropewalk",
     "started": False, "state": {"terminated": {"exitCode": 0}}}]}, [("Unhealthy", "Readiness "
     "probe failed")], "Done", "", ""),
    ("waiting to answer", {"phase": "Running", "containerStatuses": [{"name": "ropewalk",
     "started": False, "state": {"running": {}}}], "asks": "replicated"}, [], "Starting",
     "its port does not answer yet", ""),
    ("running", ready(), [], "Running", "", ""),
    ("done", ended(0), [], "Done", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of_pod", "events", "state", "reason", "remedy"),
    [each[1:] for each in CASES],
    ids=[each[0] for each in CASES],
)
def test_a_pod_says_what_it_does_and_why(
    of_pod: Listed, events: list[tuple[str, str]], state: str, reason: str, remedy: str
) -> None:
    pod = task_pod("ps", 0, of_pod)
    probe = {"grpc": {"port": 2223, "service": of_pod.get("asks", "readiness")}}
    pod["spec"]["containers"][0]["readinessProbe"] = probe
    about = [event("Pod", "digits-ps-0", *each) for each in events]
    found = pod_state(pod, about)
    assert found.state == state
    assert reason in found.reason
    assert remedy in found.remedy
    if not remedy:
        assert found.remedy == ""


CONTAINERD = (
    'failed to pull and unpack image "docker.io/library/ropewalk-digits:9": failed to resolve '
    'reference "docker.io/library/ropewalk-digits:9": '
)
PULLS: list[Any] = [
    ("not found", 'Back-off pulling image "x:9": ErrImagePull: rpc error: code = NotFound desc = '
     f"{CONTAINERD}docker.io/library/ropewalk-digits:9: not found", "",
     "docker.io/library/ropewalk-digits:9: not found"),
    ("no such host", 'Back-off pulling image "x:9"', 'Failed to pull image "x:9": rpc error: code '
     f'= Unknown desc = {CONTAINERD}failed to do request: Head "https://registry.invalid/v2/x": '
     "dial tcp: lookup registry.invalid on 10.96.0.10:53: no such host",
     'Head "https://registry.invalid/v2/x": dial tcp: lookup registry.invalid on 10.96.0.10:53: '
     "no such host"),
    ("not allowed", 'Back-off pulling image "x:9"', f"Failed to pull image \"x:9\": {CONTAINERD}"
     "pull access denied, repository does not exist or may require authorization: server message: "
     "insufficient_scope: authorization failed", "authorization failed"),
    ("never", "Container image \"x:9\" is not present with pull policy of Never", "",
     "is not present with pull policy of Never"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "of_event", "cause"), [each[1:] for each in PULLS], ids=[each[0] for each in PULLS]
)
def test_an_image_that_cannot_be_pulled_says_its_cause(
    message: str, of_event: str, cause: str
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": message}
    containers = [{"name": "ropewalk", "state": {"waiting": waiting}}]
    pod = task_pod("ps", 0, {"phase": "Pending", "containerStatuses": containers})
    events = [event("Pod", "digits-ps-0", "Failed", of_event)] if of_event else []
    events.append(event("Pod", "digits-ps-0", "BackOff", 'Back-off pulling image "x:9"'))
    found = pod_state(pod, events)
    assert found.reason.startswith("ImagePullBackOff: image ropewalk-digits:0.1.0: ")
    assert found.reason.endswith(cause)
    assert "rpc error" not in found.reason


def test_a_pod_that_has_its_node_no_longer_waits_for_one() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    waiting = {"reason": "ContainerCreating"}
    containers = [{"name": "ropewalk", "state": {"waiting": waiting}}]
    of_pod = {"phase": "Pending", "conditions": [scheduled], "containerStatuses": containers}
    stale = event("Pod", "digits-ps-0", "FailedScheduling", "0/1 nodes: Insufficient cpu")
    found = pod_state(task_pod("ps", 0, of_pod), [stale])
    assert found.reason == "ContainerCreating"
    assert found.remedy == ""


def test_what_a_container_wrote_as_its_last_words_is_the_reason() -> None:
    of_pod = ended(2)
    terminated = of_pod["containerStatuses"][0]["state"]["terminated"]
    terminated["message"] = (
        "usage: train.py [--steps N]\ntrain.py: error: no such option: --stepz\n"
    )
    found = pod_state(task_pod("chief", 0, of_pod))
    assert found.reason == "exit code 2: train.py: error: no such option: --stepz"


def failed_pod(
    failures: int, code: int = 138, more: Listed | None = None, **of_job: Any
) -> TaskLine:
    """worker:0, which ended at 10:01:00 after so many failures, and its Job."""
    of_pod = ended(code)
    terminated = of_pod["containerStatuses"][0]["state"]["terminated"]
    terminated["finishedAt"] = "2026-11-20T10:01:00Z"
    count = {"batch.kubernetes.io/job-index-failure-count": str(failures)}
    pod = task_pod("worker", 0, of_pod, annotations=count, **(more or {}))
    jobs, sets = owners()
    worker = next(each for each in jobs if each["metadata"]["name"] == "digits-worker")
    worker["spec"]["backoffLimitPerIndex"] = 10
    worker["status"] = of_job
    return line(job_status("digits", Observed(jobs, sets, [pod]), NOW), "worker:0")


@pytest.mark.parametrize(
    ("failures", "of_job", "said"),
    [
        (0, {}, "it is tried again now (retry 1 of 10)"),  # after 10 s, and 15 have passed
        (2, {}, "it is tried again in 25s (retry 3 of 10)"),
        (10, {"failedIndexes": "0"}, "it is not tried again: its retries are used up (10)"),
        (
            3,
            {"conditions": [{"type": "FailureTarget", "status": "True"}]},
            "it is not tried again: its Job has failed",
        ),
    ],
    ids=["first", "third", "index failed", "job fails"],
)
def test_a_task_that_failed_says_when_it_is_tried_again(
    failures: int, of_job: dict[str, Any], said: str
) -> None:
    assert failed_pod(failures, **of_job).remedy == said


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "Failed"),
        ({"deletionTimestamp": CREATED}, "Leaving"),
    ],
    ids=["its container was asked", "deleted, and kept by its Job"],
)
def test_a_task_that_was_asked_to_stop_counts_as_no_failure_and_says_when_it_comes_back(
    more: Listed, state: str
) -> None:
    found = failed_pod(2, 143, more)
    assert found.state == state
    assert found.remedy == "it is tried again in 25s (this counts as no failure)"


def test_a_plain_back_off_limit_counts_the_pods_of_the_job() -> None:
    pod = task_pod("chief", 0, ended(138))
    jobs, sets = owners()
    chief = next(each for each in jobs if each["metadata"]["name"] == "digits-chief")
    chief["spec"].pop("backoffLimitPerIndex", None)
    chief["spec"]["backoffLimit"] = 4
    chief["status"] = {"failed": 2}
    found = line(job_status("digits", Observed(jobs, sets, [pod]), NOW), "chief:0")
    assert found.remedy == "it is tried again (retry 2 of 4)"


def test_a_pod_that_is_asked_to_stop_is_leaving() -> None:
    found = pod_state(task_pod("worker", 0, ready(), deletionTimestamp=CREATED))
    assert found.state == "Leaving"


@pytest.mark.parametrize(
    ("until", "said", "remedy"),
    [
        ("2026-11-20T10:01:10Z", "saves and leaves within its grace period", ""),
        ("2026-11-20T10:00:50Z", "node node-1 does not say", "`kubectl delete node node-1`"),
    ],
    ids=["in time", "its node does not answer"],
)
def test_a_pod_that_does_not_leave_names_its_node(until: str, said: str, remedy: str) -> None:
    pod = task_pod("chief", 0, ready(), deletionTimestamp=until)
    found = line(status([pod]), "chief:0")
    assert found.state == "Leaving"
    assert said in found.reason
    assert remedy in found.remedy
    assert bool(found.remedy) == bool(remedy)


def test_the_newest_pod_of_a_task_counts_and_the_others_are_its_restarts() -> None:
    pods = [
        task_pod("worker", 0, ready(), tail="bbbbb", creationTimestamp="2026-11-20T10:01:00Z"),
        task_pod("worker", 0, ended(138), tail="aaaaa"),
    ]
    found = line(status(pods), "worker:0")
    assert (found.state, found.pod, found.restarts) == ("Running", "digits-worker-0-bbbbb", 1)
    assert found.age_s == 15
    assert found.node == "node-1"


def test_the_newest_event_counts() -> None:
    events = [
        event("Pod", "digits-ps-0", "FailedScheduling", "new", "2026-11-20T10:01:00Z"),
        event("Pod", "digits-ps-0", "FailedScheduling", "old", "2026-11-20T10:00:00Z"),
    ]
    found = line(status([task_pod("ps", 0, {"phase": "Pending"})], events), "ps:0")
    assert found.reason == "FailedScheduling: new"


def test_the_leaders_job_decides_and_not_what_pods_look_like() -> None:
    running = [task_pod("chief", 0, ready())]
    assert status(running).phase == "Running"
    assert status(running, chief="Complete").phase == "Done"
    # All pods have ended well, and nobody has said that the job is done.
    assert status([task_pod("chief", 0, ended(0))]).phase == "Running"
    assert status([task_pod("worker", 0, ended(0))], worker="Complete").phase == "Pending"


def test_a_failure_names_the_task_with_a_failure_of_its_own() -> None:
    pods = [task_pod("worker", 0, ended(138)), task_pod("worker", 1, ended(4))]
    found = status(pods, worker="Failed")
    assert (found.phase, found.exit_code) == ("Failed", 4)
    assert found.reason.startswith("worker:1: exit code 4: the checkpoint is truncated")
    nobody = status(worker="Failed")
    assert (nobody.phase, nobody.reason, nobody.exit_code) == ("Failed", "R: m", 1)


@pytest.mark.parametrize(
    ("others", "blamed", "code"),
    [
        pytest.param(
            [task_pod("worker", 0, ended(143)), task_pod("worker", 1, ended(1))],
            "worker:1: exit code 1",
            1,
            id="a program that raised, not one that was asked to stop",
        ),
        pytest.param(
            [task_pod("ps", 1, ended(137, "OOMKilled"))],
            "ps:1: it used more memory than its limit",
            137,
            id="a ps that was killed, not the chief that lost it",
        ),
        pytest.param(
            [task_pod("ps", 0, waiting("CrashLoopBackOff", "", {"exitCode": 7}))],
            "ps:0: exit code 7",
            7,
            id="a ps that never came, not the chief that waited for it",
        ),
        pytest.param(
            [task_pod("worker", 1, ended(137))],
            "chief:0: exit code 138",
            138,
            id="no worker that the job went on without",
        ),
    ],
)
def test_the_chief_is_not_blamed_for_what_another_task_did(
    others: list[Listed], blamed: str, code: int
) -> None:
    found = status([task_pod("chief", 0, ended(138)), *others], chief="Failed")
    assert found.reason.startswith(blamed)
    assert found.exit_code == code


@pytest.mark.parametrize(
    ("role", "pod", "said"),
    [
        ("ps", waiting("CrashLoopBackOff", "", {"exitCode": 7}), "Running: ps:1: exit code 7: mod"),
        ("ps", waiting("CrashLoopBackOff", "", {"exitCode": 137}), "Running"),
        ("chief", ended(140), "Pending: chief:0: exit code 140: peers did not answer"),
        ("chief", ended(137, "OOMKilled"), "Pending: chief:0: it used more memory than its limit"),
        ("chief", ended(143), "Pending"),
    ],
    ids=["a ps for good", "a ps for now", "peers did not come", "memory", "evicted"],
)
def test_the_first_line_of_a_job_that_does_not_go_on_says_why(
    role: str, pod: Listed, said: str
) -> None:
    pods = [task_pod("chief", 0, pod if role == "chief" else ready())]
    found = status([*pods, *([task_pod("ps", 1, pod)] if role == "ps" else [])])
    assert headline(found).startswith(f"digits: {said}")
    assert bool(found.reason) == (": " in said)
    assert not found.is_over


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "gone"])
def test_the_first_line_of_a_job_that_a_worker_has_failed_names_the_worker(
    *, is_there: bool
) -> None:
    chief, worker = ended(10), ended(4)
    for each, words in (
        (chief, "JOB_FAILED (10): /job:worker/task:1 failed: ValueError: bad record 17"),
        (worker, "CHECKPOINT_UNUSABLE (4): bad record 17"),
    ):
        each["containerStatuses"][0]["state"]["terminated"]["message"] = words
    pods = [task_pod("chief", 0, chief), *([task_pod("worker", 1, worker)] if is_there else [])]
    found = status(pods, chief="Failed", worker="Failed")
    assert found.exit_code == (4 if is_there else 10)
    assert (
        "worker:1: exit code 4: " if is_there else "/job:worker/task:1 failed: "
    ) in found.reason
    assert "bad record 17" in found.reason


def test_a_job_that_ran_out_of_retries_says_so_in_its_first_line() -> None:
    jobs, sets = owners(chief="Failed")
    chief = next(each for each in jobs if each["metadata"]["name"] == "digits-chief")
    chief["spec"]["backoffLimitPerIndex"] = 3
    chief["status"]["conditions"][0]["reason"] = "MaxFailedIndexesExceeded"
    found = job_status("digits", Observed(jobs, sets, [task_pod("chief", 0, ended(138))]), NOW)
    assert headline(found).startswith("digits: Failed: chief:0: exit code 138: a peer")
    assert headline(found).endswith("; its retries are used up (3)")


def test_an_evaluators_failure_counts_when_training_is_over() -> None:
    pods = [task_pod("evaluator", 0, ended(1))]
    assert status(pods, evaluator="Failed").phase == "Pending"
    found = status(pods, evaluator="Failed", chief="Complete")
    assert (found.phase, found.exit_code) == ("Failed", 1)


def test_a_suspended_job_says_so() -> None:
    jobs, sets = owners()
    for each in jobs:
        each["spec"]["suspend"] = True
    found = job_status("digits", Observed(jobs, sets), NOW)
    assert found.phase == "Suspended"
    assert line(found, "worker:0").state == "Suspended"


def test_tasks_that_a_failed_chief_has_suspended_wait_for_no_queue() -> None:
    def suspended(**conditions: str) -> ClusterStatus:
        jobs, sets = owners(**conditions)
        worker = next(each for each in jobs if each["metadata"]["name"] == "digits-worker")
        worker["spec"]["suspend"] = True
        return job_status("digits", Observed(jobs, sets, [task_pod("chief", 0, ready())]), NOW)

    # Its Job is told a moment later.
    assert suspended().phase == "Running"
    found = suspended(chief="Failed")
    assert found.phase == "Failed"
    assert line(found, "worker:0").reason == "its Job is suspended, since the job is over"


def test_a_task_whose_pod_was_tidied_away_is_done() -> None:
    jobs, sets = owners()
    for each in jobs:
        if each["metadata"]["name"] == "digits-worker":
            each["status"] = {"completedIndexes": "0-1"}
    found = job_status("digits", Observed(jobs, sets), NOW)
    assert [line(found, f"worker:{index}").state for index in range(2)] == ["Done", "Done"]


@pytest.mark.parametrize(
    ("code", "finished", "state"),
    [
        pytest.param(1, None, "Failed", id="a failure that is final, whenever it was"),
        pytest.param(138, "2026-11-20T10:00:29Z", "Failed", id="it failed before it was asked"),
        pytest.param(138, "2026-11-20T10:00:31Z", "Leaving", id="it ended since it was asked"),
        pytest.param(137, "2026-11-20T10:01:00Z", "Leaving", id="it was killed in the end"),
        pytest.param(137, None, "Leaving", id="it is not known when"),
    ],
)
def test_a_pod_that_failed_is_not_shown_as_one_that_was_asked_to_stop(
    code: int, finished: str | None, state: str
) -> None:
    pod = task_pod(
        "worker", 0, ended(code), deletionTimestamp="2026-11-20T10:01:00Z",
        deletionGracePeriodSeconds=30,
    )  # fmt: skip
    (container,) = pod["status"]["containerStatuses"]
    container["state"]["terminated"].pop("finishedAt", None)
    if finished:
        container["state"]["terminated"]["finishedAt"] = finished
    found = pod_state(pod)
    assert found.state == state
    assert found.exit_code == code


@pytest.mark.parametrize(
    ("of_set", "phase", "code"),
    [
        pytest.param({}, "Pending", None, id="just made"),
        pytest.param({"spec": {"suspend": True}}, "Suspended", None, id="in a queue"),
        pytest.param(
            {"status": {"conditions": [{"type": "Completed", "status": "True"}]}}, "Done", 0,
            id="done, and its Jobs are gone",
        ),
        pytest.param(
            {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "why"}]}},
            "Failed", 1, id="failed",
        ),
    ],
)  # fmt: skip
def test_a_job_set_without_jobs_is_no_absent_job(
    of_set: Listed, phase: str, code: int | None
) -> None:
    found = job_status("digits", Observed(one_object={"kind": "JobSet", **of_set}), NOW)
    assert (found.phase, found.exit_code) == (phase, code)


def about_the_chief(reason: str, component: str = "job-controller") -> Listed:
    """An event of the chief's Job."""
    return {
        "type": "Normal",
        "reason": reason,
        "involvedObject": {"kind": "Job", "name": "digits-chief"},
        "source": {"component": component},
        "lastTimestamp": CREATED,
    }


def test_a_job_whose_jobs_were_tidied_away_is_as_its_chief_or_its_events_say() -> None:
    """After ``keep_s`` nothing of a job without ps is left but its record."""
    record = {"data": {"phase": "done"}}
    assert job_status("digits", Observed(record=record), NOW).phase == "Done"
    completed = [about_the_chief("SuccessfulCreate"), about_the_chief("Completed")]
    events = [*completed, about_the_chief("Done", "ropewalk")]
    assert job_status("digits", Observed(events=events), NOW).exit_code == 0
    begun_again = [*completed, about_the_chief("SuccessfulCreate")]
    assert job_status("digits", Observed(events=begun_again), NOW).phase == "Absent"
    _, sets = owners()
    assert job_status("digits", Observed(stateful_sets=sets, events=events), NOW).phase == "Done"
