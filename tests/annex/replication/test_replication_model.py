"""The protocol of replication, searched exhaustively; each rule that is left out is missed."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from helpers.replication.model import Bounds, Model, Rules, search
from ropewalk.cluster.replication import configuration, replica
from ropewalk.cluster.replication.configuration import (
    Configuration,
    GiveUpShare,
    HandOver,
    Lead,
    ReplicaRole,
)
from ropewalk.cluster.replication.replica import Replica
from ropewalk.core.task import TaskId

_FAST = {
    "a follower": Bounds(),
    "two workers": Bounds(pushes=(1, 1)),
    "a copy": Bounds(copies=1, followers=0),
    "a chief that restarts": Bounds(restarts=1),
    "a follower that is lost and copied to again": Bounds(copies=1, followers=0, epochs=5),
    "those left out are told, and copied to again": Bounds(pushes=(1,), copies=1, gives_up=True),
    "a handover": Bounds(pushes=(1,), hands_over=True),
    "a handover to one of two followers": Bounds(
        servers=3, followers=2, pushes=(1,), hands_over=True, epochs=2
    ),
}
_ALL = {
    "reads by grant, and a handover": Bounds(pushes=(1,), hands_over=True, grants=True),
    "one that hands over follows without a copy": Bounds(hands_over=True),
    "a handover, and a chief that restarts": Bounds(
        pushes=(1,), gives_up=True, hands_over=True, grants=True, restarts=1
    ),
    "two workers, reads by grant, and a handover": Bounds(
        pushes=(1, 1), hands_over=True, grants=True
    ),
    "a handover, and a ps that dies": Bounds(
        pushes=(1,), gives_up=True, hands_over=True, grants=True, crashes=1
    ),
    "one that hands over follows, and leads again": Bounds(
        pushes=(1,), gives_up=True, hands_over=True, grants=True, epochs=4
    ),
    "one that hands over follows, is left out, and copied to": Bounds(
        pushes=(1,), copies=1, gives_up=True, hands_over=True, epochs=4
    ),
    "one that hands over follows, and dies": Bounds(pushes=(1, 1), hands_over=True, crashes=1),
    "one that hands over follows, and the chief restarts": Bounds(
        pushes=(1,), hands_over=True, restarts=1
    ),
    "a handover to one of two followers, and more": Bounds(
        servers=3, followers=2, pushes=(1,), hands_over=True, gives_up=True
    ),
    "a leader that becomes a follower": Bounds(copies=1, epochs=4),
    "three ps": Bounds(servers=3, copies=1, epochs=4),
    "three ps, one of which dies": Bounds(servers=3, copies=1, crashes=1),
    "a copy, and a chief that restarts": Bounds(copies=1, restarts=1, followers=0),
}


@pytest.mark.parametrize("name", _FAST)
def test_nothing_answered_is_lost_or_applied_twice(name: str) -> None:
    found = search(Model(_FAST[name]))
    assert found.violation == "", found.trace
    assert found.states > 1000


@pytest.mark.soak
@pytest.mark.parametrize("name", _ALL)
def test_nothing_answered_is_lost_or_applied_twice_in_larger_jobs(name: str) -> None:
    found = search(Model(_ALL[name]))
    assert found.violation == "", found.trace
    assert found.states > 1000


def _always(position: int, acknowledged: Iterable[int]) -> bool:
    return True


def _drops_by_itself(now: Replica, lost: TaskId) -> Replica:
    return replace(now, needs=tuple(task for task in now.needs if task != lost))


def _takes_any_position(now: Replica, leader: TaskId, epoch: int, position: int, have: int) -> bool:
    return replica.takes_record(now, leader, epoch, have + 1, have)


def _takes_as_leader(now: Replica, leader: TaskId, epoch: int, position: int, have: int) -> bool:
    return now.role in {ReplicaRole.FOLLOWING, ReplicaRole.LEADING} and position == have + 1


def _counts_in_any_epoch(now: Configuration, epoch: int, follower: TaskId) -> Any:
    return configuration.with_follower(now, now.epoch, follower)


def _leads_with_half_a_copy(now: Replica, order: Lead) -> Replica | None:
    return replica.ordered(replace(now, is_whole=True), order)


def _follows_in_any_epoch(now: Replica, leader: TaskId, epoch: int) -> Replica | None:
    return replica.followed(replace(now, epoch=0, role=ReplicaRole.NONE), leader, epoch)


def _gives_up_in_its_own_epoch(now: Replica, order: GiveUpShare) -> Replica | None:
    return replica.given_up(replace(now, epoch=now.epoch - 1), order)


def _waits_for_nothing(order: Lead, *, leader_ended: bool) -> bool:
    return False


def _succeeds_before_all_has_come(
    now: Replica, leader: TaskId, epoch: int, position: int, have: int
) -> bool:
    return replica.takes_record(now, leader, epoch, have + 1, have)


def _hands_over_late(now: Replica, order: HandOver) -> Replica | None:
    return replica.handed_over(replace(now, epoch=0), order)


def _follows_on_in_any_epoch(
    now: Replica, leader: TaskId, epoch: int, successor: TaskId | None
) -> Replica | None:
    return replica.followed_on(replace(now, epoch=epoch), leader, epoch, successor)


_HANDS_OVER_AND_BACK = Bounds(pushes=(1,), hands_over=True, epochs=4)
_HANDS_OVER = Bounds(pushes=(1,), hands_over=True, epochs=2)
_HANDOVER = Bounds(pushes=(1,), hands_over=True, grants=True)
_COPY = Bounds(copies=1, followers=0)
_BACK = Bounds(copies=1, epochs=4, pushes=(1, 1))
_DEFECTS = {
    "answers wait for followers": (Rules(may_answer=_always), Bounds()),
    "answers to repeats wait, too": (Rules(may_repeat=_always), Bounds()),
    "reads wait, too": (Rules(may_show=_always), Bounds()),
    "marks are copied with values": (Rules(copies_marks=False), _COPY),
    "a leader takes no records": (
        Rules(takes_record=_takes_as_leader, keeps_links=True),
        Bounds(pushes=(1, 1)),
    ),
    "only the chief drops a follower": (Rules(link_lost=_drops_by_itself), Bounds()),
    "the chief writes before it tells": (Rules(writes_first=False), Bounds(restarts=1)),
    "needed first, counted on later": (Rules(needed_first=False), _COPY),
    "counted on only when whole": (
        Rules(counted_when_whole=False, ordered=_leads_with_half_a_copy),
        _COPY,
    ),
    "records at their position only": (Rules(takes_record=_takes_any_position), Bounds()),
    "a former leader forgets": (Rules(keeps_contents=True), _BACK),
    "a report counts in its own epoch": (
        Rules(with_follower=_counts_in_any_epoch),
        Bounds(copies=1, followers=0, epochs=5),
    ),
    "nobody follows an earlier epoch": (
        Rules(followed=_follows_in_any_epoch),
        Bounds(pushes=(1,), copies=1, followers=0, epochs=4),
    ),
    "a follower leads once its leader answers no reads": (
        Rules(waits_for_reads=_waits_for_nothing),
        _HANDOVER,
    ),
    "at once only if its leader has answered that it gave up": (
        Rules(waits_for_the_answer=False),
        _HANDOVER,
    ),
    "one that has given up answers nothing": (Rules(keeps_answering=True), _HANDOVER),
    "one that hands over keeps what it has": (Rules(keeps_until_led=False), _HANDOVER),
    "one that hands over passes the order to lead on": (Rules(passes_on=False), _HANDS_OVER),
    "the order to lead comes after all records": (
        Rules(succeeds=_succeeds_before_all_has_come),
        _HANDS_OVER,
    ),
    "nobody hands over by an order that comes late": (
        Rules(handed_over=_hands_over_late),
        _HANDS_OVER_AND_BACK,
    ),
    "nobody gives up what was copied in the same epoch": (
        Rules(given_up=_gives_up_in_its_own_epoch),
        Bounds(pushes=(1,), copies=1, gives_up=True),
    ),
}


# Needs more than fifty thousand states.
_RARE = {
    "one that hands over follows in that epoch alone": (
        Rules(followed_on=_follows_on_in_any_epoch),
        _HANDS_OVER_AND_BACK,
    ),
}


@pytest.mark.parametrize(
    "rule", [*_DEFECTS, *(pytest.param(rule, marks=pytest.mark.soak) for rule in _RARE)]
)
def test_each_rule_is_needed(rule: str) -> None:
    """Without it, the search finds a sequence of moves that breaks a promise."""
    rules, bounds = {**_DEFECTS, **_RARE}[rule]
    found = search(Model(bounds, rules))
    assert found.violation, f"not needed in {found.states} states"
