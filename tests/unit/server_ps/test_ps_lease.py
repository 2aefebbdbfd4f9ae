"""One chief leads a ps at a time."""

import pytest

from helpers.clock import ManualClock
from ropewalk.core.errors import FencedError, OtherJobError
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.server.ps.lease import ChiefLease

CHIEF = Incarnation(TaskId("chief", 0), 3)
RIVAL = Incarnation(TaskId("chief", 1), 9)
W0 = Incarnation(TaskId("worker", 0), 9)  # leads where there is no chief


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def lease(clock: ManualClock) -> ChiefLease:
    lease = ChiefLease(clock)
    lease.renew(CHIEF, "chief:1", 10.0)
    return lease


def test_nobody_leads_at_first_and_anybody_may(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    assert lease.chief_address == ""
    lease.renew(RIVAL, "rival:1", 10.0)
    assert lease.chief_address == "rival:1"


@pytest.mark.parametrize("elapsed", [0.0, 4.0, 9.9])
def test_a_second_chief_is_refused_while_the_lease_runs(
    lease: ChiefLease, clock: ManualClock, elapsed: float
) -> None:
    clock.advance(elapsed)
    with pytest.raises(FencedError) as caught:
        lease.renew(RIVAL, "rival:1", 10.0)
    for word in (str(CHIEF), "chief:1", f"{elapsed:.0f} s ago", str(RIVAL), "rival:1"):
        assert word in caught.value.message
    assert lease.chief_address == "chief:1"


def test_being_refused_does_not_extend_or_shorten_the_lease(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    lease.renew(Incarnation(CHIEF.task, 3, "a"), "chief:1", 10.0)
    other = Incarnation(RIVAL.task, 9, "b")
    clock.advance(9.0)
    with pytest.raises(OtherJobError):
        lease.renew(other, "rival:1", 100.0)
    assert lease.silent_s == 9.0
    clock.advance(1.0)
    lease.renew(other, "rival:1", 10.0)


@pytest.mark.parametrize("rival", [RIVAL, W0], ids=str)
def test_nobody_else_leads_the_job_of_a_chief_however_silent_it_is(
    lease: ChiefLease, clock: ManualClock, rival: Incarnation
) -> None:
    clock.advance(10_000.0)
    with pytest.raises(FencedError):
        lease.renew(rival, "rival:1", 10.0)
    assert (lease.leader, lease.chief_address) == (CHIEF.task, "chief:1")
    lease.renew(Incarnation(CHIEF.task, CHIEF.generation + 1), "chief:2", 10.0)
    assert lease.chief_address == "chief:2"


def test_a_chief_wins_over_worker_0_at_once_and_for_good(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    led = [lease.leader]
    for each in (W0, CHIEF):
        lease.renew(each, f"{each.task.type}:1", 10.0)
        led.append(lease.leader)
    assert led == [None, W0.task, CHIEF.task]
    assert (lease.leader, lease.chief_address) == (CHIEF.task, "chief:1")
    with pytest.raises(FencedError):
        lease.renew(W0, "worker:1", 10.0)


def test_a_chief_of_another_job_does_not_win_over_worker_0(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    lease.renew(Incarnation(W0.task, 1, "a"), "worker:1", 10.0)
    with pytest.raises(OtherJobError):
        lease.renew(Incarnation(CHIEF.task, 1, "b"), "chief:1", 10.0)
    clock.advance(10.0)
    lease.renew(Incarnation(CHIEF.task, 1, "b"), "chief:1", 10.0)
    assert (lease.leader, lease.job) == (CHIEF.task, "b")


def test_whoever_is_refused_changes_nothing_of_the_job(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    lease.renew(CHIEF, "chief:1", 10.0)  # of a job without an id
    with pytest.raises(FencedError):
        lease.renew(Incarnation(RIVAL.task, 9, "b"), "rival:1", 10.0)
    assert lease.job == ""


def test_renewing_carries_the_lease_on(lease: ChiefLease, clock: ManualClock) -> None:
    clock.advance(9.0)
    lease.renew(CHIEF, "chief:2", 10.0)
    clock.advance(9.0)
    with pytest.raises(FencedError):
        lease.renew(RIVAL, "rival:1", 10.0)
    assert lease.chief_address == "chief:2"


def test_a_restarted_chief_takes_over_at_once(lease: ChiefLease) -> None:
    lease.renew(Incarnation(CHIEF.task, CHIEF.generation + 1), "chief:2", 10.0)
    assert lease.chief_address == "chief:2"


def test_the_chief_it_replaced_is_refused(lease: ChiefLease) -> None:
    lease.renew(Incarnation(CHIEF.task, CHIEF.generation + 1), "chief:2", 10.0)
    with pytest.raises(FencedError):
        lease.renew(CHIEF, "chief:1", 10.0)


def test_silence_is_counted_from_the_last_renewal(lease: ChiefLease, clock: ManualClock) -> None:
    clock.advance(30.0)
    assert lease.silent_s == 30.0
    lease.renew(CHIEF, "chief:1", 10.0)
    assert lease.silent_s == 0.0


def test_a_job_without_any_chief_is_silent_since_the_ps_started(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    clock.advance(5.0)
    assert lease.silent_s == 5.0


def test_the_first_end_of_a_job_counts(lease: ChiefLease) -> None:
    assert (lease.ended.is_set(), lease.phase, lease.draining) == (False, None, False)
    lease.end(Phase.FAILED, "worker:1 raised")
    lease.end(Phase.DONE, "")
    assert (lease.ended.is_set(), lease.phase) == (True, Phase.FAILED)
    assert lease.reason == "worker:1 raised"


def test_tasks_of_another_job_are_refused_and_of_an_unknown_one_are_not(clock: ManualClock) -> None:
    lease = ChiefLease(clock)
    lease.check_job(Incarnation(CHIEF.task, 1, "b"))  # no job yet
    lease.renew(Incarnation(CHIEF.task, 3, "a"), "chief:1", 10.0)
    for job in ("", "a"):
        lease.check_job(Incarnation(CHIEF.task, 1, job))
    with pytest.raises(OtherJobError, match=r"serves job 'a' of the chief at chief:1; .* job 'b'"):
        lease.check_job(Incarnation(CHIEF.task, 1, "b"))
    with pytest.raises(OtherJobError):
        lease.renew(Incarnation(CHIEF.task, 9, "b"), "chief:2", 10.0)
    clock.advance(10.0)
    lease.renew(Incarnation(CHIEF.task, 9, "b"), "chief:2", 10.0)
    assert lease.job == "b"


def test_a_ps_that_was_given_its_job_never_serves_another(clock: ManualClock) -> None:
    lease = ChiefLease(clock, "a")
    with pytest.raises(OtherJobError):
        lease.renew(Incarnation(CHIEF.task, 1, "b"), "chief:2", 10.0)
