"""``windlass k8s`` through the official client, against an API server on loopback."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.clock import ManualClock
from helpers.job_objects import DIGITS, digits, ended, event, finish, ready, started, task_pod
from helpers.kubernetes_cluster import KubernetesCluster, Refused, serve_cluster
from helpers.pod_listings import Listed, pulling, unschedulable
from helpers.waiting import wait_until
from windlass.core.errors import (
    AccessError,
    ConfigurationError,
    IncompatibleError,
    PeerLostError,
    WindlassError,
)
from windlass.launch import cli
from windlass.launch.k8s.client import KubernetesApi
from windlass.launch.k8s.log_following import LogFollower, Said, read_logs
from windlass.launch.k8s.manifests import manifests
from windlass.launch.k8s.operations import (
    apply_job,
    delete_all,
    follow_status,
    observe,
    read_scale,
    scale,
)
from windlass.launch.k8s.watching import ObjectFollower

client = pytest.importorskip("kubernetes").client
SELECTOR = "app.kubernetes.io/name=windlass,app.kubernetes.io/instance=digits"


@pytest.fixture
def cluster() -> Iterator[KubernetesCluster]:
    with serve_cluster() as server:
        yield server


@pytest.fixture
def api(cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return connected(cluster)


def connected(cluster: KubernetesCluster, **arguments: Any) -> KubernetesApi:
    settings = client.Configuration(host=cluster.url)
    settings.retries = 0
    return KubernetesApi(client.ApiClient(settings), "train", **arguments)


@pytest.fixture
def run(
    cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """``windlass k8s …`` with a kubeconfig that names the server."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me, namespace: train}}}}]
clusters: [{{name: here, cluster: {{server: "{cluster.url}"}}}}]
users: [{{name: me, user: {{token: secret}}}}]
"""
    )
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def k8s(*arguments: str) -> Result:
        return CliRunner().invoke(cli.windlass, ["k8s", *arguments], standalone_mode=False)

    return k8s


# -- apply -----------------------------------------------------------------------------------------


def test_a_job_is_applied_by_one_manager_and_can_be_applied_again(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    for _ in range(2):
        said = run("apply", "--job", str(DIGITS))
        assert said.exception is None, said.exception
    assert "StatefulSet digits-ps applied" in said.output
    patches = [each for each in cluster.asked if each.method == "PATCH"]
    assert len(patches) == 2 * len(manifests(digits()))
    for each in patches:
        assert each.content_type == "application/apply-patch+yaml"
        assert each.query["fieldManager"] == "windlass"
        assert each.query["fieldValidation"] == "Strict"
        assert "force" not in each.query
    assert cluster.get("Job", "digits-worker") is not None


def test_a_dry_run_changes_nothing(cluster: KubernetesCluster, run: Callable[..., Result]) -> None:
    said = run("apply", "--job", str(DIGITS), "--dry-run", "--json")
    assert {each["what"] for each in json.loads(said.output)} == {"would be applied"}
    assert cluster.get("Service", "digits-tasks") is None


def test_what_somebody_else_owns_is_a_conflict_until_it_is_forced(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    live = cluster.get("StatefulSet", "digits-ps")
    assert live is not None
    cluster.put("StatefulSet", {**live, "spec": {**live["spec"], "replicas": 7}})
    cluster.managers["StatefulSet", "digits-ps"] = {"spec.replicas": "kubectl"}
    with pytest.raises(IncompatibleError, match=r'conflict with "kubectl".*--force takes them'):
        apply_job(api, digits())
    apply_job(api, digits(), force=True)
    live = cluster.get("StatefulSet", "digits-ps")
    assert live is not None
    assert live["spec"]["replicas"] == 2


def test_a_program_that_changed_needs_a_delete_and_the_error_says_so(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    other = digits().model_copy(update={"image": "windlass-digits:2"})
    with pytest.raises(ConfigurationError, match=r"windlass k8s delete.*checkpoints stay"):
        apply_job(api, other)


def test_applying_again_keeps_what_scale_has_set_until_the_file_says_another_number(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    api.patch("Job", "digits-worker", {"spec": {"parallelism": 4, "completions": 4}})
    apply_job(api, digits())
    assert completions(cluster) == 4
    apply_job(api, digits().with_counts({"worker": 3}))
    assert completions(cluster) == 3


def completions(cluster: KubernetesCluster) -> int:
    job = cluster.get("Job", "digits-worker")
    assert job is not None
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    return int(job["spec"]["completions"])


# -- an API that is not well -----------------------------------------------------------------------


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


# -- watching --------------------------------------------------------------------------------------


class Seen:
    """What a follower tells, in a thread of its own."""

    def __init__(self, api: KubernetesApi) -> None:
        self.follower = ObjectFollower(api, "Pod", SELECTOR, 1)
        self.told: list[tuple[str, bool]] = []
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for changes in self.follower.rounds():
            self.rounds += 1
            self.told += [(change.name, change.gone) for change in changes]

    def end(self) -> None:
        self.follower.stop()
        self._thread.join()


@pytest.fixture
def seen(cluster: KubernetesCluster, api: KubernetesApi) -> Iterator[Seen]:
    cluster.put("Pod", task_pod("ps", 0, ready()))
    seen = Seen(api)
    wait_until(lambda: seen.told, 10)
    yield seen
    seen.end()


def watches(cluster: KubernetesCluster) -> list[str]:
    return [each.query["resourceVersion"] for each in cluster.asked if "watch" in each.query]


def lists(cluster: KubernetesCluster) -> int:
    return sum(
        each.method == "GET" and "watch" not in each.query and each.path.endswith("pods")
        for each in cluster.asked
    )


def test_changes_come_however_often_a_watch_ends(cluster: KubernetesCluster, seen: Seen) -> None:
    cluster.put("Pod", task_pod("ps", 1, ready()))
    wait_until(lambda: len(seen.told) == 2, 10)
    began = len(watches(cluster))
    wait_until(lambda: len(watches(cluster)) > began + 1, 10)
    cluster.remove("Pod", "digits-ps-0")
    wait_until(lambda: len(seen.told) == 3, 10)
    assert seen.told == [("digits-ps-0", False), ("digits-ps-1", False), ("digits-ps-0", True)]
    assert set(seen.follower.objects) == {"digits-ps-1"}
    assert lists(cluster) == 1


def test_bookmarks_keep_the_version_young(cluster: KubernetesCluster, seen: Seen) -> None:
    # Something else changes; nothing of ours does, but the version goes on.
    other = cluster.put("Service", {"metadata": {"name": "other"}})
    young = other["metadata"]["resourceVersion"]
    wait_until(lambda: young in watches(cluster), 10)
    assert lists(cluster) == 1


@pytest.mark.parametrize("by_status", [True, False], ids=["status 410", "event 410"])
def test_a_version_that_was_forgotten_lists_anew_and_tells_what_is_different(
    cluster: KubernetesCluster, seen: Seen, by_status: bool
) -> None:
    cluster.expired_by_status = by_status
    with cluster.changed:
        cluster.put("Pod", task_pod("worker", 0, ready()))
        cluster.remove("Pod", "digits-ps-0")
        cluster.forget()
    wait_until(lambda: len(seen.told) == 3, 10)
    assert set(seen.told[1:]) == {("digits-worker-0-x7k2p", False), ("digits-ps-0", True)}
    assert lists(cluster) == 2


def test_a_watch_that_is_refused_or_cut_is_begun_again(
    cluster: KubernetesCluster, seen: Seen
) -> None:
    cluster.refusals = [Refused(429, "slow down"), Refused(cut=True), Refused(500)]
    wait_until(lambda: not cluster.refusals, 10)
    cluster.put("Pod", task_pod("worker", 0, ready()))
    wait_until(lambda: len(seen.told) == 2, 20)
    assert lists(cluster) == 1


def test_an_api_that_stays_away_ends_a_watch(cluster: KubernetesCluster) -> None:
    follower = ObjectFollower(connected(cluster, clock=ManualClock()), "Pod", SELECTOR, 1)
    rounds = follower.rounds()
    next(rounds)
    cluster.refusals = [Refused(503)] * 20
    with pytest.raises(PeerLostError, match=r"watch Pods in namespace train"):
        list(rounds)


# -- status ----------------------------------------------------------------------------------------


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
        event("Pod", "digits-ps-0", "Failed", 'Failed to pull image "windlass-digits:latest": 404'),
    )
    said = run("status", "--job", str(DIGITS), "--json")
    assert said.exception is None, said.exception
    status = json.loads(said.output)
    assert (status["name"], status["phase"]) == ("digits", "Pending")
    tasks = {each["task"]: each for each in status["tasks"]}
    assert "nvidia.com/gpu" in tasks["chief:0"]["reason"]
    assert "lower resources.gpu" in tasks["chief:0"]["remedy"]
    assert "windlass-digits:latest" in tasks["ps:0"]["reason"]
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


# -- logs ------------------------------------------------------------------------------------------


def stamp(number: int) -> str:
    """A time with nanoseconds; ten lines share a second."""
    return f"2026-11-20T10:00:{number // 10:02d}.{number % 10}00000001Z"


def write(cluster: KubernetesCluster, pod: str, lines: range) -> None:
    for number in lines:
        cluster.say(pod, stamp(number), f"step {number}")


def texts(said: list[Said], task: str) -> list[str]:
    return [each.text for each in said if each.task == task and not each.is_note]


def has_lines(followed: "Followed", task: str, count: int) -> bool:
    return len(texts(followed.said, task)) == count


class Followed:
    """A log that is followed in a thread of its own."""

    def __init__(self, api: KubernetesApi, *tasks: str) -> None:
        follower = LogFollower(api, "digits", lambda task: not tasks or task in tasks, watch_s=1)
        self.said: list[Said] = []
        self._lines = follower.lines()
        self._thread = threading.Thread(target=lambda: self.said.extend(self._collect()))
        self._thread.start()

    def _collect(self) -> Iterator[Said]:
        for each in self._lines:
            self.said.append(each)
        return iter(())

    def end(self) -> list[Said]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.said


def test_a_log_that_is_cut_within_a_line_loses_none_and_shows_none_twice(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ready()))
    name = "digits-chief-0-x7k2p"
    cluster.log(name).ended = False
    # In a time, in a text, behind a line's end, and at once.
    cluster.log(name).cuts = [100, 9, 400, 41 * 3, 1]
    write(cluster, name, range(30))
    followed = Followed(api)
    wait_until(lambda: len(texts(followed.said, "chief:0")) == 30, 30)
    write(cluster, name, range(30, 40))
    # The same second and the same text twice: both are lines of their own.
    cluster.say(name, stamp(39), "step 39")
    cluster.log(name).tail = f"{stamp(40)} last words".encode()
    with cluster.changed:
        cluster.log(name).ended = True
        cluster.changed.notify_all()
    cluster.put("Pod", task_pod("chief", 0, ended(0)))
    finish(cluster, "chief")
    said = followed.end()
    wanted = [*(f"step {n}" for n in range(40)), "step 39", "last words"]
    assert texts(said, "chief:0") == wanted
    notes = [each.text for each in said if each.is_note]
    assert any("broke off" in text and "read on from there" in text for text in notes)


def test_a_log_that_ends_says_nothing_about_the_job(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ready()))
    write(cluster, "digits-chief-0-x7k2p", range(3))  # the stream ends, as after a rotation
    followed = Followed(api, "chief:0")
    wait_until(lambda: len(texts(followed.said, "chief:0")) == 3, 30)
    assert observe(api, "digits").phase == "Running"
    write(cluster, "digits-chief-0-x7k2p", range(3, 6))
    wait_until(lambda: len(texts(followed.said, "chief:0")) == 6, 30)
    cluster.put("Pod", task_pod("chief", 0, ended(1)))
    finish(cluster, "chief", "Failed")
    assert texts(followed.end(), "chief:0") == [f"step {n}" for n in range(6)]
    assert observe(api, "digits").phase == "Failed"


def test_a_container_that_was_restarted_has_the_end_of_its_last_life_read(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("ps", 0, ready()))
    write(cluster, "digits-ps-0", range(2))
    cluster.log("digits-ps-0").ended = False
    followed = Followed(api, "ps:0")
    wait_until(lambda: len(texts(followed.said, "ps:0")) == 2, 30)
    # It says one more thing and dies; the stream breaks before that, and the log begins anew.
    previous = cluster.log("digits-ps-0/previous")
    previous.lines = [*cluster.log("digits-ps-0").lines, (stamp(2), "step 2")]
    previous.tail = f"{stamp(3)} Killed".encode()
    cluster.put("Pod", task_pod("ps", 0, ready(restarts=1)))
    with cluster.changed:
        cluster.log("digits-ps-0").lines = []
        cluster.log("digits-ps-0").ended = True
        cluster.changed.notify_all()
    wait_until(lambda: "Killed" in texts(followed.said, "ps:0"), 30)
    write(cluster, "digits-ps-0", range(20, 22))
    wait_until(lambda: "step 21" in texts(followed.said, "ps:0"), 30)
    finish(cluster, "chief")
    said = followed.end()
    assert texts(said, "ps:0") == ["step 0", "step 1", "step 2", "Killed", "step 20", "step 21"]
    assert "was restarted" in [each.text for each in said if each.is_note]


def test_pods_that_come_later_are_followed_too(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    followed = Followed(api, "worker:0", "worker:1")
    for index in range(2):
        cluster.put("Pod", task_pod("worker", index, ready()))
        write(cluster, f"digits-worker-{index}-x7k2p", range(3))
        wait_until(partial(has_lines, followed, f"worker:{index}", 3), 30)
    # A second pod of a task, after the first failed.
    cluster.put("Pod", task_pod("worker", 0, ready(), tail="zzzzz"))
    write(cluster, "digits-worker-0-zzzzz", range(10, 12))
    wait_until(lambda: len(texts(followed.said, "worker:0")) == 5, 30)
    finish(cluster, "chief")
    followed.end()


def test_logs_as_they_are_now(cluster: KubernetesCluster, run: Callable[..., Result]) -> None:
    started(cluster)
    for role in ("chief", "worker"):
        cluster.put("Pod", task_pod(role, 0, ready()))
        write(cluster, f"digits-{role}-0-x7k2p", range(4))
    said = run("logs", "--name", "digits", "--tail", "2", "worker")
    assert said.exception is None, said.exception
    assert said.stdout.splitlines() == ["worker:0 | step 2", "worker:0 | step 3"]
    assert said.stderr.splitlines() == ["digits: Running"]


def test_a_container_that_never_started_has_no_log_and_that_is_said(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    cluster.put("Pod", task_pod("chief", 0, pulling()))
    cluster.refusals = []
    pods = api.list_all("Pod", SELECTOR)
    assert len(pods.items) == 1
    cluster.refusals = [
        Refused(200),
        Refused(400, 'container "windlass" is waiting to start: trying and failing to pull image'),
    ][1:]
    api.list_all = lambda *_: pods  # type: ignore[method-assign]
    (said,) = read_logs(api, "digits", lambda _: True, -1)
    assert said.is_note
    assert "is waiting to start" in said.text


# -- scale and delete ------------------------------------------------------------------------------


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
    assert {each.query["fieldManager"] for each in patches} == {"windlass"}
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
    with pytest.raises(ConfigurationError, match="no worker can do without another"):
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
