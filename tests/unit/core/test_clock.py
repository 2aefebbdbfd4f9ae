"""Time as an argument."""

import threading

from helpers.clock import ManualClock
from ropewalk.core.clock import Clock, SystemClock


def test_a_manual_clock_stands_still_until_told() -> None:
    clock = ManualClock(5.0)
    assert (clock.now(), clock.now()) == (5.0, 5.0)
    clock.advance(2.5)
    assert clock.now() == 7.5


def test_waiting_on_a_manual_clock_takes_no_time_but_the_clocks_own() -> None:
    clock, event = ManualClock(), threading.Event()
    assert clock.wait(event, 30.0) is False
    assert clock.now() == 30.0


def test_waiting_for_what_has_happened_takes_no_time_at_all() -> None:
    clock, event = ManualClock(), threading.Event()
    event.set()
    assert clock.wait(event, 30.0) is True
    assert clock.now() == 0.0


def test_the_system_clock_never_goes_back_and_waits_on_events() -> None:
    clock: Clock = SystemClock()
    event = threading.Event()
    before = clock.now()
    assert clock.wait(event, 0.0) is False
    event.set()
    assert clock.wait(event, 60.0) is True
    assert before <= clock.now() < before + 60.0
