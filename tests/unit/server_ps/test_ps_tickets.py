"""Tickets: each good once, for whoever has it, and not too many of them."""

import threading

import pytest
from windlass.net.tickets import Tickets


def test_a_ticket_is_good_once() -> None:
    tickets = Tickets(10)
    first, second = tickets.issue(), tickets.issue()
    assert tickets.redeem(second)
    assert not tickets.redeem(second)
    assert tickets.redeem(first)
    assert not tickets.redeem(first)


def test_no_two_are_alike_and_none_can_be_guessed() -> None:
    issued = {Tickets(1).issue() for _ in range(1000)}
    assert len(issued) == 1000
    assert {len(ticket) for ticket in issued} == {16}


@pytest.mark.parametrize("wrong", [b"", b"x", bytes(16), b"x" * 10_000])
def test_what_was_never_issued_is_no_ticket_and_voids_none(wrong: bytes) -> None:
    tickets = Tickets(1)
    good = tickets.issue()
    assert not tickets.redeem(wrong)
    assert not tickets.redeem(good[:-1])
    assert not tickets.redeem(good + b"x")
    assert tickets.redeem(good)


def test_a_ticket_of_another_ps_is_no_ticket_here() -> None:
    assert not Tickets(4).redeem(Tickets(4).issue())


def test_of_too_many_the_oldest_are_void() -> None:
    tickets = Tickets(3)
    issued = [tickets.issue() for _ in range(1000)]
    assert len(tickets._out) == 3
    assert [tickets.redeem(ticket) for ticket in issued] == [False] * 997 + [True] * 3


def test_redeemed_tickets_leave_room() -> None:
    tickets = Tickets(2)
    kept = tickets.issue()
    for _ in range(100):
        assert tickets.redeem(tickets.issue())
    assert tickets.redeem(kept)


def test_of_threads_with_one_ticket_one_gets_in() -> None:
    tickets = Tickets(100)
    start = threading.Barrier(8)
    entered: list[bytes] = []
    rounds = [tickets.issue() for _ in range(100)]

    def enter() -> None:
        start.wait(10)
        entered.extend(ticket for ticket in rounds if tickets.redeem(ticket))

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(entered) == sorted(rounds)
