"""Membership with a chief that is played: joining, heartbeats, and every way to hear of the end."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from helpers.calls import Calls
from helpers.clock import ManualClock
from helpers.waiting import wait_until
from ropewalk.client.chief import membership as module
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.chief.membership import Membership
from ropewalk.core.errors import (
    FencedError,
    JobDoneError,
    JobStoppedError,
    JoinTimeoutError,
    PeerLostError,
    ProtocolMismatchError,
    RefusedError,
    RopewalkError,
)
from ropewalk.core.report import TaskEnd, TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Outcome, Phase, TaskId
from ropewalk.proto.v1.chief_pb2 import HeartbeatResponse

TASK = TaskId("worker", 1)
SETTINGS = Settings(join_timeout_s=0.4, lease_s=10.0, reconnect_timeout_s=5.0)
LOST = PeerLostError("connection refused")

Answer = tuple[Phase, str] | RopewalkError


class PlayedChief:
    """Answers from a script. A heartbeat waits until the test has the next answer ready."""

    address = "chief:1"

    def __init__(self) -> None:
        self.registrations: list[RopewalkError | None] = [None]
        self.phase, self.reason = Phase.RUNNING, ""
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.heartbeats: list[TaskReport] = []
        self.finished: list[tuple[Incarnation, TaskEnd]] = []
        self.finish_answer: Phase | RopewalkError = Phase.RUNNING
        self.known: Phase | None = None  # of the end, as the task has said
        self.cut = 0
        self.holds = False
        self.process_is_there = False

    def is_there(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        return self.process_is_there

    def register(
        self, task: TaskId, address: str, *, timeout_s: float, serves: bool = False
    ) -> Any:
        assert not serves
        error = self.registrations.pop(0) if len(self.registrations) > 1 else self.registrations[0]
        if error is not None:
            raise error
        return Incarnation(task, 7), 1.0, self.phase, self.reason, self.holds

    def heartbeat(
        self,
        who: Incarnation,
        report: TaskReport,
        *,
        knows: Phase,
        timeout_s: float,
        on_answer: Callable[[HeartbeatResponse], None],
        on_held: Callable[[bool], None],
    ) -> Any:
        assert timeout_s > 0
        on_held(self.holds)
        if self.cut:
            on_answer(HeartbeatResponse(cut=self.cut))
        assert who == Incarnation(TASK, 7)
        if knows.is_over:
            self.known = knows
            return knows, self.reason
        self.heartbeats.append(report)
        answer = self.answers.get(timeout=5)
        if isinstance(answer, RopewalkError):
            raise answer
        return answer

    def finish(
        self, who: Incarnation, end: TaskEnd, report: Any, *, timeout_s: float
    ) -> tuple[Phase, str]:
        self.finished.append((who, end))
        if isinstance(self.finish_answer, RopewalkError):
            raise self.finish_answer
        return self.finish_answer, self.reason


class Played:
    """A membership of a played chief, on a clock that only heartbeats turn."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.chief, self.clock = PlayedChief(), ManualClock()
        self.steps = 0
        self.lost: list[RopewalkError] = []
        self.stopping: list[RopewalkError] = []
        self.cuts: list[int] = []
        self.membership = Membership(
            TASK,
            "here:1",
            cast(ChiefClient, self.chief),
            settings,
            report=lambda: TaskReport(steps=self.steps),
            on_lost=self.lost.append,
            on_stopping=self.stopping.append,
            on_answer=lambda answer: self.cuts.append(answer.cut),
            clock=self.clock,
        )

    def say(self, *answers: Answer) -> None:
        for answer in answers:
            self.chief.answers.put(answer)

    def until_over(self) -> None:
        """The heartbeats have ended."""
        thread = self.membership._thread
        assert thread is not None
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def played() -> Iterator[Played]:
    """Joined by nobody yet; left at the end."""
    made = Played()
    yield made
    made.membership._leaving.set()
    made.say((Phase.DONE, ""))
    made.membership.close()


RUNNING = (Phase.RUNNING, "")


def test_joining_gives_the_task_its_generation(played: Played) -> None:
    assert played.membership.who.generation == 0
    assert played.membership.join() == Incarnation(TASK, 7)
    assert played.membership.who == Incarnation(TASK, 7)
    played.membership.check()


def test_a_cut_that_is_to_be_joined_is_heard_of(played: Played) -> None:
    played.membership.join()
    played.chief.cut = 12
    played.say(RUNNING, (Phase.DONE, ""))
    played.until_over()
    assert set(played.cuts) == {12}


def test_a_late_chief_is_waited_for(played: Played) -> None:
    played.chief.registrations = [LOST, LOST, None]
    asked: list[int] = []
    played.membership.join(still_wanted=lambda: asked.append(1))
    assert played.membership.who.generation == 7
    assert len(asked) == 2


def test_a_chief_that_does_not_come_is_a_join_timeout_with_its_address(played: Played) -> None:
    played.chief.registrations = [LOST]
    with pytest.raises(JoinTimeoutError) as caught:
        played.membership.join()
    assert "/job:worker/task:1 waited 0.4 s (join_timeout_s) for the chief" in caught.value.message
    assert "chief:1" in caught.value.message
    assert "connection refused" in caught.value.message
    assert caught.value.fields["missing"] == "chief"


def test_a_chief_of_another_protocol_is_not_waited_for(played: Played) -> None:
    played.chief.registrations = [ProtocolMismatchError("another protocol")]
    with pytest.raises(ProtocolMismatchError):
        played.membership.join()


def test_a_task_that_comes_too_late_is_told_why_the_job_is_over(played: Played) -> None:
    played.chief.phase, played.chief.reason = Phase.FAILED, "/job:worker/task:0 failed: boom"
    played.membership.join()
    with pytest.raises(
        PeerLostError, match="because the job failed: /job:worker/task:0 failed: boom"
    ):
        played.membership.check()


def test_joining_is_given_up_when_the_program_ends(played: Played) -> None:
    played.chief.registrations = [LOST]

    def stopped() -> None:
        raise JobStoppedError("stopping")

    with pytest.raises(JobStoppedError):
        played.membership.join(still_wanted=stopped)


def test_heartbeats_carry_the_report_of_the_moment(played: Played) -> None:
    played.membership.join()
    played.say(RUNNING)
    for steps in (1, 2):
        played.steps = steps
        played.say(RUNNING)
    played.say((Phase.DONE, ""))
    played.until_over()
    assert len(played.chief.heartbeats) == 4
    assert played.chief.heartbeats[-1].steps == 2


def test_when_the_job_is_done_the_waiting_ends_and_nothing_is_raised(played: Played) -> None:
    played.membership.join()
    assert not played.membership.wait_over(0)
    played.say(RUNNING, (Phase.DONE, ""))
    assert played.membership.wait_over(5)
    played.until_over()
    assert played.membership.phase is Phase.DONE
    played.membership.check()
    assert played.lost == []
    assert played.chief.known is Phase.DONE, "the chief leaves once everybody has said so"


def test_a_job_that_stops_ends_the_program_at_its_next_step_with_the_reason(
    played: Played,
) -> None:
    played.membership.join()
    played.say((Phase.STOPPING, "by hand"))
    _until(lambda: len(played.chief.heartbeats) >= 2)
    with pytest.raises(
        JobStoppedError, match="worker/task:1 ends because the job is stopping: by ha"
    ):
        played.membership.check()
    assert played.lost == [], "it is not interrupted"


def test_a_job_that_begins_to_stop_says_so_once(played: Played) -> None:
    played.membership.join()
    played.say(RUNNING, *[(Phase.STOPPING, "by hand")] * 3, (Phase.STOPPED, "by hand"))
    played.until_over()
    [error] = played.stopping
    assert isinstance(error, JobStoppedError)
    assert error.message.endswith("ends because the job is stopping: by hand")


def test_a_job_that_stopped_interrupts_the_program(played: Played) -> None:
    played.membership.join()
    played.say((Phase.STOPPING, "by hand"), (Phase.STOPPED, "by hand"))
    played.until_over()
    [error] = played.lost
    assert isinstance(error, JobStoppedError)
    assert "by hand" in error.message


def test_a_job_that_failed_interrupts_the_program_once_with_the_reason(played: Played) -> None:
    played.membership.join()
    played.say(RUNNING, (Phase.FAILED, "/job:ps/task:0 was lost"), (Phase.FAILED, "again"))
    played.until_over()
    [error] = played.lost
    assert isinstance(error, PeerLostError)
    assert error.message.endswith("ends because the job failed: /job:ps/task:0 was lost")
    with pytest.raises(PeerLostError, match="/job:ps/task:0 was lost"):
        played.membership.check()
    assert played.membership.wait_over(0)


def test_a_fenced_task_is_interrupted_at_once(played: Played) -> None:
    played.membership.join()
    fenced = FencedError("superseded by generation 9")
    played.say(RUNNING, fenced)
    played.until_over()
    assert played.lost == [fenced]
    assert played.membership.wait_over(0)
    with pytest.raises(PeerLostError, match="superseded by generation 9"):
        played.membership.check()


def test_a_silent_chief_is_lost_after_the_lease_and_the_reconnect_timeout(played: Played) -> None:
    """15 s here: heartbeats fail at 2 s, 3 s … and the one at 17 s is the first past 1 + 15."""
    played.membership.join()
    played.say(RUNNING, *[LOST] * 16)
    played.until_over()
    [error] = played.lost
    assert isinstance(error, PeerLostError)
    assert "the chief at chief:1 has not answered for 16 s (connection refused)" in error.message
    assert "it resumes from the last checkpoint" in error.message
    assert error.fields["peer"] == "chief"
    assert len(played.chief.heartbeats) == 17


def test_a_silent_chief_whose_process_is_there_is_waited_for_as_a_ps_waits_for_it() -> None:
    """By 40 s here: something may hold the lock of its interpreter."""
    played = Played(SETTINGS.model_copy(update={"orphan_timeout_s": 40.0}))
    played.chief.process_is_there = True
    played.membership.join()
    played.say(RUNNING, *[LOST] * 40, RUNNING, *[LOST] * 41)
    played.until_over()
    [error] = played.lost
    assert "has not answered for 41 s" in error.message


def test_a_silent_chief_is_lost_as_soon_as_its_process_is_not_there(played: Played) -> None:
    played.chief.process_is_there = True
    played.membership.join()
    played.say(RUNNING, *[LOST] * 20)
    wait_until(lambda: len(played.chief.heartbeats) == 22, 10)
    played.chief.process_is_there = False
    played.say(LOST)
    played.until_over()
    [error] = played.lost
    assert "has not answered for 21 s" in error.message


def test_a_chief_that_returns_is_gone_on_without_for_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    returns = {"chief_returns": True, "orphan_timeout_s": 40.0}
    played = Played(SETTINGS.model_copy(update=returns))
    played.membership.join()
    with caplog.at_level(logging.INFO):
        played.say(RUNNING, *[LOST] * 40, RUNNING, *[LOST] * 41)
        played.until_over()
    [error] = played.lost
    assert "has not answered for 41 s" in error.message
    said = [record.message for record in caplog.records]
    away = f"{TASK} goes on without the chief, which has not answered for 11 s (connection refused)"
    assert said == [away, f"{TASK}: the chief answers again", away], "once for each time"


def test_a_chief_that_is_started_anew_is_told_that_this_task_has_ended(played: Played) -> None:
    played.membership.join()
    played.membership.finish(TaskEnd(Outcome.DONE))
    played.say(RUNNING, RUNNING, LOST, LOST, RUNNING, RUNNING, (Phase.DONE, ""))
    played.until_over()
    assert played.chief.finished == [(Incarnation(TASK, 7), TaskEnd(Outcome.DONE))] * 2


def test_a_chief_that_comes_back_in_time_is_not_lost(played: Played) -> None:
    played.membership.join()
    played.say(RUNNING, *[LOST] * 15, RUNNING, *[LOST] * 15, (Phase.DONE, ""))
    played.until_over()
    assert played.lost == []
    assert played.membership.phase is Phase.DONE


@pytest.mark.parametrize(
    "error", [RefusedError("nonsense"), RopewalkError("bug")], ids=["refused", "internal"]
)
def test_an_error_of_the_chief_is_not_waited_out(played: Played, error: RopewalkError) -> None:
    played.membership.join()
    played.say(error)
    played.until_over()
    assert played.lost == [error]


def test_heartbeats_that_cannot_be_made_end_the_program_and_whoever_waits(
    played: Played, calls: Calls
) -> None:
    played.membership.join()
    calls.fail(played.membership, "_report", ValueError("a measure of the program's"))
    played.say(RUNNING)
    assert played.membership.wait_over(5)
    [error] = played.lost
    assert "worker/task:1 cannot send heartbeats any more: ValueError: a measure" in error.message
    with pytest.raises(PeerLostError, match="cannot send heartbeats"):
        played.membership.check()


def test_finishing_reports_the_outcome_and_is_not_interrupted_afterwards(played: Played) -> None:
    played.membership.join()
    played.membership.finish(TaskEnd(Outcome.FAILED, "ValueError: boom"))
    assert played.chief.finished == [
        (Incarnation(TASK, 7), TaskEnd(Outcome.FAILED, "ValueError: boom"))
    ]
    played.say((Phase.FAILED, "mine"))
    played.until_over()
    assert played.lost == []
    assert played.membership.wait_over(0)


def test_finishing_last_hears_that_the_job_is_over(played: Played) -> None:
    played.membership.join()
    played.chief.finish_answer = Phase.DONE
    played.membership.finish(TaskEnd(Outcome.DONE))
    assert played.membership.wait_over(0)
    assert played.membership.phase is Phase.DONE


def test_a_chief_that_is_gone_does_not_hold_up_the_end(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    played.membership.join()
    played.chief.finish_answer = LOST
    began = time.monotonic()
    played.membership.finish(TaskEnd(Outcome.LEFT), within_s=0.2)
    assert time.monotonic() - began < module._CALL_S / 2
    assert "could not report the end to the chief: connection refused" in caplog.text


def test_where_first_steps_are_waited_for_they_are_told_at_once(played: Played) -> None:
    told_at = list[float]()
    played.chief.holds = True

    class Clock(ManualClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            is_set = super().wait(event, timeout_s)
            played.steps = int(self.now() > 1.42)
            return is_set

    played.membership._clock = clock = Clock()
    heartbeat = played.chief.heartbeat

    def timed(*args: Any, **kwargs: Any) -> Any:
        told_at.append(round(clock.now(), 2))
        played.chief.holds = len(told_at) < 4
        return heartbeat(*args, **kwargs)

    played.chief.heartbeat = timed  # type: ignore[method-assign]
    played.membership.join()
    assert played.membership.is_held
    played.say(*[(Phase.RUNNING, "")] * 4, (Phase.DONE, ""), (Phase.DONE, ""))
    played.until_over()
    assert told_at[:5] == [1.0, 1.45, 1.95, 2.45, 3.45], "and asked twice as often until they are"
    assert not played.membership.is_held


def test_leaving_ends_the_heartbeats_without_a_word(played: Played) -> None:
    played.membership.join()
    played.say(RUNNING)
    played.membership._leaving.set()
    played.say(PeerLostError("the chief has left, too"))
    played.membership.close()
    played.until_over()
    assert played.lost == []


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.005)
    pytest.fail("it did not happen within 5 s")


def test_a_job_that_is_done_already_is_told_at_once(played: Played) -> None:
    played.chief.phase = Phase.DONE
    with pytest.raises(JobDoneError, match="worker/task:1: the job is done already") as caught:
        played.membership.join()
    assert caught.value.exit_code == 0


def test_a_lost_chief_is_not_told_of_the_end(played: Played) -> None:
    played.membership.join()
    played.say(*[LOST] * 40)
    played.until_over()
    played.chief.finish_answer = LOST  # it would be tried for five seconds
    played.membership.finish(TaskEnd(Outcome.LEFT, "the chief is lost"))
    assert played.chief.finished == []


def test_a_machine_that_was_suspended_has_not_lost_its_chief(played: Played) -> None:
    played.say((Phase.RUNNING, ""))
    played.membership.join()
    wait_until(lambda: len(played.chief.heartbeats) == 2, 10)
    played.clock.advance(3600)
    played.say(LOST, (Phase.DONE, ""))
    played.until_over()
    assert played.lost == []
