"""Where the leaders of shares are, as a chief says that comes late, restarts or refuses."""

from typing import cast

import pytest

from helpers.waiting import wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.ps.locating import LeaderWatch, leader_in
from ropewalk.cluster.replication.configuration import ShareLeader
from ropewalk.core.errors import MovedError, PeerLostError, PermissionDeniedError, RopewalkError
from ropewalk.core.task import TaskId

Answer = tuple[int, int, list[ShareLeader]]


def leads(share: int, index: int, epoch: int = 1) -> ShareLeader:
    return ShareLeader(share, epoch, TaskId("ps", index), f"ps{index}:1")


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
    return LeaderWatch(cast(ChiefClient, FakeChief(*answers)), refused_s=0.01)


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


def test_what_a_restarted_chief_has_not_said_yet_stays() -> None:
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


def test_what_a_ps_says_of_the_next_leader_counts_until_the_chief_says_more() -> None:
    """A chief that is lost in a handover has told nobody of it, and the next one may be late."""
    said = [(2, 2, [leads(0, 0), leads(1, 1)]), (2, 2, [leads(0, 0)]), (3, 2, [leads(0, 2, 3)])]
    leaders = watch(*said)
    told: list[ShareLeader | None] = []
    leaders.tell(lambda: told.append(leaders.leader_of(0)))
    leaders._ask()
    for epoch in (1, 9, 9):
        leaders.learn(leads(0, 1, epoch))
    leaders._ask()
    assert leaders.leader_of(0) == leads(0, 1, 9)
    leaders._ask()
    assert told == [leads(0, 0), leads(0, 1, 9), leads(0, 2, 3)], "the ps was wrong"


def test_a_ps_that_names_no_next_leader_or_nonsense_is_not_heard() -> None:
    def said(**fields: object) -> ShareLeader | None:
        return leader_in(MovedError("it leads no more", **fields), 1)

    assert said(epoch=2, leader=1, address="ps1:1") == leads(1, 1, 2)
    assert said(epoch=2) is None
    assert said(epoch=2, leader="ps:1", address="ps1:1") is None
