"""What a job looks like to others on its platform: a record, and events. Pure."""

import pytest

from ropewalk.annexes.kubernetes.status_record import JobSnapshot, events_between, is_due, record_of
from ropewalk.core.task import State

ALIVE = {"chief:0": State.ALIVE, "worker:0": State.ALIVE}
TRAINING = JobSnapshot(100.0, "running", step=1000, goal_steps=3000, tasks=ALIVE)


def later(seconds: float = 2.0, **changes: object) -> JobSnapshot:
    from dataclasses import replace

    return replace(TRAINING, at=TRAINING.at + seconds, **changes)  # type: ignore[arg-type]


def test_a_record_has_every_number_as_text_and_a_rate_over_the_time_between() -> None:
    saved = later(10.0, step=1850, checkpoint="/checkpoints/digits/ckpt-1800", checkpoint_step=1800)
    record = record_of(TRAINING, saved, "2026-11-20T10:00:00Z")
    assert record == {
        "phase": "running",
        "reason": "",
        "step": "1850",
        "goalSteps": "3000",
        "stepsPerSecond": "85",
        "checkpoint": "/checkpoints/digits/ckpt-1800",
        "checkpointStep": "1800",
        "tasks": "2/2",
        "updated": "2026-11-20T10:00:00Z",
    }
    # The same names each time: a merge patch would leave an old one otherwise.
    assert record_of(None, TRAINING, "").keys() == record.keys()
    assert record_of(None, TRAINING, "")["stepsPerSecond"] == ""


def test_steps_that_were_made_before_the_job_went_on_are_no_rate() -> None:
    """A chief that resumes knows of no step until the first task says 1,178 of them."""
    begins = later(step=0)
    resumed, on = later(5.0, step=1178), later(20.0, step=1268)
    assert record_of(begins, resumed, "")["stepsPerSecond"] == ""
    assert record_of(resumed, on, "")["stepsPerSecond"] == "6"


@pytest.mark.parametrize(
    ("view", "due"),
    [
        (later(), False),
        (later(step=1100), False),
        (later(15.0, step=1100), True),
        (later(60.0), False),
        (later(phase="done"), True),
        (later(checkpoint="/checkpoints/digits/ckpt-1000"), True),
        (later(tasks={**ALIVE, "worker:0": State.LOST}), True),
    ],
    ids=["same", "steps", "steps for long", "idle", "over", "saved", "lost"],
)
def test_writes_are_few_while_only_steps_are_made(view: JobSnapshot, due: bool) -> None:
    assert is_due(TRAINING, view) is due
    assert is_due(None, view)


def test_joins_losses_checkpoints_and_the_end_are_events() -> None:
    (joined,) = events_between(None, TRAINING)
    assert (joined.reason, joined.message) == ("Joined", "chief:0, worker:0 joined")
    lost = later(
        tasks={**ALIVE, "worker:0": State.LOST}, details={"worker:0": "no message for 10 s"}
    )
    (event,) = events_between(TRAINING, lost)
    assert (event.reason, event.is_warning) == ("Lost", True)
    assert event.message == "worker:0 lost: no message for 10 s"
    over = later(phase="failed", reason="worker:0 failed", checkpoint="c-1", checkpoint_step=7)
    saved, failed = events_between(TRAINING, over)
    assert saved.message == "saved c-1 (step 7)"
    assert failed.message == "the job is failed at step 1000: worker:0 failed"
    assert (failed.reason, failed.is_warning) == ("JobFailed", True)
    assert events_between(TRAINING, later(step=2000)) == []


def test_a_task_that_was_started_again_within_its_lease_is_an_event() -> None:
    before = later(generations={"chief:0": 1, "worker:0": 2})
    after = later(4.0, generations={"chief:0": 1, "worker:0": 3})
    assert is_due(before, after)
    (event,) = events_between(before, after)
    assert (event.reason, event.message) == ("Rejoined", "worker:0 joined again")


def test_an_event_is_short_however_many_tasks_it_is_about() -> None:
    many = later(tasks={f"worker:{index}": State.ALIVE for index in range(300)})
    (event,) = events_between(JobSnapshot(0.0, "running"), many)
    assert event.message.endswith("worker:7 and 292 more joined")
    long = later(phase="failed", reason="é" * 2000)
    (failed,) = events_between(TRAINING, long)
    assert len(failed.message.encode()) <= 1000
