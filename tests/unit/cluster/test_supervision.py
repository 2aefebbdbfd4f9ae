"""Supervision of a job as data: events with their time in, orders out."""

import random

import pytest

from helpers.supervised import (
    BLAMED,
    CHIEF,
    DRAINED,
    EARLY,
    EVALUATOR,
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
from ropewalk.cluster.supervision.policy import (
    End,
    Ended,
    Fails,
    Leaves,
    Looked,
    Signal,
    StartAgain,
    StopRequested,
)
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import LocalRoles
from ropewalk.launch.local.policy import local_policy

GRACE_S = 5.0
LOCAL = local_policy(LocalRoles(2, 2, evaluator=True), Settings(leave_grace_s=GRACE_S))
IN_SYNC = local_policy(LocalRoles(2, 0), Settings())
REPLICATED = local_policy(LocalRoles(2, 2), Settings(leave_grace_s=GRACE_S, ps_replicas=2))


# -- ending ----------------------------------------------------------------------------------


def test_a_local_job_that_is_stopped_saves_then_ends_its_ps_then_is_killed() -> None:
    job = Job(LOCAL)
    assert job.stop() == ask(CHIEF, W0, W1)
    assert job.at(3.4) == []
    assert job.at(3.5) == ask(PS, PS1)
    assert job.at(4.5) == kill(PS, PS1, CHIEF, W0, W1)
    assert job.at(99.0) == []


def test_the_ps_of_a_local_job_are_asked_as_soon_as_its_chief_has_saved() -> None:
    job = Job(LOCAL)
    job.stop()
    assert job.end(CHIEF, DRAINED) == ask(PS, PS1)


def test_a_second_request_may_kill_and_the_first_reason_stays() -> None:
    job = Job(LOCAL)
    job.stop()
    orders = job.supervision.handle(StopRequested("Ctrl-C", kill=True), 0.1)
    assert orders == kill(PS, PS1, CHIEF, W0, W1)
    assert job.supervision.stop_reason == "enough"


def test_what_outlives_a_local_chief_by_a_grace_is_ended_but_never_an_evaluator_at_work() -> None:
    job = Job(LOCAL, PS, CHIEF, W0, EVALUATOR)
    job.end(CHIEF, 0)
    assert job.at(1000.0) == []
    job.end(EVALUATOR, 0)
    assert job.at(1000.0 + GRACE_S - 0.1) == []
    assert job.at(1000.0 + GRACE_S) == [*ask(W0), *ask(PS)]


def test_the_tasks_of_a_synchronous_local_job_end_by_themselves() -> None:
    job = Job(IN_SYNC, CHIEF, W0, W1)
    job.end(CHIEF, 0)
    assert job.at(1000.0) == []
    job.end(W0, 1)
    assert job.verdict == (W0, 1)


def test_a_chief_that_does_not_end_after_its_ps_was_told_is_ended() -> None:
    job = Job(LOCAL)
    assert job.end(PS, FOLLOWED) == []
    assert job.at(GRACE_S + 3.4) == []
    assert job.at(GRACE_S + 3.5) == ask(CHIEF, W0, W1)


def test_a_ps_that_leaves_early_is_lost_not_done() -> None:
    job = Job(REPLICATED)
    assert job.end(PS, EARLY) == []
    assert job.at(1) == [StartAgain(PS, 1)]
    assert job.at(1000) == []
    assert job.supervision.failure is None


def test_a_ps_that_leaves_early_ends_a_job_whose_shares_do_not_move() -> None:
    job = Job(LOCAL)
    assert job.end(PS, EARLY)[0] == Fails(End(PS, EARLY))
    job.end_all(0)
    assert job.verdict == (PS, EARLY)


def test_a_ps_that_was_sent_away_and_left_early_is_not_started_again() -> None:
    job = Job(REPLICATED)
    ended = Ended(End(PS1, EARLY), can_restart=False)
    [leaves] = job.supervision.handle(ended, 0.0)
    assert isinstance(leaves, Leaves)
    assert job.at(1000) == []
    job.end_all(0)
    assert job.verdict == (None, 0)


def test_a_chief_that_hangs_is_killed_and_to_blame() -> None:
    job = Job(LOCAL)
    looked = Looked({CHIEF: 1.0}, chief_answered=1.0)
    assert job.supervision.handle(looked, 15.9) == []
    [order] = job.supervision.handle(looked, 16.0)
    assert order == Signal(CHIEF, True, "chief:0 has been stopped (SIGSTOP) for 15 s")
    job.end(CHIEF, -9)
    assert job.verdict == (CHIEF, 137)


# -- the verdict -----------------------------------------------------------------------------


@pytest.mark.parametrize(("ends", "blamed", "code"), BLAMED)
def test_a_local_job_blames_whom_every_launcher_does(
    ends: list[tuple[TaskId, int]], blamed: TaskId | None, code: int
) -> None:
    job = Job(LOCAL)
    for task, ended_with in ends:
        job.end(task, ended_with)
        if job.runs[task].attempt:
            job.runs[task].attempt = 10  # it is not started again
            job.end(task, ended_with)
    job.end_all(0)
    assert job.verdict == (blamed, code)


def test_what_the_launcher_killed_itself_is_not_to_blame() -> None:
    job = Job(LOCAL)
    [fails, *_] = job.end(CHIEF, FOLLOWED)  # it has lost a ps, which hangs
    assert fails == Fails(End(CHIEF, FOLLOWED))
    job.at(4.5)
    job.end_all(-9)
    assert job.verdict == (CHIEF, FOLLOWED)


def test_a_chief_that_cannot_save_when_it_is_stopped_fails_the_job() -> None:
    job = Job(LOCAL)
    job.stop()
    job.end(W0, 1)
    job.end(CHIEF, int(ExitCode.STORAGE))
    job.end_all(DRAINED)
    assert job.verdict == (CHIEF, ExitCode.STORAGE)


def test_an_evaluator_that_fails_when_training_is_over_fails_the_job() -> None:
    job = Job(LOCAL, PS, CHIEF, EVALUATOR)
    job.end(CHIEF, 0)
    [leaves] = job.end(EVALUATOR, 1)
    assert isinstance(leaves, Leaves)
    assert leaves.verdict.failed
    job.end(PS, 0)
    assert job.verdict == (EVALUATOR, 1)


# -- starting again --------------------------------------------------------------------------


def test_a_lost_worker_that_is_not_started_again_is_told_of() -> None:
    [leaves] = Job(LOCAL).end(W0, -9)
    assert isinstance(leaves, Leaves)
    assert leaves.verdict.message.endswith("the job goes on without it")


def test_a_lost_chief_of_a_local_job_is_started_again_as_often_as_was_asked_for() -> None:
    job = Job(local_policy(LocalRoles(2, 2), Settings(), restarts=1))
    assert job.end(CHIEF, -9) == []
    assert job.at(1) == [StartAgain(CHIEF, 1)]
    assert job.end(CHIEF, -9)[0] == Fails(End(CHIEF, -9))


@pytest.mark.parametrize("code", [1, FOLLOWED, DRAINED])
def test_a_chief_that_would_fail_again_or_only_followed_ends_the_job(code: int) -> None:
    job = Job(local_policy(LocalRoles(2, 2), Settings(), restarts=1))
    assert job.end(CHIEF, code)[0] == Fails(End(CHIEF, code))


@pytest.mark.parametrize("roles", [LocalRoles(2, 0), LocalRoles(2, 1, chief=False)])
def test_a_chief_without_ps_or_a_worker_in_its_place_is_not_started_again(
    roles: LocalRoles,
) -> None:
    with pytest.raises(ConfigurationError, match="it needs a chief and a ps"):
        roles.check_restarts(1)
    roles.check_restarts(0)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_job_ends_and_a_failure_is_one_of_its_ends(seed: int) -> None:
    rng = random.Random(seed)
    whatever_happens(rng.choice([LOCAL, IN_SYNC, REPLICATED]), rng)
