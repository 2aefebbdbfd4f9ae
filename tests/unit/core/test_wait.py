"""Waiting for another process: soon, bounded, and without burning a core."""

import time
from array import array
from collections.abc import Callable

import pytest

from helpers.waiting import scaled
from ropewalk.core.process.waiting import spin_then_sleep, wait_for_counter

APPLIED = 1


class Event:
    """Comes after so many sleeps, or after some time."""

    def __init__(self, sleeps: int = 0, after_s: float = 0.0) -> None:
        self._wanted = sleeps
        self._until = time.perf_counter() + after_s
        self.looks = 0
        self.sleeps: list[float] = []

    def attempt(self) -> str | None:
        self.looks += 1
        there = len(self.sleeps) >= self._wanted and time.perf_counter() >= self._until
        return "there" if there else None

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


def never(_: float) -> None:
    raise AssertionError("nobody needed to sleep")


def test_what_is_there_already_is_not_waited_for() -> None:
    event = Event()
    assert spin_then_sleep(event.attempt, never, timeout_s=0) == "there"
    assert event.looks == 1


@pytest.mark.parametrize("result", [0, False, b"", ()], ids=repr)
def test_nothing_but_none_is_waited_for(result: object) -> None:
    assert spin_then_sleep(lambda: result, never) is result


def test_who_does_not_spin_looks_once_before_each_sleep() -> None:
    event = Event(sleeps=3)
    assert spin_then_sleep(event.attempt, event.sleep, spin_s=0) == "there"
    assert event.looks == 4
    assert min(event.sleeps) > 1000  # there is no bound


def test_a_sleep_is_no_longer_than_the_time_that_is_left_and_then_it_is_over() -> None:
    left: list[float] = []

    def sleep(seconds: float) -> None:
        left.append(seconds)
        time.sleep(0.02)

    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        spin_then_sleep(lambda: None, sleep, timeout_s=0.1)
    assert 0.1 <= time.perf_counter() - began < scaled(1)
    assert left == sorted(left, reverse=True)
    assert 0 < left[-1] < left[0] <= 0.1


@pytest.fixture
def counters() -> memoryview:
    return memoryview(array("q", [0] * 6))


def never_asked() -> bool:
    raise AssertionError("nobody needed to be asked")


@pytest.mark.parametrize("value", [7, 8, 2**40], ids=["just", "more", "much-more"])
def test_a_counter_that_is_there_already_is_not_waited_for(
    counters: memoryview, value: int
) -> None:
    counters[APPLIED] = value
    assert wait_for_counter(counters, APPLIED, 7, never_asked)
    assert wait_for_counter(counters, 0, 0, never_asked)


def asked(answers: list[Callable[[], object]]) -> Callable[[], bool]:
    """Before each sleep the next of these happens; after the last one nobody goes on."""
    rest = iter(answers)

    def goes_on() -> bool:
        happens = next(rest, None)
        if happens is not None:
            happens()
        return happens is not None

    return goes_on


def test_a_counter_is_looked_at_between_sleeps_and_no_other_one_counts(
    counters: memoryview,
) -> None:
    def move(index: int, value: int) -> Callable[[], object]:
        return lambda: counters.__setitem__(index, value)

    steps = [move(0, 100), move(APPLIED, 6), move(APPLIED, 9), never_asked]
    assert wait_for_counter(counters, APPLIED, 7, asked(steps))


def test_no_means_no_if_it_is_not_there(counters: memoryview) -> None:
    counters[APPLIED] = 6
    assert not wait_for_counter(counters, APPLIED, 7, asked([lambda: None] * 2))


def test_no_means_yes_if_it_came_before_the_no(counters: memoryview) -> None:
    """The ps applied the last block, answered, and the answer was seen first."""

    def answered() -> bool:
        counters[APPLIED] = 7
        return False

    assert wait_for_counter(counters, APPLIED, 7, answered)


def test_an_error_of_who_is_asked_comes_out(counters: memoryview) -> None:
    def broken() -> bool:
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError, match="reset"):
        wait_for_counter(counters, APPLIED, 1, broken)


def test_a_long_wait_is_nearly_all_sleep(counters: memoryview) -> None:
    """As for a worker that was stopped: soon one look every 2 ms."""
    times: list[float] = []

    def goes_on() -> bool:
        times.append(time.perf_counter())
        return times[-1] - times[0] < 0.5

    began = time.process_time()
    assert not wait_for_counter(counters, APPLIED, 1, goes_on)
    assert len(times) < 0.5 / 2e-3 + 100
    assert time.process_time() - began < 0.25
