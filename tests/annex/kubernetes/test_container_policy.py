"""What the parent of a container starts again, when, and with which code it ends."""

import pytest

from helpers.supervised import CHIEF, DRAINED, EARLY, EVALUATOR, FOLLOWED, PS, W0, Job, ask
from ropewalk.annexes.kubernetes.container import container_policy
from ropewalk.cluster.supervision.policy import (
    End,
    Ended,
    StartAgain,
)
from ropewalk.core.task import TaskId


def again(job: Job, code: int = FOLLOWED) -> float:
    """The wait until the only task of a container, which ends now, is started again."""
    [task], ended = job.runs, job.now
    assert job.end(task, code) == []
    assert not job.supervision.has_ended
    while not (orders := job.at(job.now + 0.05)):
        assert job.now < ended + 10
    assert orders == [StartAgain(task, job.runs[task].attempt)]
    return job.now - ended


@pytest.mark.parametrize("task", [CHIEF, PS, W0, EVALUATOR], ids=str)
@pytest.mark.parametrize("code", [FOLLOWED, DRAINED, EARLY])
def test_a_container_starts_what_only_followed_again_as_often_as_it_does(
    task: TaskId, code: int
) -> None:
    job = Job(container_policy(task), task)
    for _ in range(50):
        again(job, code)
    assert job.runs[task].attempt == 50
    assert job.supervision.failure is None


def test_a_container_starts_a_task_that_was_killed_again_unless_it_would_be_again() -> None:
    job = Job(container_policy(W0), W0)
    again(job, -9)
    job.supervision.handle(Ended(End(W0, -9), can_restart=False), job.now)
    assert job.supervision.has_ended
    assert job.runs[W0].code == -9


@pytest.mark.parametrize("code", [0, 1, 8, 140, -11])
def test_a_container_ends_with_what_its_task_has_done_itself(code: int) -> None:
    job = Job(container_policy(W0), W0)
    again(job)
    job.end(W0, code)
    assert job.at(100.0) == []
    assert job.supervision.has_ended
    assert job.runs[W0].code == code


def test_a_container_waits_longer_each_time_and_begins_anew_after_progress() -> None:
    job = Job(container_policy(CHIEF), CHIEF)
    waits = [again(job) for _ in range(8)]
    bounds = [0.5, 1, 2, 4, 8, 8, 8, 8]
    assert all(b / 2 <= wait <= b + 0.1 for wait, b in zip(waits, bounds, strict=True)), waits
    job.now += 8.5
    assert again(job) <= 0.6


def test_a_container_that_is_asked_to_stop_passes_it_on_and_starts_nothing_again() -> None:
    job = Job(container_policy(PS), PS)
    assert job.stop() == ask(PS)
    assert job.end(PS, DRAINED) == []
    assert job.supervision.has_ended
    job = Job(container_policy(PS), PS)
    job.end(PS, FOLLOWED)
    assert job.stop() == [], "while it waits"
    assert job.at(100.0) == []
    assert job.supervision.has_ended
    assert job.runs[PS].code == DRAINED
