"""Supervision of a job as data: events with their time in, orders out."""

import random

import pytest

from ropewalk.annexes.kubernetes.container import container_policy
from ropewalk.annexes.service.cluster.job import standalone_policy
from ropewalk.cluster.supervision.decisions import LOST, Supervision, TaskRun
from ropewalk.cluster.supervision.events import (
    Ended,
    Fails,
    Leaves,
    Looked,
    Order,
    Signal,
    StartAgain,
    StopRequested,
    Tick,
)
from ropewalk.cluster.supervision.exits import End
from ropewalk.cluster.supervision.policy import Policy
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import LocalRoles
from ropewalk.launch.local.policy import local_policy

CHIEF, PS, PS1 = TaskId("chief", 0), TaskId("ps", 0), TaskId("ps", 1)
W0, W1, EVALUATOR = TaskId("worker", 0), TaskId("worker", 1), TaskId("evaluator", 0)
FOLLOWED, DRAINED = int(ExitCode.PEER_LOST), int(ExitCode.DRAINED)
EARLY = int(ExitCode.LEFT_EARLY)
GRACE_S = 5.0
LOCAL = local_policy(LocalRoles(2, 2, evaluator=True), Settings(leave_grace_s=GRACE_S))
IN_SYNC = local_policy(LocalRoles(2, 0), Settings())
STANDALONE = standalone_policy(synchronous=False)
REPLICATED = local_policy(LocalRoles(2, 2), Settings(leave_grace_s=GRACE_S, ps_replicas=2))
REPLICATED_STANDALONE = standalone_policy(synchronous=False, shares_move=True)


class Job:
    """A supervised job whose clock stands still until it is set."""

    def __init__(self, policy: Policy, *tasks: TaskId) -> None:
        self.runs = {task: TaskRun() for task in tasks or (PS, PS1, CHIEF, W0, W1)}
        self.supervision = Supervision(self.runs, policy)
        self.now = 0.0

    def at(self, now: float) -> list[Order]:
        """That time comes."""
        self.now = now
        return self.supervision.handle(Tick(), now)

    def end(self, task: TaskId, code: int) -> list[Order]:
        return self.supervision.handle(Ended(End(task, code)), self.now)

    def end_all(self, code: int) -> None:
        for task, run in self.runs.items():
            if not run.has_ended:
                self.end(task, code)

    def stop(self, *, kill: bool = False) -> list[Order]:
        return self.supervision.handle(StopRequested("enough", kill), self.now)

    @property
    def verdict(self) -> tuple[TaskId | None, int]:
        """Which task is to blame, and the job's exit code."""
        failure = self.supervision.failure
        return failure.task if failure else None, self.supervision.exit_code


def ask(*tasks: TaskId) -> list[Order]:
    return [Signal(task, kill=False) for task in tasks]


def kill(*tasks: TaskId) -> list[Order]:
    return [Signal(task, kill=True) for task in tasks]


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


@pytest.mark.parametrize("policy", [REPLICATED, REPLICATED_STANDALONE], ids=["local", "standalone"])
def test_a_ps_that_leaves_early_is_lost_not_done(policy: Policy) -> None:
    job = Job(policy)
    assert job.end(PS, EARLY) == []
    assert job.at(1) == [StartAgain(PS, 1)]
    assert job.at(1000) == []
    assert job.supervision.failure is None


@pytest.mark.parametrize("policy", [LOCAL, STANDALONE], ids=["local", "standalone"])
def test_a_ps_that_leaves_early_ends_a_job_whose_shares_do_not_move(policy: Policy) -> None:
    job = Job(policy)
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


def test_time_in_which_tasks_may_leave_counts_anew_when_the_job_ends_for_a_greater_cause() -> None:
    job = Job(STANDALONE)
    job.end(PS, FOLLOWED)
    job.at(10.0)
    job.end(CHIEF, 1)
    assert job.at(24.9) == []
    assert job.at(25.0) == ask(PS1, W0, W1)


def test_a_chief_that_hangs_is_killed_and_to_blame() -> None:
    job = Job(LOCAL)
    looked = Looked({CHIEF: 1.0}, chief_answered=1.0)
    assert job.supervision.handle(looked, 15.9) == []
    [order] = job.supervision.handle(looked, 16.0)
    assert order == Signal(CHIEF, True, "chief:0 has been stopped (SIGSTOP) for 15 s")
    job.end(CHIEF, -9)
    assert job.verdict == (CHIEF, 137)


# -- the verdict -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [LOCAL, STANDALONE], ids=["local", "standalone"])
@pytest.mark.parametrize(
    ("ends", "blamed", "code"),
    [
        pytest.param([(CHIEF, 0), (W0, 0), (W1, 0), (PS, 0)], None, 0, id="done"),
        pytest.param([(W0, -9), (CHIEF, 0)], None, 0, id="a worker was lost"),
        pytest.param([(W0, 1), (CHIEF, FOLLOWED)], W0, 1, id="a program raised"),
        pytest.param([(PS, FOLLOWED), (CHIEF, 1)], CHIEF, 1, id="a ps that was told, first"),
        pytest.param(
            [(PS, FOLLOWED), (CHIEF, FOLLOWED)], CHIEF, FOLLOWED, id="the chief says what was lost"
        ),
        pytest.param([(CHIEF, FOLLOWED), (PS, -9)], PS, 137, id="a killed ps that came second"),
        pytest.param([(CHIEF, DRAINED), (W0, 7)], W0, 7, id="an error and one that was asked"),
        pytest.param([(PS, DRAINED), (CHIEF, DRAINED)], CHIEF, DRAINED, id="a ps was asked"),
        pytest.param([(PS, EARLY), (CHIEF, 4)], CHIEF, 4, id="an error and a ps that left early"),
        pytest.param([(CHIEF, 0), (W0, 1)], None, 0, id="a worker after the end"),
    ],
)
def test_every_launcher_blames_the_same_task(
    policy: Policy, ends: list[tuple[TaskId, int]], blamed: TaskId | None, code: int
) -> None:
    job = Job(policy)
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


def test_a_failure_stays_one_when_the_job_is_stopped_afterwards() -> None:
    job = Job(STANDALONE)
    job.end(PS, -9)
    job.stop(kill=True)
    job.end_all(-9)
    assert job.verdict == (PS, 137)


def test_an_evaluator_that_fails_when_training_is_over_fails_the_job() -> None:
    job = Job(LOCAL, PS, CHIEF, EVALUATOR)
    job.end(CHIEF, 0)
    [leaves] = job.end(EVALUATOR, 1)
    assert isinstance(leaves, Leaves)
    assert leaves.verdict.failed
    job.end(PS, 0)
    assert job.verdict == (EVALUATOR, 1)


# -- starting again --------------------------------------------------------------------------


def test_a_lost_worker_is_started_again_where_the_policy_says_so_and_told_of_elsewhere() -> None:
    assert Job(STANDALONE).end(W0, -9) == [StartAgain(W0, 1)]
    [leaves] = Job(LOCAL).end(W0, -9)
    assert isinstance(leaves, Leaves)
    assert leaves.verdict.message.endswith("the job goes on without it")


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


def test_a_lost_worker_of_a_synchronous_job_ends_it_and_is_not_started_again() -> None:
    job = Job(standalone_policy(synchronous=True), CHIEF, W0, W1)
    assert job.end(W0, -9) == [Fails(End(W0, -9))]
    job.end(CHIEF, FOLLOWED)
    job.end(W1, FOLLOWED)
    assert job.verdict == (W0, 137)


# -- a container -----------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_job_ends_and_a_failure_is_one_of_its_ends(seed: int) -> None:
    rng = random.Random(seed)
    job = Job(rng.choice([LOCAL, STANDALONE, IN_SYNC, REPLICATED]), CHIEF, PS, W0, W1, EVALUATOR)
    ends: list[End] = []
    for _ in range(40):
        job.now += rng.random() * 5
        task = rng.choice([*job.runs])
        if not job.runs[task].has_ended:
            ends.append(End(task, rng.choice([0, 0, 1, 138, 143, 144, -9])))
            job.supervision.handle(Ended(ends[-1]), job.now)
        if rng.random() < 0.05:
            job.stop(kill=rng.random() < 0.5)
        job.at(job.now)
    job.stop(kill=True)
    job.end_all(-9)
    assert job.supervision.has_ended
    assert job.supervision.failure in (None, *ends)
