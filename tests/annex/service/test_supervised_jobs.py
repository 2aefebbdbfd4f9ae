"""What the jobs of a standing cluster are asked and told when their tasks end."""

import random

import pytest

from helpers.supervised import (
    BLAMED,
    CHIEF,
    DRAINED,
    EARLY,
    FOLLOWED,
    PS,
    PS1,
    W0,
    W1,
    Job,
    ask,
    kill,
    whatever_happens,
)
from ropewalk.annexes.service.job import standalone_policy
from ropewalk.cluster.supervision.decisions import LOST
from ropewalk.cluster.supervision.policy import (
    End,
    Fails,
    StartAgain,
)
from ropewalk.core.task import TaskId

STANDALONE = standalone_policy(synchronous=False)
REPLICATED_STANDALONE = standalone_policy(synchronous=False, shares_move=True)


def test_a_standing_cluster_asks_the_chief_which_tells_the_others() -> None:
    job = Job(STANDALONE)
    assert job.stop() == ask(CHIEF)
    job.end(CHIEF, DRAINED)
    assert job.at(14.9) == []
    assert job.at(15.0) == ask(PS, PS1, W0, W1)
    assert job.at(119.9) == []
    assert job.at(120.0) == kill(PS, PS1, W0, W1)
    assert job.at(150.0) == []
    assert {run.code for task, run in job.runs.items() if task != CHIEF} == {LOST}
    assert job.supervision.has_ended
    assert job.verdict == (None, DRAINED)


def test_what_is_killed_on_request_is_given_up_thirty_seconds_later() -> None:
    job = Job(STANDALONE)
    assert job.stop(kill=True) == kill(PS, PS1, CHIEF, W0, W1)
    job.at(29.9)
    assert not job.supervision.has_ended
    assert job.stop(kill=True) == kill(PS, PS1, CHIEF, W0, W1)
    job.at(30.0)
    assert job.supervision.has_ended


def test_a_ps_that_leaves_early_is_lost_not_done() -> None:
    job = Job(REPLICATED_STANDALONE)
    assert job.end(PS, EARLY) == []
    assert job.at(1) == [StartAgain(PS, 1)]
    assert job.at(1000) == []
    assert job.supervision.failure is None


def test_a_ps_that_leaves_early_ends_a_job_whose_shares_do_not_move() -> None:
    job = Job(STANDALONE)
    assert job.end(PS, EARLY)[0] == Fails(End(PS, EARLY))
    job.end_all(0)
    assert job.verdict == (PS, EARLY)


def test_time_in_which_tasks_may_leave_counts_anew_when_the_job_ends_for_a_greater_cause() -> None:
    job = Job(STANDALONE)
    job.end(PS, FOLLOWED)
    job.at(10.0)
    job.end(CHIEF, 1)
    assert job.at(24.9) == []
    assert job.at(25.0) == ask(PS1, W0, W1)


@pytest.mark.parametrize(("ends", "blamed", "code"), BLAMED)
def test_a_standing_cluster_blames_whom_every_launcher_does(
    ends: list[tuple[TaskId, int]], blamed: TaskId | None, code: int
) -> None:
    job = Job(STANDALONE)
    for task, ended_with in ends:
        job.end(task, ended_with)
        if job.runs[task].attempt:
            job.runs[task].attempt = 10  # it is not started again
            job.end(task, ended_with)
    job.end_all(0)
    assert job.verdict == (blamed, code)


def test_a_failure_stays_one_when_the_job_is_stopped_afterwards() -> None:
    job = Job(STANDALONE)
    job.end(PS, -9)
    job.stop(kill=True)
    job.end_all(-9)
    assert job.verdict == (PS, 137)


def test_a_lost_worker_is_started_again_at_once() -> None:
    assert Job(STANDALONE).end(W0, -9) == [StartAgain(W0, 1)]


@pytest.mark.parametrize("code", [1, FOLLOWED, DRAINED])
def test_a_worker_that_would_fail_again_or_only_followed_is_not_started_again(code: int) -> None:
    assert not [o for o in Job(STANDALONE).end(W0, code) if isinstance(o, StartAgain)]


def test_nothing_is_started_again_in_a_job_that_is_ending() -> None:
    job = Job(STANDALONE)
    job.stop()
    assert job.end(W0, -9) == []
    job = Job(STANDALONE)
    job.end(CHIEF, 0)
    assert job.end(W0, -9) == []


def test_a_lost_worker_of_a_synchronous_job_ends_it_and_is_not_started_again() -> None:
    job = Job(standalone_policy(synchronous=True), CHIEF, W0, W1)
    assert job.end(W0, -9) == [Fails(End(W0, -9))]
    job.end(CHIEF, FOLLOWED)
    job.end(W1, FOLLOWED)
    assert job.verdict == (W0, 137)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_job_ends_and_a_failure_is_one_of_its_ends(seed: int) -> None:
    rng = random.Random(seed)
    whatever_happens(STANDALONE, rng)
