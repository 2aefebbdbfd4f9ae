"""No caller has all places, or all threads."""

import threading
from collections.abc import Callable

import pytest

from helpers.waiting import scaled, wait_until
from ropewalk.net.http2 import shares
from ropewalk.net.http2.shares import Caller, CallPool, Places, WorkBudget

READER = "reader"
WORKERS = [("worker", index) for index in range(4)]


def taken(places: Places, caller: Caller, tries: int = 100) -> int:
    return sum(places.take(caller) for _ in range(tries))


def test_one_caller_has_half_at_most() -> None:
    places = Places(10)
    assert taken(places, READER) == 5
    assert taken(places, WORKERS[1]) == 5
    assert not places.take(WORKERS[2])
    places.give_back(READER)
    assert not places.take(WORKERS[1]), "it has its half"
    assert places.take(WORKERS[2])
    assert places.count == 10


def test_callers_that_cannot_be_told_apart_may_have_all() -> None:
    assert taken(Places(10), None) == 10


def test_several_places_are_taken_together_or_not_at_all() -> None:
    places = Places(10)
    assert places.take(READER, 4)
    assert not places.take(READER, 2)
    assert places.count == 4
    places.give_back(READER, 4)
    assert places.take(READER, 5)


def test_the_only_place_is_for_whoever_comes() -> None:
    assert Places(1).take(READER)


class Work:
    """Calls that run until they are let go."""

    def __init__(self, threads: int, waiting: int) -> None:
        self.pool = CallPool("test", threads, waiting)
        self.running: list[Caller] = []
        self._go_on: dict[int, threading.Event] = {}

    def call(self, caller: Caller) -> bool:
        number, go_on = len(self._go_on), threading.Event()
        self._go_on[number] = go_on

        def work() -> None:
            self.running.append(caller)
            go_on.wait(scaled(10))

        return self.pool.run(caller, work)

    def end(self, number: int) -> None:
        self._go_on[number].set()

    def stop(self) -> None:
        for each in self._go_on.values():
            each.set()
        self.pool.close(scaled(10))


@pytest.fixture
def work(request: pytest.FixtureRequest) -> Callable[[int, int], Work]:
    def make(threads: int, waiting: int) -> Work:
        made = Work(threads, waiting)
        request.addfinalizer(made.stop)
        return made

    return make


def test_a_caller_s_many_calls_wait_and_others_overtake_them(
    work: Callable[[int, int], Work],
) -> None:
    calls = work(4, 8)
    assert all(calls.call(READER) for _ in range(6))
    wait_until(lambda: calls.running == [READER] * 2, 10, "half of the threads")
    assert calls.call(WORKERS[0])
    wait_until(lambda: calls.running == [READER] * 2 + [WORKERS[0]], 10, "the worker's call")
    calls.end(0)
    wait_until(lambda: calls.running[3:] == [READER], 10, "the next of the reader's")


def test_calls_beyond_the_places_to_wait_are_refused(work: Callable[[int, int], Work]) -> None:
    calls = work(2, 4)
    assert [calls.call(READER) for _ in range(4)] == [True, True, True, False]
    assert [calls.call(WORKERS[0]) for _ in range(4)] == [True, True, True, False]


def test_a_call_that_fails_gives_its_thread_back(work: Callable[[int, int], Work]) -> None:
    calls = work(1, 1)

    def fail() -> None:
        raise ZeroDivisionError

    assert calls.pool.run(READER, fail)
    assert calls.call(WORKERS[0])
    wait_until(lambda: calls.running == [WORKERS[0]], 10, "the next call")


def test_no_call_begins_after_the_end(work: Callable[[int, int], Work]) -> None:
    calls = work(1, 1)
    calls.pool.close(0)
    assert not calls.call(READER)


def test_a_call_without_a_thread_is_refused_and_not_made_later(
    work: Callable[[int, int], Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = work(2, 4)

    def refuse(*_: object, **__: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(shares, "new_thread", refuse)
        assert not calls.call(READER)
    assert calls.call(WORKERS[0])
    wait_until(lambda: calls.running == [WORKERS[0]], 10, "the worker's call")
    assert calls.call(WORKERS[1])
    wait_until(lambda: calls.running == WORKERS[:2], 10, "both calls")


def test_what_one_has_asked_for_holds_up_the_next_for_two_seconds_at_most() -> None:
    budget = WorkBudget(0.2, 1.0)
    assert budget.wait_s(100.0) == 0
    budget.spend(1000.0)
    assert budget.wait_s(100.0) == pytest.approx(2.0)
    assert budget.wait_s(102.1) == 0
