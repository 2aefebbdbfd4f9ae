"""When a job is saved, and what is heard of a save that fails."""

from types import SimpleNamespace
from typing import cast

import pytest

from helpers.clock import ManualClock
from ropewalk.cluster.job.job import Job
from ropewalk.core.errors import RopewalkError
from ropewalk.core.report import TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.server.chief.servicer import LockedJob
from ropewalk.worker.lead.checkpointer import Checkpointer
from ropewalk.worker.lead.job_saver import JobSaver

CHIEF = TaskId("chief", 0)


class Broken:
    """A checkpointer whose object store raises errors of its own."""

    last = None
    saved_pushes = 0

    def save(self, *_: object, **__: object) -> str:
        raise KeyError("the store's own")

    def record(self, _: object) -> None:
        raise KeyError("the store's own")


class Recording:
    """A checkpointer that writes down what it was asked for."""

    saved_pushes = 0

    def __init__(self) -> None:
        self.did: list[object] = []
        self.last: SimpleNamespace | None = None

    def save(self, step: int, *, final: bool, changed: bool) -> str:
        self.did.append((step, final, changed))
        self.last = SimpleNamespace(global_step=step)
        return ""

    def record(self, record: object) -> None:
        self.did.append("record")


class Training:
    """A job at a global step, and what saves it."""

    def __init__(self, checkpointer: object, **settings: float) -> None:
        self.clock = ManualClock()
        self.job = Job([(CHIEF, "")], chief=CHIEF, lease_s=1000, now=0)
        self.who: Incarnation = self.job.register(CHIEF, now=0)
        self.locked_job = LockedJob(self.job, self.clock)
        self.saver = JobSaver(
            self.locked_job,
            cast(Checkpointer, checkpointer),
            Settings().model_copy(update=settings),
            add_to=lambda record: record,
        )

    def at_step(self, step: int, *, after_s: float = 0) -> None:
        self.clock.advance(after_s)
        report = TaskReport(steps=step, global_step=step)
        self.job.heartbeat(self.who, report, now=self.clock.now())
        self.saver.begin_if_due()
        self.saver.wait()


def test_a_save_that_fails_in_its_thread_is_heard_and_the_next_one_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    training = Training(Broken(), save_every_steps=1)
    saver = training.saver
    for failed in (1, 2):
        training.at_step(3)
        assert training.locked_job.saves.failed == failed
    assert 'KeyError: "the store\'s own"' in str(saver.failure)
    assert "could not save a checkpoint of step 3: KeyError" in caplog.text
    saver.record()
    assert "what a restart has to know is not written: KeyError" in caplog.text
    saver.close()


def test_steps_or_seconds_make_a_checkpoint_due_and_else_the_record_is_written() -> None:
    checkpointer = Recording()
    training = Training(checkpointer, save_every_steps=100, save_every_s=600)
    training.at_step(99)
    assert checkpointer.did == []
    training.at_step(99, after_s=10)
    assert checkpointer.did == ["record"]
    training.at_step(100)
    training.at_step(101, after_s=599)
    training.at_step(101, after_s=1)
    assert checkpointer.did == ["record", (100, False, False), "record", (101, False, False)]


def test_the_last_checkpoint_is_the_only_one_after_the_periods_have_ended() -> None:
    checkpointer = Recording()
    training = Training(checkpointer, save_every_steps=1)
    training.saver.end_periods()
    training.at_step(5, after_s=1000)
    assert checkpointer.did == []
    assert training.saver.save(5, 2, final=True)
    assert checkpointer.did == [(5, True, True)]


def test_the_last_save_says_its_own_failure_and_not_one_before() -> None:
    training = Training(Broken())
    training.saver.failure = RopewalkError("the disk was full")
    assert not training.saver.save(1, 0, final=True)
    assert "the store's own" in str(training.saver.failure)


def test_a_job_without_checkpoints_has_nothing_to_save() -> None:
    training = Training(None, save_every_steps=1)
    training.at_step(7)
    assert training.saver.save(7, 0, final=True)
    assert (training.saver.saved_step, training.saver.failure) == (0, None)
