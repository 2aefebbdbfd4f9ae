"""Lines about waits: when they come, and what they say."""

import logging
import re

import pytest

from helpers.clock import ManualClock
from ropewalk.core.process.waiting import WaitLog


@pytest.fixture(autouse=True)
def _seen(caplog: pytest.LogCaptureFixture, restored_logger: logging.Logger) -> None:
    restored_logger.propagate = True
    caplog.set_level(logging.INFO, logger="ropewalk")


def wait(seconds: int, waits: WaitLog, clock: ManualClock) -> None:
    for _ in range(seconds):
        clock.advance(1)
        waits.tick("the chief at a:1", "connection refused")


def test_a_wait_says_for_whom_since_when_and_until_when(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(100.0)
    waits = WaitLog("worker:0", limit_s=120, limit="join_timeout_s", clock=clock)
    wait(2, waits, clock)
    assert caplog.messages == []
    wait(1, waits, clock)
    [line] = caplog.messages
    found = re.fullmatch(
        r"worker:0 waits for the chief at a:1 since (..):(..):(..) \(3 s\), "
        r"until (..):(..):(..) \(join_timeout_s 120 s\): connection refused",
        line,
    )
    assert found is not None, line
    h, m, s, h2, m2, s2 = map(int, found.groups())
    assert ((h2 - h) * 3600 + (m2 - m) * 60 + s2 - s) % 86400 == 120


def test_lines_become_rarer_and_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    waits = WaitLog("worker:0", limit="until the job ends", clock=clock)
    wait(200, waits, clock)
    said = [int(re.findall(r"\((\d+) s\)", line)[0]) for line in caplog.messages]
    assert said == [3, 10, 30, 60, 120, 180]
    assert "without a limit (until the job ends)" in caplog.messages[0]
    waits.done()
    assert caplog.messages[-1] == "worker:0 waited 200 s for the chief at a:1: over"


def test_a_short_wait_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    waits = WaitLog("worker:0", clock=clock)
    for _ in range(5):
        wait(2, waits, clock)
        waits.done()
    assert caplog.messages == []


def test_a_wait_is_over_at_its_limit_and_begins_anew_with_the_next_thing() -> None:
    clock = ManualClock(100.0)
    waits = WaitLog("worker:0", limit_s=5, limit="join_timeout_s", clock=clock)
    endless = WaitLog("worker:0", limit="until the job ends", clock=clock)
    seen = []
    for _ in range(3):
        wait(2, waits, clock)
        seen.append((waits.left_s, waits.is_over, endless.is_over))
    waits.restart()
    seen.append((waits.left_s, waits.is_over, endless.is_over))
    assert seen == [(3, False, False), (1, False, False), (-1, True, False), (5, False, False)]
