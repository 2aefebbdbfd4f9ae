"""Leases: every range of every epoch is trained by somebody, and no epoch ends before."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.annexes.ledger.leases import AllLeased, Leases, Over, RangeLease, Tell
from ropewalk.annexes.ledger.plan import RangesProgress
from ropewalk.core.task import Incarnation, TaskId

A, B = (Incarnation(TaskId("worker", index), 1) for index in range(2))
NOTHING = (np.zeros(4, np.bool_), np.zeros(4, np.bool_))


@pytest.fixture
def leases() -> Leases:
    """Four ranges of which nobody has trained any."""
    made = Leases(4)
    made.learn(RangesProgress(0, *NOTHING))
    return made


def bits(*numbers: int) -> np.ndarray:
    """Set some of four bits."""
    return np.isin(np.arange(4), numbers)


def test_what_the_ps_know_is_asked_for_first_and_believed_once() -> None:
    leases = Leases(4)
    assert leases.take(A, 0) == Tell()
    leases.finish(0, [1])  # nothing is known of what it is
    leases.learn(RangesProgress(2, bits(0), bits(3)))
    leases.learn(RangesProgress(0, *NOTHING))
    assert [leases.take(A, 2) for _ in range(3)] == [
        RangeLease(2, 3, begun=True),  # what was begun comes first
        RangeLease(2, 1, begun=False),
        RangeLease(2, 2, begun=False),
    ]
    assert leases.take(B, 1) == Over()


def test_an_epoch_is_over_when_all_its_ranges_are(leases: Leases) -> None:
    taken = [leases.take(who, 0) for who in (A, B, A, B)]
    assert taken == [RangeLease(0, number, begun=False) for number in range(4)]
    assert leases.take(A, 0) == AllLeased((A, B))
    leases.finish(0, [0, 1, 2])
    assert leases.take(A, 0) == AllLeased((B,))
    leases.finish(0, [3])
    assert leases.take(A, 0) == Over()
    assert leases.num_done == 4
    assert leases.take(A, 1) == RangeLease(1, 0, begun=False)
    assert leases.take(B, 0) == Over()


def test_ranges_of_a_worker_that_is_gone_are_leased_first_and_as_begun(leases: Leases) -> None:
    leases.take(A, 0)
    leases.take(B, 0)
    leases.release(lambda who: who == A)
    assert leases.take(B, 0) == RangeLease(0, 0, begun=True)
    leases.finish(0, [0])  # the one that was given up has trained it all the same
    leases.release(lambda _: True)
    assert leases.take(A, 0) == RangeLease(0, 1, begun=True)


def test_only_what_is_given_back_by_its_holder_is_free(leases: Leases) -> None:
    leases.take(A, 0)
    leases.give_back(0, [0], B)
    leases.give_back(1, [0], A)
    assert leases.take(B, 0) == RangeLease(0, 1, begun=False)
    leases.give_back(0, [0], A)
    assert leases.take(B, 0) == RangeLease(0, 0, begun=True)


def test_a_chief_that_was_started_again_leaves_what_a_worker_holds(leases: Leases) -> None:
    leases.hold(0, 0, B)
    assert leases.take(A, 0) == RangeLease(0, 1, begun=False)
    leases.hold(0, 1, B)  # A has it
    leases.release(lambda who: who == B)
    assert leases.take(A, 0) == RangeLease(0, 0, begun=True)


def test_a_worker_that_is_ahead_trains_what_is_left_of_the_epoch_before(leases: Leases) -> None:
    """It has left its loop early; if nobody took what is left, all would wait for ever."""
    leases.take(A, 0)
    leases.give_back(0, [0], A)
    assert leases.take(A, 1) == RangeLease(0, 0, begun=True)
    leases.finish(0, [0, 1, 2, 3])
    assert leases.take(A, 5) == RangeLease(1, 0, begun=False)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5))
def test_every_range_of_every_epoch_is_finished_whatever_happens(
    seed: int, ranges: int, workers: int
) -> None:
    """Workers take, finish, give back, are lost; the chief is lost and learns from the ps."""
    draw, epochs = random.Random(seed), 3
    done = {(epoch, number) for epoch in range(0) for number in range(ranges)}
    leases = Leases(ranges)
    held: dict[Incarnation, tuple[int, int]] = {}
    names = [Incarnation(TaskId("worker", index), 1) for index in range(workers)]
    at = dict.fromkeys(names, 0)

    def progress() -> RangesProgress:
        epoch = max((e for e, _ in done), default=0)
        known = np.array([(epoch, number) in done for number in range(ranges)])
        return RangesProgress(
            epoch, known, ~known & (np.random.default_rng(seed).random(ranges) < 0.5)
        )

    for _ in range(100 * ranges * epochs):
        if min(at.values()) == epochs:
            break
        who = draw.choice(names)
        event = draw.random()
        if event < 0.02:
            leases = Leases(ranges)
        elif event < 0.1:
            held.pop(who, None)
            leases.release(who.__eq__)
        elif who in held:
            epoch, number = held.pop(who)
            done.add((epoch, number))
            leases.finish(epoch, [number])
        elif at[who] < epochs:
            answer = leases.take(who, at[who])
            if isinstance(answer, Tell):
                leases.learn(progress())
            elif isinstance(answer, RangeLease):
                assert (answer.epoch, answer.number) not in done
                held[who] = answer[:2]
            elif isinstance(answer, Over):
                assert all((at[who], number) in done for number in range(ranges))
                at[who] += 1
    assert min(at.values()) == epochs
