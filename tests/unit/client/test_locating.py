"""Where the leaders of shares are, as a chief says that comes late, restarts or refuses."""

from typing import cast

import pytest

from helpers.waiting import wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.ps import locating
from ropewalk.client.ps.locating import LeaderWatch
from ropewalk.cluster.replication.reports import ShareLeader
from ropewalk.core.errors import PeerLostError, PermissionDeniedError, RopewalkError
from ropewalk.core.task import TaskId

Answer = tuple[int, int, list[ShareLeader]]


def leads(share: int, index: int) -> ShareLeader:
    return ShareLeader(share, 1, TaskId("ps", index), f"ps{index}:1")


class FakeChief:
    """Gives some answers one after the other, and then is silent."""

    def __init__(self, *answers: Answer | RopewalkError) -> None:
        self.answers = list(answers)

    def watch_leaders(self, _: int, *, timeout_s: float) -> Answer:
        assert timeout_s > 0
        answer = self.answers.pop(0) if self.answers else PeerLostError("silent")
        if isinstance(answer, RopewalkError):
            raise answer
        return answer

    def end_watch(self) -> None:
        pass


def watch(*answers: Answer | RopewalkError) -> LeaderWatch:
    return LeaderWatch(cast(ChiefClient, FakeChief(*answers)))


def test_a_chief_that_answers_late_is_asked_again() -> None:
    leaders = watch(PeerLostError("busy"), (0, 0, []))
    assert not leaders.begin(10)
    with pytest.raises(PeerLostError, match="silent"):
        watch().begin(0.2)


def test_who_gives_up_asks_no_longer_though_it_lost_a_peer_itself() -> None:
    """So does a worker that hears while it joins that the job has failed."""
    failed = iter([PeerLostError("the job failed")])

    def check() -> None:
        raise next(failed, AssertionError("checked again"))

    with pytest.raises(PeerLostError, match="the job failed"):
        watch(PeerLostError("busy")).begin(10, check)


def test_what_a_restarted_chief_has_not_said_yet_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "_REFUSED_S", 0.01)
    refused = PermissionDeniedError("the token is over")
    leaders = watch((2, 2, [leads(0, 0), leads(1, 1)]), refused, (3, 0, [leads(0, 1)]))
    told: list[ShareLeader | None] = []
    leaders.tell(lambda: told.append(leaders.leader_of(0)))
    assert leaders.begin(10)
    wait_until(lambda: len(told) == 2, 10)
    leaders.close()
    assert leaders.shares == 2
    assert told == [leads(0, 0), leads(0, 1)]
    assert leaders.leader_of(1) == leads(1, 1)
    assert leaders.leader_of(2) is None


def test_a_restarted_chief_that_has_counted_as_far_as_the_one_before_is_heard() -> None:
    leaders = watch((2, 1, [leads(0, 0)]), (2, 1, [leads(0, 0)]), (2, 1, [leads(0, 1)]))
    told: list[ShareLeader | None] = []
    leaders.tell(lambda: told.append(leaders.leader_of(0)))
    assert leaders.begin(10)
    wait_until(lambda: len(told) == 2, 10)
    leaders.close()
    assert told == [leads(0, 0), leads(0, 1)]


def test_a_chief_that_does_not_know_how_many_shares_there_are_is_asked_again() -> None:
    """A worker that took a ps for a share would place variables where no other worker does."""
    leaders = watch((1, 0, []), (3, 8, [leads(0, 0)]))
    assert leaders.begin(10)
    assert leaders.shares == 8
    leaders.close()
    with pytest.raises(PeerLostError, match="silent"):
        watch((1, 0, [])).begin(0.2)
