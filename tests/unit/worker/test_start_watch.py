"""A task that starts is never silent for long, and never stuck for ever."""

import logging
import threading

import pytest

from helpers.clock import ManualClock
from ropewalk.worker.process.start_watch import (
    STUCK_S,
    Standstill,
    StartWatch,
    ThreadPosition,
    main_position,
)

HERE = ThreadPosition(
    (("/x/ropewalk/net/probes.py", 44, "start"), ("/lib/socket.py", 7, "bind")), 1.0
)
THERE = ThreadPosition((("/x/ropewalk/net/probes.py", 45, "start"),), 1.0)


def looks(
    still: Standstill, until: float, place: ThreadPosition, last_line: float = 0.0
) -> list[float]:
    """Times at which something is said, if it is looked at every second."""
    return [float(now) for now in range(1, int(until)) if still.look(now, place, last_line)[0]]


def test_a_start_that_moves_and_speaks_is_left_alone() -> None:
    still = Standstill(0.0, HERE)
    for now in range(1000):
        place = HERE if now % 2 else THERE
        assert still.look(float(now), place, last_line=now - 5.0) == (False, False)


def test_silence_is_told_after_ten_seconds_and_then_every_half_a_minute() -> None:
    assert looks(Standstill(0.0, HERE), 100, HERE) == [10.0, 40.0, 70.0]


@pytest.mark.parametrize(
    ("place", "last_line", "ends"),
    [
        pytest.param(HERE, 0.0, True, id="at one place, silent"),
        pytest.param(HERE, 30.0, False, id="it has spoken"),
        pytest.param(THERE, 0.0, False, id="it has moved"),
        pytest.param(ThreadPosition(HERE.stack, 2.5), 0.0, False, id="it computes"),
    ],
)
def test_only_who_stands_still_in_silence_for_three_minutes_ends(
    place: ThreadPosition, last_line: float, ends: bool
) -> None:
    still = Standstill(0.0, HERE)
    assert still.look(STUCK_S - 1, HERE, 0.0)[1] is False
    still.look(STUCK_S - 0.5, place, last_line)
    assert still.look(STUCK_S, place, last_line)[1] is ends


def test_the_place_is_told_as_a_line_of_ropewalk() -> None:
    assert str(HERE) == "net/probes.py:44 (start)"
    assert "main_position" in {name for _, _, name in main_position().stack}


def test_a_stuck_task_says_where_it_is_and_ends(
    restored_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    restored_logger.propagate = True
    ended = threading.Event()
    watch = StartWatch("/job:worker/task:0", lambda: HERE, ended.set, ManualClock())
    with caplog.at_level(logging.WARNING, logger="ropewalk"):
        watch.begin()
        assert ended.wait(10)
    watch.over()
    first, *_, last = [record.message for record in caplog.records]
    assert first == (
        "/job:worker/task:0 has been starting for 10 s and is at net/probes.py:44 (start); it ends "
        "if it stays there for 180 s"
    )
    assert "has not moved for 180 s while it started, and ends; it is at\n" in last
    assert "/lib/socket.py:7 (bind)" in last
