"""Looks for lost tasks, on a clock that the tests move."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from helpers.clock import ManualClock
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.job.job import Job
from ropewalk.core.report import PsCounters, TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Phase, State, TaskId
from ropewalk.server.chief.servicer import LockedJob
from ropewalk.worker.lead.loss_watch import LossWatch

CHIEF, W0, PS = TaskId("chief", 0), TaskId("worker", 0), TaskId("ps", 0)
SETTINGS = Settings()


@dataclass
class Line:
    """A connection of a worker.

    Attributes:
        runs: Whether the process at its other end does.
        can_answer: Whether it answers pings at all.
    """

    opened: bool = True
    runs: bool = True
    can_answer: bool = True
    pings_answered: int = 0
    pings: list[float] = field(default_factory=list)

    def is_open(self) -> bool:
        return self.opened

    def ping(self) -> None:
        self.pings.append(0.0)
        self.pings_answered += self.runs and self.can_answer


@dataclass
class Port:
    """The port of a ps."""

    task: TaskId = PS
    ended: bool = False

    def has_ended(self, timeout_s: float) -> bool:
        assert timeout_s < 1
        return self.ended


class Watched:
    """A job of a worker and a ps that are heard every half second, and looks between."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.job = Job(
            [(CHIEF, ""), (W0, ""), (PS, "ps:1")], chief=CHIEF, lease_s=SETTINGS.lease_s,
            now=self.clock.now(), shortest_lease_s=SETTINGS.shortest_lease_s,
        )  # fmt: skip
        self.locked = LockedJob(self.job, self.clock)
        self.line, self.port = Line(), Port()
        controls = cast(list[PsControl], [self.port])
        self.watch = LossWatch(self.locked, SETTINGS, controls, lambda _: None)
        self.who = self.job.register(W0, now=self.clock.now())
        self.begin(20)

    def hear(self, who: Incarnation) -> None:
        self.job.heartbeat(who, TaskReport(), now=self.clock.now())
        self.locked.presence.hear(who, self.line)

    def hear_ps(self) -> None:
        self.job.ps_answered(PS, 7, PsCounters(), now=self.clock.now())

    def begin(self, beats: int, beat_s: float = 0.5) -> None:
        for _ in range(beats):
            for _ in range(int(beat_s / 0.25)):
                self.clock.advance(0.25)
                self.watch.look()
            self.hear(self.who)
            self.hear_ps()

    def found_after(self, task: TaskId, most_s: float, heard: Any = lambda: None) -> float:
        """Looks until the task is lost; after how many seconds."""
        began = self.clock.now()
        while self.job.members[task].state is State.ALIVE:
            if self.clock.now() - began > most_s:
                return float("inf")
            self.clock.advance(0.25)
            heard()
            self.watch.look()
        return self.clock.now() - began


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_closed_connection_is_found_in_three_heartbeats_and_an_open_one_is_late(
    watched: Watched,
) -> None:
    watched.line.opened = False
    assert watched.found_after(W0, 20, watched.hear_ps) <= 1.5
    other = Watched()
    assert other.found_after(W0, 60, other.hear_ps) == float("inf")
    assert other.job.members[W0].is_late


def test_a_process_that_answered_pings_and_does_no_more_is_found_in_three_heartbeats(
    watched: Watched,
) -> None:
    watched.line.runs = False
    assert watched.found_after(W0, 20, watched.hear_ps) <= 1.5
    assert len(watched.line.pings) <= 3  # one at a time
    watched.line.runs = True
    watched.hear(watched.who)
    assert watched.job.members[W0].detail == "came back"


def test_who_never_answered_a_ping_is_late_as_long_as_its_connection_is_open() -> None:
    watched = Watched()
    watched.line = Line(can_answer=False)
    watched.begin(3)
    assert watched.found_after(W0, 60, watched.hear_ps) == float("inf")


def test_a_busy_machine_is_given_the_time_that_it_took_before(watched: Watched) -> None:
    watched.begin(5, beat_s=3.0)
    watched.line.opened = False
    assert 5 < watched.found_after(W0, 20, watched.hear_ps) <= 6.5


def test_a_ps_whose_port_is_closed_ends_the_job_at_once_and_a_silent_one_after_its_lease(
    watched: Watched,
) -> None:
    watched.port.ended = True
    assert watched.found_after(PS, 20, lambda: watched.hear(watched.who)) <= 1.5
    assert watched.job.phase is Phase.FAILED
    assert "nothing listens at its port any more" in watched.job.reason
    other = Watched()
    assert 10 < other.found_after(PS, 20, lambda: other.hear(other.who)) <= 10.5


def test_a_chief_that_did_not_run_for_an_hour_blames_nobody(watched: Watched) -> None:
    watched.line.opened = False  # the worst that can be known
    watched.port.ended = True
    watched.clock.advance(3600)
    watched.watch.look()
    assert {m.state for m in watched.job.members.values() if m.task != CHIEF} == {State.ALIVE}
    watched.line.opened, watched.port.ended = True, False
    watched.begin(3)
    assert watched.job.phase is Phase.RUNNING
