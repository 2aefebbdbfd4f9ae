"""Retrying: until it works, until it is too late, or until told to stop. No real time passes."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.clock import ManualClock
from ropewalk.core.backoff import Backoff, attempts
from ropewalk.core.errors import PeerLostError, RefusedError


class ManualEvent(threading.Event):
    """An event on which waiting turns a clock by hand."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self._clock.wait(self, timeout)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The time tenacity sees."""
    manual = ManualClock()
    monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=manual.now))
    return manual


def _run(action: Callable[[], None], **options: Any) -> None:
    """Try ``action`` as users of :func:`attempts` write it."""
    for attempt in attempts(**options):
        with attempt:
            action()


class Failing:
    """Fails ``times`` times (always by default), and keeps what it raised and when."""

    def __init__(self, clock: ManualClock, times: int | None = None) -> None:
        self._clock, self._times = clock, times
        self.raised: list[PeerLostError] = []
        self.began: list[float] = []

    def __call__(self) -> None:
        self.began.append(self._clock.now())
        if self._times is None or len(self.raised) < self._times:
            self.raised.append(PeerLostError(f"failure {len(self.raised) + 1}"))
            raise self.raised[-1]


def test_it_tries_again_until_one_attempt_succeeds(clock: ManualClock) -> None:
    action = Failing(clock, times=3)
    _run(action, timeout_s=60, stop=ManualEvent(clock))
    assert len(action.began) == 4


def test_waits_grow_up_to_the_cap_and_never_beyond_it(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    with pytest.raises(PeerLostError):
        _run(Failing(clock), timeout_s=100, initial_s=0.1, max_s=2.0, stop=event)
    assert event.waits[0] <= 0.2  # initial_s and its jitter
    assert max(event.waits[:3]) < max(event.waits)
    assert 1.0 < max(event.waits) <= 2.0


def test_waits_at_the_cap_are_jittered_too(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    with pytest.raises(PeerLostError):
        _run(Failing(clock), timeout_s=100, initial_s=1.0, max_s=2.0, stop=event)
    at_the_cap = event.waits[1:]
    assert len(set(at_the_cap)) > len(at_the_cap) / 2
    assert all(1.0 <= wait <= 2.0 for wait in at_the_cap)


def test_each_wait_is_between_half_of_its_bound_and_all_of_it() -> None:
    backoff = Backoff(0.1, 0.3)
    waits = [backoff.next_s() for _ in range(4)]
    for wait, bound in zip(waits, (0.1, 0.2, 0.3, 0.3), strict=True):
        assert bound / 2 <= wait <= bound


def test_after_a_success_the_first_wait_comes_again() -> None:
    backoff = Backoff(0.1, 100.0)
    for _ in range(10):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_a_cap_below_the_first_wait_wins() -> None:
    assert Backoff(5.0, 1.0).next_s() <= 1.0


def test_giving_up_raises_the_last_failure_as_it_is(clock: ManualClock) -> None:
    action = Failing(clock)
    with pytest.raises(PeerLostError) as caught:
        _run(action, timeout_s=1, stop=ManualEvent(clock))
    assert len(action.raised) > 1
    assert caught.value is action.raised[-1]


def test_no_attempt_begins_after_the_timeout(clock: ManualClock) -> None:
    action = Failing(clock)
    with pytest.raises(PeerLostError):
        _run(action, timeout_s=10, initial_s=8, max_s=60, stop=ManualEvent(clock))
    assert max(action.began) <= 10


def test_a_timeout_of_zero_is_one_attempt(clock: ManualClock) -> None:
    action = Failing(clock)
    with pytest.raises(PeerLostError):
        _run(action, timeout_s=0)
    assert len(action.began) == 1


def test_a_failure_that_is_not_listed_passes_at_once(clock: ManualClock) -> None:
    def refuse() -> None:
        raise RefusedError("never")

    event = ManualEvent(clock)
    with pytest.raises(RefusedError, match="never"):
        _run(refuse, timeout_s=60, stop=event)
    assert event.waits == []


def test_which_failures_are_worth_another_attempt_is_the_callers_choice(
    clock: ManualClock,
) -> None:
    left: list[Exception] = [OSError("a"), KeyError("b")]

    def fail_twice() -> None:
        if left:
            raise left.pop()

    _run(fail_twice, timeout_s=60, retry_on=(OSError, KeyError), stop=ManualEvent(clock))
    assert left == []


def test_a_stop_ends_the_waiting(clock: ManualClock) -> None:
    event, action = ManualEvent(clock), Failing(clock)
    with pytest.raises(PeerLostError):
        _run(
            action,
            timeout_s=3600,
            initial_s=600,
            max_s=600,
            stop=event,
            before_sleep=lambda _: event.set(),
        )
    assert clock.now() == 0.0  # the wait of 600 s did not happen
    assert len(action.began) <= 2  # at most a last try after the wait was cut short


def test_a_stop_before_the_first_failure_leaves_one_attempt(clock: ManualClock) -> None:
    event, action = ManualEvent(clock), Failing(clock)
    event.set()
    with pytest.raises(PeerLostError):
        _run(action, timeout_s=3600, stop=event)
    assert len(action.began) == 1
    assert event.waits == []


def test_each_failure_is_reported_before_the_wait_that_follows_it(clock: ManualClock) -> None:
    told: list[str] = []
    _run(
        Failing(clock, times=2),
        timeout_s=60,
        stop=ManualEvent(clock),
        before_sleep=lambda error: told.append(str(error)),
    )
    assert told == ["failure 1", "failure 2"]
