"""The ring of events: bounded in number and size, with names, at any log level."""

import json
import logging
import sys
import weakref
from collections.abc import Iterator

import pytest

from helpers.clock import ManualClock
from ropewalk.core.errors import PeerLostError
from ropewalk.core.process import events
from ropewalk.core.process.log_records import RareLog
from ropewalk.core.process.waiting import WaitLog


@pytest.fixture(autouse=True)
def empty_ring() -> Iterator[None]:
    """An empty ring, and none of a test's events behind it."""
    events._ring.clear()
    yield
    events._ring.clear()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that keeps its lines with the events and shows only errors."""
    logger = logging.getLogger("ropewalk.test_events")
    handler = events.EventHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_an_event_has_a_name_and_fields() -> None:
    events.record("ps.broken", peer="ps:1", step=3)
    last = events.recent(1)[0]
    assert last.as_json() == {
        "at": pytest.approx(last.at, abs=1e-5),
        "event": "ps.broken",
        "peer": "ps:1",
        "step": 3,
    }


def test_the_ring_keeps_the_last_ones_and_counts_all() -> None:
    before = events.count()
    for number in range(events.MOST + 5):
        events.record("wait.over", number=number)
    kept = events.recent()
    assert [kept[0].fields["number"], kept[-1].fields["number"]] == [5, events.MOST + 4]
    assert len(kept) == events.MOST
    assert events.count() - before == events.MOST + 5


def test_a_text_is_cut_so_that_the_whole_ring_is_below_8_mb() -> None:
    for _ in range(events.MOST):
        events.record("ps.broken", peer="p" * 1000, error="é" * 100_000, why="w" * 1000)
    sizes = (
        sum(map(sys.getsizeof, (each, each.fields, *each.fields.values())))
        for each in events.recent()
    )
    assert sum(sizes) < 8e6


def test_of_events_that_are_too_long_the_last_ones_are_written() -> None:
    for number in range(100):
        events.record("ps.broken", error="é" * 300, number=number)
    written = events.lines(10_000)
    assert 9_000 < len(written.encode()) <= 10_000
    numbers = [json.loads(line)["number"] for line in written.splitlines()]
    assert numbers == list(range(100 - len(numbers), 100))


def test_an_error_is_kept_as_text_and_keeps_nothing_alive() -> None:
    error = PeerLostError("gone")
    alive = weakref.ref(error)
    events.record("ps.broken", error=error)
    del error
    assert alive() is None
    assert events.recent(1)[0].fields["error"] == "gone"


def test_a_line_that_is_logged_as_an_event_is_kept_once_at_any_level(
    logger: logging.Logger,
) -> None:
    logger.setLevel(logging.ERROR)
    before = events.count()
    logger.info("shown to nobody", extra=events.event("chief.back"))
    logger.setLevel(logging.INFO)
    logger.warning("shown", extra=events.event("chief.silent", silent_s=11))
    assert events.count() - before == 2
    assert [each.name for each in events.recent(2)] == ["chief.back", "chief.silent"]


def test_a_line_without_a_name_is_kept_as_a_line(logger: logging.Logger) -> None:
    logger.warning("%d things", 3)
    last = events.recent(1)[0]
    assert (last.name, dict(last.fields)) == ("log.line", {"level": "WARNING", "text": "3 things"})


def test_lines_that_others_can_cause_do_not_push_events_out(logger: logging.Logger) -> None:
    rare, before = RareLog(logger), events.count()
    for _ in range(1000):
        rare.warning("refused", about="caller.refused", caller="worker:9")
    assert events.count() - before == 1
    assert events.recent(1)[0].fields["caller"] == "worker:9"


def test_a_long_wait_says_for_whom_and_when_it_is_over() -> None:
    clock = ManualClock()
    waits = WaitLog("worker:0", clock=clock)
    clock.advance(4)
    waits.tick("ps:1", "refused")
    clock.advance(2)
    waits.done()
    long, over = events.recent(2)
    assert (long.name, dict(long.fields)) == (
        "wait.long",
        {"whom": "ps:1", "waited_s": 4, "why": "refused"},
    )
    assert (over.name, over.fields["waited_s"]) == ("wait.over", 6)
