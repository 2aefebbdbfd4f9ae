"""``ropewalk k8s logs``: no line is lost, none is shown twice, and none decides success."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from click.testing import Result

from helpers.calls import Calls
from helpers.kubernetes.cluster import KubernetesCluster, Log, Refused
from helpers.kubernetes.connected_api import SELECTOR
from helpers.kubernetes.job_objects import ended, finish, ready, started, task_pod
from helpers.kubernetes.pod_listings import pulling
from helpers.waiting import wait_until
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.logs import LogCursor, LogFollower, Said, read_logs
from ropewalk.annexes.kubernetes.observing import observe
from ropewalk.core.errors import RopewalkError


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


def test_a_watch_that_breaks_ends_the_command_with_the_reason(
    cluster: KubernetesCluster, api: KubernetesApi, calls: Calls
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ready()))

    calls.fail(LogFollower, "_begin", KeyError("a pod without a name"))
    with pytest.raises(RopewalkError, match="not watched any more: KeyError: 'a pod without"):
        list(LogFollower(api, "digits", lambda task: True, watch_s=1).lines())


def test_a_reader_that_breaks_says_so(
    cluster: KubernetesCluster, api: KubernetesApi, calls: Calls
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ended(0)))
    write(cluster, "digits-chief-0-x7k2p", range(3))
    finish(cluster, "chief")

    calls.fail(LogCursor, "feed", KeyError("a line"))
    notes = [said.text for said in Followed(api).end() if said.is_note]
    assert "its log is not read any more: KeyError: 'a line'" in notes


def test_what_a_program_prints_steers_no_terminal(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("chief", 0, ended(0)))
    name = "digits-chief-0-x7k2p"
    for number, text in enumerate(
        ["\x1b]52;c;cm0=\x07clip", "\x1bcreset", "\x9b2Jwiped", " 0%\r50%\r100%\r", "\x1b[31mred"]
    ):
        cluster.say(name, stamp(number), text)
    finish(cluster, "chief")
    said = run("logs", "--name", "digits", "chief").output.splitlines()
    assert said[:5] == [f"chief:0 | {text}" for text in ("clip", "reset", "wiped", "100%", "red")]


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


def test_a_ps_that_was_replaced_under_its_name_is_followed_on(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("ps", 0, ready()))
    write(cluster, "digits-ps-0", range(3))
    cluster.log("digits-ps-0").ended = False
    followed = Followed(api, "ps:0")
    wait_until(partial(has_lines, followed, "ps:0", 3), 30)
    # Evicted: the pod is gone, its stream ends, and the next one has the same name.
    with cluster.changed:
        old = cluster.log("digits-ps-0")
        cluster.remove("Pod", "digits-ps-0")
        cluster.logs["digits-ps-0"] = Log()
        cluster.put("Pod", task_pod("ps", 0, {"phase": "Pending"}))
        old.ended = True
        cluster.changed.notify_all()
    cluster.put("Pod", task_pod("ps", 0, ready()))
    write(cluster, "digits-ps-0", range(10, 12))
    wait_until(lambda: "step 11" in texts(followed.said, "ps:0"), 30)
    finish(cluster, "chief")
    said = followed.end()
    assert texts(said, "ps:0") == ["step 0", "step 1", "step 2", "step 10", "step 11"]
    notes = [each.text for each in said if each.is_note]
    assert notes == ["its pod was replaced; the next one is followed"]


def test_an_error_of_the_kubelet_is_no_line_of_the_task(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("worker", 0, ended(143)))
    write(cluster, "digits-worker-0-x7k2p", range(2))
    words = "unable to retrieve container logs for containerd://3bb6fd00e2a1"
    cluster.log("digits-worker-0-x7k2p").tail = words.encode()
    finish(cluster, "chief")
    for said in (Followed(api).end(), list(read_logs(api, "digits", lambda _: True, -1))):
        assert texts(said, "worker:0") == ["step 0", "step 1"]
        notes = [each.text for each in said if each.is_note]
        assert notes == [f"its log cannot be read: {words}"]


def test_a_pod_that_is_gone_ends_its_log_without_a_word(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("Pod", task_pod("worker", 0, ready()))
    name = "digits-worker-0-x7k2p"
    write(cluster, name, range(3))
    cluster.log(name).ended = False
    followed = Followed(api, "worker:0")
    wait_until(partial(has_lines, followed, "worker:0", 3), 30)
    with cluster.changed:
        cluster.remove("Pod", name)
        cluster.log(name).ended = True
        cluster.changed.notify_all()
    finish(cluster, "chief")
    assert [each.text for each in followed.end()] == ["step 0", "step 1", "step 2"]


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
        Refused(400, 'container "ropewalk" is waiting to start: trying and failing to pull image'),
    ][1:]
    api.list_all = lambda *_: pods  # type: ignore[method-assign]
    (said,) = read_logs(api, "digits", lambda _: True, -1)
    assert said.is_note
    assert "is waiting to start" in said.text
