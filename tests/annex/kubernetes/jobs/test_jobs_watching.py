"""Watches that end, are cut, or are forgotten: changes are told all the same."""

import threading
from collections.abc import Iterator

import pytest

from helpers.clock import ManualClock
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.connected_api import SELECTOR, connected
from helpers.kubernetes.job_objects import ready, task_pod
from helpers.waiting import wait_until
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.observing import ObjectFollower
from ropewalk.core.errors import (
    PeerLostError,
)


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
