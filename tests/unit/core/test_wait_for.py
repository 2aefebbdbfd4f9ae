"""Waiting for a counter the other side of a segment moves: soon, bounded, and without burning a
core.
"""

from array import array
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from windlass.net import shared_memory
from windlass.net.shared_memory import APPLIED, WRITTEN, wait_for


class Clock:
    """A clock that looking and sleeping move on, and what happens at which time.

    Args:
        counters: Of the segment.
    """

    def __init__(self, counters: memoryview) -> None:
        self.now = 100.0
        self.naps: list[tuple[float, float]] = []
        self.yields = 0
        self.events: list[tuple[float, Callable[[], None]]] = []
        self._counters = counters

    def at(self, after_s: float, index: int, value: int) -> None:
        """So long from now the other side moves a counter."""

        def move() -> None:
            self._counters[index] = value

        self.events.append((self.now + after_s, move))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.naps.append((self.now, seconds))
        self.pass_by(seconds)

    def perf_counter(self) -> float:
        return self.now

    def sched_yield(self) -> None:
        self.yields += 1
        self.pass_by(2e-6)


@pytest.fixture
def counters() -> memoryview:
    return memoryview(array("q", [0] * 6))


@pytest.fixture
def clock(counters: memoryview, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(counters)
    fake = SimpleNamespace(sleep=clock.sleep, perf_counter=clock.perf_counter)
    monkeypatch.setattr(shared_memory, "time", fake)
    monkeypatch.setattr(shared_memory, "os", SimpleNamespace(sched_yield=clock.sched_yield))
    return clock


def never_asked() -> bool:
    raise AssertionError("nobody needed to be asked")


@pytest.mark.parametrize("value", [7, 8, 2**40], ids=["just", "more", "much-more"])
def test_what_is_there_already_is_not_waited_for(
    counters: memoryview, clock: Clock, value: int
) -> None:
    counters[WRITTEN] = value
    assert wait_for(counters, WRITTEN, 7, never_asked)
    assert (clock.now, clock.yields, clock.naps) == (100.0, 0, [])


def test_nothing_is_waited_for_where_nothing_is_needed(counters: memoryview, clock: Clock) -> None:
    assert wait_for(counters, APPLIED, 0, never_asked)
    assert clock.yields == 0


def test_what_comes_soon_is_seen_awake(counters: memoryview, clock: Clock) -> None:
    clock.at(150e-6, WRITTEN, 7)
    assert wait_for(counters, WRITTEN, 7, never_asked)
    assert clock.naps == []
    assert clock.now - 100.0 < 155e-6


def test_others_may_run_while_it_is_awake(counters: memoryview, clock: Clock) -> None:
    clock.at(100e-6, WRITTEN, 1)
    assert wait_for(counters, WRITTEN, 1, never_asked)
    assert clock.yields >= 40


@pytest.mark.parametrize("after_s", [1e-3, 20e-3, 3.0], ids=["1ms", "20ms", "3s"])
def test_what_comes_late_is_seen_a_little_later(
    counters: memoryview, clock: Clock, after_s: float
) -> None:
    clock.at(after_s, APPLIED, 9)
    assert wait_for(counters, APPLIED, 9, lambda: True)
    late = clock.now - 100.0 - after_s
    # A sixteenth of what was waited for, 2 ms at most; the nap that was begun goes to its end.
    assert 0 <= late <= min(after_s / 16, 2e-3) * 1.01


def test_the_other_counter_does_not_count(counters: memoryview, clock: Clock) -> None:
    clock.at(1e-3, WRITTEN, 100)
    clock.at(5e-3, APPLIED, 100)
    assert wait_for(counters, APPLIED, 100, lambda: True)
    assert clock.now >= 100.0 + 5e-3


def test_steps_below_what_is_needed_do_not_do(counters: memoryview, clock: Clock) -> None:
    for millisecond in range(1, 11):
        clock.at(millisecond * 1e-3, WRITTEN, millisecond)
    assert wait_for(counters, WRITTEN, 10, lambda: True)
    assert counters[WRITTEN] == 10


def test_no_means_no_if_it_is_not_there(counters: memoryview, clock: Clock) -> None:
    counters[WRITTEN] = 6
    answers = iter([True, True, False])
    assert not wait_for(counters, WRITTEN, 7, lambda: next(answers))
    assert len(clock.naps) == 2
    assert list(answers) == []


def test_no_means_yes_if_it_came_before_the_no(counters: memoryview, clock: Clock) -> None:
    """The ps applied the last block, answered, and the answer was seen first."""

    def answered() -> bool:
        counters[APPLIED] = 7
        return False

    assert wait_for(counters, APPLIED, 7, answered)
    assert clock.naps == []


def test_an_error_of_who_is_asked_comes_out(counters: memoryview, clock: Clock) -> None:
    def broken() -> bool:
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError, match="reset"):
        wait_for(counters, WRITTEN, 1, broken)
    assert clock.naps == []


def test_it_is_asked_before_every_nap_and_never_while_awake(
    counters: memoryview, clock: Clock
) -> None:
    asked: list[float] = []

    def ask() -> bool:
        asked.append(clock.now)
        return True

    clock.at(50e-3, WRITTEN, 1)
    assert wait_for(counters, WRITTEN, 1, ask)
    assert asked == [begun for begun, _ in clock.naps]
    assert asked[0] >= 100.0 + 200e-6


def test_a_long_wait_is_nearly_all_sleep(counters: memoryview, clock: Clock) -> None:
    """As for a worker that was stopped: one look every 2 ms, and soon so few."""
    asked: list[float] = []

    def ask() -> bool:
        asked.append(clock.now)
        return clock.now < 100.0 + 60

    assert not wait_for(counters, WRITTEN, 1, ask)
    assert len(asked) <= 60 / 2e-3 + 100
    assert sum(time < 101.0 for time in asked) <= 1 / 2e-3 + 100
    assert {round(nap, 9) for _, nap in clock.naps[200:]} == {2e-3}
    assert clock.yields <= 200
