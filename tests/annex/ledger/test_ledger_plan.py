"""Marks say how far a range is, and grow; orders are permutations that any task can compute."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.annexes.ledger.plan import (
    MOST_PUSHES,
    MOST_RANGES,
    Plan,
    RangePlace,
    progress_of,
    shuffled,
    start_of,
)
from ropewalk.core.errors import ConfigurationError

PLAN = Plan(examples=100, batch=4)  # four ranges of 32, 32, 32 and 4


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_ranges_have_every_example_once_and_whole_steps(examples: int, batch: int) -> None:
    plan = Plan(examples, batch)
    positions = [p for number in range(plan.ranges) for p in plan.positions(number)]
    assert positions == list(range(examples))
    assert plan.range_examples % batch == 0


def test_of_many_examples_ranges_have_more_steps() -> None:
    plan = Plan(10**9, 1)
    assert plan.ranges <= MOST_RANGES
    assert plan.positions(plan.ranges - 1).stop == 10**9


class Made(NamedTuple):
    """A push of a range."""

    epoch: int
    start: int
    pushes: int


@given(
    st.builds(Made, st.integers(0, 1000), st.integers(0, 31), st.integers(1, MOST_PUSHES)),
    st.builds(Made, st.integers(0, 1000), st.integers(0, 31), st.integers(1, MOST_PUSHES)),
)
def test_a_later_push_has_a_larger_mark_and_says_its_place(one: Made, other: Made) -> None:
    marks = [PLAN.mark(RangePlace(*each[:2]), each.pushes) for each in (one, other)]
    assert (marks[0] < marks[1]) == (one < other)
    assert PLAN.place(marks[0]) == RangePlace(one.epoch, one.start)
    assert marks[0] < PLAN.settled(one.epoch) < PLAN.mark(RangePlace(one.epoch + 1, 0), 1)


def test_a_step_of_too_many_pushes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="push 65536 of a step in epoch 2"):
        PLAN.mark(RangePlace(2, 0), MOST_PUSHES + 1)


def test_progress_is_what_all_ps_have() -> None:
    """Of two ps: complete on both, on one, begun on one, begun on both, complete an epoch ago."""
    plan = Plan(examples=5 * 32, batch=4)
    settled, begun, before = plan.settled(3), plan.mark(RangePlace(3, 8), 1), plan.settled(2)
    marks = np.array(
        [[settled, settled, begun, begun, before], [settled, begun, before, begun, before]]
    )
    progress = progress_of(plan, marks)
    assert progress.epoch == 3
    assert progress.done.tolist() == [True, False, False, False, False]
    assert progress.begun.tolist() == [False, True, True, True, False]
    assert [start_of(plan, 3, marks[:, n]) for n in range(1, 5)] == [8, 0, 8, 0]


def test_nothing_is_known_of_data_that_nobody_has_begun() -> None:
    progress = progress_of(PLAN, np.zeros((2, PLAN.ranges), np.int64))
    assert progress.epoch == 0
    assert not progress.done.any()
    assert not progress.begun.any()


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 100))
def test_an_order_is_a_permutation_of_which_any_part_can_be_computed(
    examples: int, seed: int, epoch: int
) -> None:
    whole = shuffled(np.arange(examples), examples, (seed, epoch))
    assert sorted(whole.tolist()) == list(range(examples))
    middle = np.arange(examples // 3, examples // 2 + 1)
    assert shuffled(middle, examples, (seed, epoch)).tolist() == whole[middle].tolist()


def test_orders_of_epochs_and_seeds_differ_and_neighbours_part() -> None:
    numbers = np.arange(100_000)
    orders = [shuffled(numbers, numbers.size, key) for key in ((0, 0), (0, 1), (1, 0))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        # As many as random permutations have in common: one on average.
        assert (orders[one] == orders[other]).sum() < 10
    for order in orders:
        # Distances of neighbours of a random order have a mean of a third of all.
        assert np.abs(np.diff(order)).mean() == pytest.approx(numbers.size / 3, rel=0.02)
        # Each batch of 1000 has about as much of each tenth of the data.
        tenths = np.histogram(order.reshape(100, -1)[0], bins=10, range=(0, numbers.size))[0]
        assert tenths.min() > 60
        assert tenths.max() < 145


def test_of_data_whose_size_is_beyond_memory_an_order_is_drawn_at_once() -> None:
    order = shuffled(np.arange(10**15, 10**15 + 256), 3 * 10**15, (5, 6))
    assert len(set(order.tolist())) == 256
    assert order.min() >= 0
    assert order.max() < 3 * 10**15
