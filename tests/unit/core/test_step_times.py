"""The clock of a program's steps, and the histograms that it fills."""

import itertools
import math
import random
import statistics
import threading
from collections.abc import Iterator

import pytest

from ropewalk.core.step_times import (
    BOUNDS_S,
    DATA,
    NUM_BUCKETS,
    OTHERS,
    PARTS,
    PUSH,
    STEP,
    StepClock,
    StepPart,
    StepTimes,
    clock_here,
    timed,
    total_times,
)


class Hand:
    """A clock's hand that a test moves. Unit: milliseconds."""

    def __init__(self) -> None:
        self.ns = 5

    def __call__(self) -> int:
        return self.ns

    def pass_ms(self, ms: float) -> None:
        self.ns += round(ms * 1e6)


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def clock(hand: Hand) -> StepClock:
    begun = StepClock(hand)
    begun.step_ended()
    return begun


def measure(clock: StepClock, hand: Hand, part: int, ms: float) -> None:
    began = clock.begin()
    hand.pass_ms(ms)
    clock.end(part, began)


def seconds(times: StepTimes) -> dict[str, float]:
    return {part.name: round(part.seconds, 9) for part in times.parts}


def test_a_step_far_slower_than_the_others_is_told_once_in_a_second(hand: Hand) -> None:
    told = list[tuple[float, float, str, float]]()
    clock = StepClock(hand, on_slow=lambda *slow: told.append(slow))
    clock.step_ended()

    def step(push_ms: float) -> None:
        hand.pass_ms(1)
        measure(clock, hand, PUSH, push_ms)
        clock.step_ended()

    step(100)  # nothing is usual yet
    for _ in range(300):
        step(1)
    assert not told
    for _ in range(3):
        step(50)
    [(took_s, usual_s, part, part_s)] = told
    assert (took_s, part, part_s) == (0.051, "push", 0.05)
    assert 0.001 < usual_s < 0.004
    hand.pass_ms(1000)
    clock.step_ended()
    assert len(told) == 2


def test_what_is_not_measured_is_the_programs_own(clock: StepClock, hand: Hand) -> None:
    for _ in range(3):
        measure(clock, hand, DATA, 6)
        hand.pass_ms(3)
        measure(clock, hand, PUSH, 1)
        clock.step_ended()
    times = clock.times()
    assert seconds(times) == {"data": 0.018, "compute": 0.009, "push": 0.003, "step": 0.030}
    assert times.count == 3
    assert times.largest() == "data"
    assert [round(times.share(name), 9) for name in PARTS] == [0.6, 0, 0.3, 0.1, 0, 0]
    assert round(times.mean("push"), 9) == 0.001


def test_the_first_step_is_not_counted_nor_what_came_before_it(hand: Hand) -> None:
    clock = StepClock(hand)
    measure(clock, hand, OTHERS, 7000)
    hand.pass_ms(9000)
    clock.step_ended()
    assert clock.times() == StepTimes()
    assert clock.times().largest() == ""
    hand.pass_ms(2)
    clock.step_ended()
    assert seconds(clock.times()) == {"compute": 0.002, "step": 0.002}


def test_a_part_inside_another_counts_once(clock: StepClock, hand: Hand) -> None:
    began = clock.begin()
    hand.pass_ms(2)
    measure(clock, hand, OTHERS, 5)
    hand.pass_ms(1)
    clock.end(DATA, began)
    clock.step_ended()
    assert seconds(clock.times()) == {"data": 0.003, "others": 0.005, "step": 0.008}


def test_parts_that_two_threads_measure_at_once_never_make_more_than_the_step(
    clock: StepClock, hand: Hand
) -> None:
    one = clock.begin()
    other = clock.begin()
    hand.pass_ms(4)
    clock.end(PUSH, one)
    clock.end(PUSH, other)
    clock.step_ended()
    assert seconds(clock.times()) == {"push": 0.004, "step": 0.004}


def test_a_part_that_fails_is_in_no_part(clock: StepClock, hand: Hand) -> None:
    clock.begin()  # and no end
    hand.pass_ms(4)
    clock.step_ended()
    assert seconds(clock.times()) == {"compute": 0.004, "step": 0.004}


def test_buckets_go_from_a_microsecond_to_a_quarter_of_an_hour_by_the_root_of_two() -> None:
    assert BOUNDS_S[0] == pytest.approx(1.024e-6)
    assert BOUNDS_S[-1] > 1000
    ratios = [after / before for before, after in itertools.pairwise(BOUNDS_S)]
    assert ratios == pytest.approx([math.sqrt(2)] * (NUM_BUCKETS - 2), rel=1e-3)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_a_quantile_is_within_a_bucket_of_the_exact_one(
    clock: StepClock, hand: Hand, q: float, spread: float
) -> None:
    chosen = random.Random(7)
    lengths = [chosen.lognormvariate(0, spread) for _ in range(2000)]
    for ms in lengths:
        hand.pass_ms(ms)
        clock.step_ended()
    exact = statistics.quantiles(lengths, n=100, method="inclusive")[round(q * 100) - 1] / 1e3
    assert exact / math.sqrt(2) <= clock.times().part(STEP).quantile(q) <= exact * math.sqrt(2)


def test_steps_beyond_the_last_bound_are_counted(clock: StepClock, hand: Hand) -> None:
    for ms in (0.0001, 5e6):
        hand.pass_ms(ms)
        clock.step_ended()
    step = clock.times().part(STEP)
    assert (step.count, step.buckets[0], step.buckets[-1], len(step.buckets)) == (2, 1, 1, 62)
    assert step.quantile(1.0) == BOUNDS_S[-1]


def test_nothing_has_quantiles_and_shares_of_zero() -> None:
    assert StepPart("data").quantile(0.5) == 0.0
    assert StepTimes().share("data") == StepTimes().step_s == 0.0


def test_times_of_a_while_are_those_of_two_moments_subtracted(clock: StepClock, hand: Hand) -> None:
    measure(clock, hand, DATA, 900)
    clock.step_ended()
    before = clock.times()
    for _ in range(4):
        measure(clock, hand, PUSH, 2)
        clock.step_ended()
    later = clock.times()
    recent = later.since(before)
    assert (recent.count, recent.largest(), recent.share("data")) == (4, "push", 0.0)
    assert recent.part(STEP).quantile(0.99) == pytest.approx(2e-3, rel=0.42)
    # A task that was started again has fewer steps than it had.
    assert before.since(later) == before
    assert seconds(total_times([before, recent])) == seconds(later)


def test_what_does_not_know_whose_step_it_is_in_measures_for_the_thread_that_makes_steps(
    clock: StepClock, hand: Hand
) -> None:
    def batches() -> Iterator[int]:
        for number in range(3):
            hand.pass_ms(2)
            yield number

    in_another_thread: list[list[int]] = []
    other = threading.Thread(target=lambda: in_another_thread.append(list(timed(batches()))))
    other.start()
    other.join()
    assert in_another_thread == [[0, 1, 2]]
    clock.step_ended()
    assert clock_here() is clock
    assert seconds(clock.times()) == {"compute": 0.006, "step": 0.006}
    assert list(timed(batches())) == [0, 1, 2]
    clock.step_ended()
    assert seconds(clock.times())["data"] == 0.006
