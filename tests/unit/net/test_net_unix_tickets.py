"""A ticket stands for a principal: once, soon, and not for ever many."""

from windlass.cluster.principal import Principal
from windlass.net.unix_tickets import VALID_S, UnixTickets

WORKER = Principal("worker", "mnist", 1)


def test_a_ticket_counts_once_and_for_a_short_time() -> None:
    now = [0.0]
    tickets = UnixTickets(clock=lambda: now[0])
    first, second = tickets.issue(WORKER), tickets.issue(WORKER)
    assert first != second
    assert tickets.redeem(first) == WORKER
    assert tickets.redeem(first) is None
    now[0] = VALID_S
    assert tickets.redeem(second) is None
    assert tickets.redeem(b"guessed") is None


def test_of_many_that_are_not_used_the_oldest_go() -> None:
    tickets = UnixTickets()
    issued = [tickets.issue(WORKER) for _ in range(2000)]
    assert tickets.redeem(issued[0]) is None
    assert tickets.redeem(issued[-1]) == WORKER
