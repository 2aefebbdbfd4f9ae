"""Retrying: until it works, until it is too late, or until told to stop. No real time passes."""

import threading
from types import SimpleNamespace

import pytest

from windlass.core.backoff import attempts
from windlass.core.clock import ManualClock
from windlass.core.errors import PeerLostError, RefusedError


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


def test_it_tries_again_until_one_attempt_succeeds(clock: ManualClock) -> None:
    tried = 0
    for attempt in attempts(timeout_s=60, stop=ManualEvent(clock)):
        with attempt:
            tried += 1
            if tried < 4:
                raise PeerLostError(f"attempt {tried}")
    assert tried == 4


def test_waits_grow_up_to_the_cap_and_never_beyond_it(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    with pytest.raises(PeerLostError):
        for attempt in attempts(timeout_s=100, initial_s=0.1, max_s=2.0, stop=event):
            with attempt:
                raise PeerLostError("no")
    assert event.waits[0] <= 0.2  # initial_s and its jitter
    assert max(event.waits[:3]) < max(event.waits)
    assert 1.0 < max(event.waits) <= 2.0


def test_giving_up_raises_the_last_failure_as_it_is(clock: ManualClock) -> None:
    raised: list[PeerLostError] = []
    with pytest.raises(PeerLostError) as caught:
        for attempt in attempts(timeout_s=1, stop=ManualEvent(clock)):
            with attempt:
                raised.append(PeerLostError(f"attempt {len(raised)}"))
                raise raised[-1]
    assert len(raised) > 1
    assert caught.value is raised[-1]


def test_no_attempt_begins_after_the_timeout(clock: ManualClock) -> None:
    began: list[float] = []
    with pytest.raises(PeerLostError):
        for attempt in attempts(timeout_s=10, initial_s=8, max_s=60, stop=ManualEvent(clock)):
            with attempt:
                began.append(clock.now())
                raise PeerLostError("no")
    assert max(began) <= 10


def test_a_timeout_of_zero_is_one_attempt() -> None:
    tried = 0
    with pytest.raises(PeerLostError):
        for attempt in attempts(timeout_s=0):
            with attempt:
                tried += 1
                raise PeerLostError("no")
    assert tried == 1


def test_a_failure_that_is_not_listed_passes_at_once(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    with pytest.raises(RefusedError, match="never"):
        for attempt in attempts(timeout_s=60, stop=event):
            with attempt:
                raise RefusedError("never")
    assert event.waits == []


def test_which_failures_are_worth_another_attempt_is_the_callers_choice(
    clock: ManualClock,
) -> None:
    left: list[Exception] = [OSError("a"), KeyError("b")]
    for attempt in attempts(
        timeout_s=60, retry_on=(OSError, KeyError), stop=ManualEvent(clock)
    ):
        with attempt:
            if left:
                raise left.pop()
    assert left == []


def test_a_stop_ends_the_waiting(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    tried = 0
    with pytest.raises(PeerLostError):
        for attempt in attempts(
            timeout_s=3600, initial_s=600, max_s=600, stop=event, before_sleep=lambda _: event.set()
        ):
            with attempt:
                tried += 1
                raise PeerLostError("no")
    assert clock.now() == 0.0  # the wait of 600 s did not happen
    assert tried <= 2  # at most a last try after the wait was cut short


def test_a_stop_before_the_first_failure_leaves_one_attempt(clock: ManualClock) -> None:
    event = ManualEvent(clock)
    event.set()
    with pytest.raises(PeerLostError, match="once"):
        for attempt in attempts(timeout_s=3600, stop=event):
            with attempt:
                raise PeerLostError("once")
    assert event.waits == []


def test_each_failure_is_told_before_the_wait_that_follows_it(clock: ManualClock) -> None:
    told: list[str] = []
    tried = 0
    for attempt in attempts(
        timeout_s=60, stop=ManualEvent(clock), before_sleep=lambda error: told.append(str(error))
    ):
        with attempt:
            tried += 1
            if tried < 3:
                raise PeerLostError(f"failure {tried}")
    assert told == ["failure 1", "failure 2"]
