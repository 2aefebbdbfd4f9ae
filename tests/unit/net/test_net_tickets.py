"""A ticket stands for a value: once, for a short time, and only so many do at once."""

import pytest

from ropewalk.net.auth.proof import Tickets


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_ticket_counts_once_and_for_a_short_time() -> None:
    clock = Hand()
    tickets: Tickets[str] = Tickets(10.0, 1024, clock=clock)
    first, second = tickets.issue("worker 1"), tickets.issue("worker 1")
    assert first != second
    assert tickets.redeem(first) == "worker 1"
    assert tickets.redeem(first) is None
    clock.now = 10.0
    assert tickets.redeem(second) is None
    assert tickets.redeem(b"guessed") is None


def test_of_many_that_are_not_used_the_oldest_go() -> None:
    dropped: list[int] = []
    tickets: Tickets[int] = Tickets(10.0, 3, dropped=dropped.append)
    issued = [tickets.issue(number) for number in range(5)]
    assert dropped == [0, 1]
    assert [tickets.redeem(ticket) for ticket in issued] == [None, None, 2, 3, 4]


@pytest.mark.parametrize("act", ["look", "issue", "redeem"])
def test_what_an_expired_ticket_stood_for_is_dropped_with_it(act: str) -> None:
    clock, dropped = Hand(), list[str]()
    tickets: Tickets[str] = Tickets(10.0, 1024, dropped=dropped.append, clock=clock)
    tickets.issue("old")
    clock.now = 5.0
    new = tickets.issue("new")
    clock.now = 10.0
    if act == "look":
        tickets.drop_expired()
    elif act == "issue":
        tickets.issue("newest")
    else:
        assert tickets.redeem(new) == "new"
    assert dropped == ["old"]


def test_what_was_redeemed_is_not_dropped() -> None:
    dropped: list[str] = []
    tickets: Tickets[str] = Tickets(10.0, 1024, dropped=dropped.append)
    used, _ = tickets.issue("used"), tickets.issue("unused")
    tickets.redeem(used)
    tickets.clear()
    assert dropped == ["unused"]
