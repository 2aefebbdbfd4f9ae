"""The chief's thread that leads the ps: what it writes down and orders, and in which order."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import cast

import pytest

from helpers.clock import ManualClock
from helpers.waiting import wait_until
from ropewalk.annexes.replication import balancing
from ropewalk.annexes.replication.chief_part import Moves
from ropewalk.annexes.replication.share_keeper import ShareKeeper
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.job.job import Job
from ropewalk.cluster.replication.configuration import (
    CopyTo,
    FollowerState,
    GiveUpShare,
    HandOver,
    Lead,
    PsReport,
    ReplicaRole,
    ShareState,
)
from ropewalk.core.checkpoint.job_record import JobRecord, ShareRecord
from ropewalk.core.errors import FencedError, PeerLostError, RefusedError, StorageError
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.server.chief.servicer import LockedJob

CHIEF = TaskId("chief", 0)
PS = [TaskId("ps", 0), TaskId("ps", 1)]


class FakePs:
    """A ps that reports what a test has it report, and obeys.

    Args:
        index: Of the ps.
        told: Where what it is told is noted down.
    """

    def __init__(self, index: int, told: list[object]) -> None:
        self.task, self.address = PS[index], f"ps{index}:1"
        self.reports: SimpleQueue[PsReport] = SimpleQueue()
        self._last: PsReport | None = None
        self.is_lost = self.is_silent = self.is_listening = False
        self._told = told

    def watch_shares(self, _: Incarnation, seen: int, *, timeout_s: float) -> tuple[int, PsReport]:
        if self.is_lost:
            raise PeerLostError("gone")
        with suppress(Empty):
            self._last = self.reports.get(timeout=min(timeout_s, 0.05))
        if self._last is None:
            raise PeerLostError("it has not started")
        return seen + 1, self._last

    def has_ended(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        return self.is_lost and not self.is_listening

    def end_watch(self) -> None:
        self.is_lost = True

    def lead_share(self, _: Incarnation, order: Lead, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self._told.append(order)

    def hand_over_share(
        self, _: Incarnation, order: HandOver, successor_address: str, *, timeout_s: float
    ) -> None:
        assert timeout_s > 0
        assert successor_address == f"ps{order.successor.index}:1"
        self._told.append(order)
        if self.is_silent:
            raise PeerLostError("no answer")

    def give_up_share(self, _: Incarnation, order: GiveUpShare, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self._told.append(order)

    def copy_share(self, _: Incarnation, order: CopyTo, address: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self._told.append((order, address))


class Kept:
    """A keeper of two ps, and what it has written down and told."""

    def __init__(
        self, record: JobRecord | None = None, *, rebalances: bool = False, lost_s: float = 25.0
    ) -> None:
        self.told: list[object] = []
        self.ps = [FakePs(index, self.told) for index in range(2)]
        self.job = Job([(task, "") for task in (CHIEF, *PS)], chief=CHIEF, lease_s=10, now=0)
        self.locked_job = LockedJob(self.job, ManualClock(), 2, shares_move=True)
        self.writes = 0
        self.refusals = 0
        who = Incarnation(CHIEF, 1)
        controls = cast(list[PsControl], self.ps)
        self.keeper = ShareKeeper(
            self.locked_job,
            who,
            controls,
            2,
            2,
            self.write,
            record,
            rebalances=rebalances,
            lost_s=lost_s,
        )

    def write(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("no space left on device")
        self.writes += 1
        self.told.append(self.keeper.add_to(JobRecord()).shares)

    def until_told(self, thing: object) -> None:
        wait_until(lambda: thing in self.told, 10, str(thing))


@contextmanager
def kept(
    record: JobRecord | None = None, *, rebalances: bool = False, lost_s: float = 25.0
) -> Iterator[Kept]:
    job = Kept(record, rebalances=rebalances, lost_s=lost_s)
    job.keeper.start(lambda task, address: None)
    try:
        yield job
    finally:
        job.keeper.close()


def leads(share: int, epoch: int, *followers: FollowerState) -> PsReport:
    return PsReport(1, shares=(ShareState(share, ReplicaRole.LEADING, epoch, True, followers),))


def written(*shares: tuple[int, int, int, tuple[int, ...]]) -> tuple[ShareRecord, ...]:
    return tuple(
        ShareRecord(share=share, epoch=epoch, leader=leader, followers=followers)
        for share, epoch, leader, followers in shares
    )


def test_who_leads_is_written_down_before_anybody_hears_of_it() -> None:
    with kept() as job:
        job.refusals = 1
        job.ps[0].reports.put(PsReport(1))
        job.until_told(Lead(0, 1, PS[0]))
        assert job.told[0] == written((0, 1, 0, ()))
        job.ps[1].reports.put(PsReport(1))
        job.until_told((CopyTo(0, 1, PS[0], PS[1]), "ps1:1"))
        job.until_told((CopyTo(1, 1, PS[1], PS[0]), "ps0:1"))
        job.ps[0].reports.put(leads(0, 1, FollowerState(PS[1], has_joined=True)))
        job.until_told(Lead(0, 2, PS[0], (PS[1],)))
        record = written((0, 2, 0, (1,)), (1, 1, 1, ()))
        assert job.told.index(record) < job.told.index(Lead(0, 2, PS[0], (PS[1],)))
        wait_until(lambda: job.locked_job.leaders.now()[0].epoch == 2, 10)
        assert [each.address for each in job.locked_job.leaders.now()] == ["ps0:1", "ps1:1"]


def test_a_ps_is_told_of_the_replicas_that_the_chief_knows_its_process_to_have() -> None:
    record = JobRecord(shares=written((0, 2, 0, (1,)), (1, 2, 1, (0,))), processes={0: 7, 1: 8})
    with kept(record) as job:
        for ps, process, share in ((0, 7, 0), (1, 8, 1)):
            state = leads(share, 2, FollowerState(PS[1 - ps], has_joined=True))
            job.ps[ps].reports.put(replace(state, process=process))
        wait_until(lambda: job.keeper.replicated_process(PS[0]) == 7, 10)
        assert job.keeper.replicated_process(PS[1]) == 8
        job.ps[0].reports.put(PsReport(9))  # it was started again
        wait_until(lambda: job.keeper.replicated_process(PS[0]) == 0, 10)
        assert job.keeper.replicated_process(PS[1]) == 0


def test_a_ps_that_does_not_answer_twice_is_lost() -> None:
    record = JobRecord(shares=written((0, 2, 0, (1,)), (1, 2, 1, (0,))), processes={0: 1, 1: 1})
    with kept(record) as job:
        job.until_told(Lead(1, 2, PS[1], (PS[0],)))
        job.ps[0].reports.put(leads(0, 2, FollowerState(PS[1], has_joined=True)))
        wait_until(job.ps[0].reports.empty, 10)
        job.ps[1].reports.put(leads(1, 2, FollowerState(PS[0], has_joined=True)))
        job.ps[0].is_lost = True
        job.until_told(Lead(0, 3, PS[1]))
        job.until_told(Lead(1, 3, PS[1]))
        leaders = job.locked_job.leaders
        wait_until(lambda: leaders.failovers == 1, 10, "another ps leads share 0")
        assert leaders.last_failover_s > 0
        assert leaders.handovers == 0
        assert not job.keeper.has_lost_values()
        job.ps[1].is_lost = True
        wait_until(lambda: job.job.phase is Phase.FAILED, 10)
        assert "the last replica of share" in job.job.reason
        assert job.keeper.has_lost_values()


def test_the_last_replica_is_waited_for_unless_its_process_has_ended() -> None:
    """A chief that hears of no ps may be cut off itself."""
    record = JobRecord(shares=written((0, 2, 0, (1,)), (1, 2, 1, (0,))), processes={0: 1, 1: 1})
    with kept(record) as job:
        for index, ps in enumerate(job.ps):
            ps.reports.put(leads(index, 2, FollowerState(PS[1 - index], has_joined=True)))
            wait_until(ps.reports.empty, 10)
        for ps in job.ps:
            ps.is_listening = ps.is_lost = True
        wait_until(
            lambda: {each.epoch for each in job.keeper.add_to(JobRecord()).shares} == {3}, 10
        )
        for index, ps in enumerate(job.ps):
            ps.reports.put(leads(index, 2))
            ps.is_lost = False
        wait_until(lambda: {each.epoch for each in job.locked_job.leaders.now()} == {3}, 10)
        assert job.job.phase is not Phase.FAILED
        assert not job.keeper.has_lost_values()
        for ps in job.ps:
            ps.is_listening, ps.is_lost = False, True
        wait_until(lambda: job.job.phase is Phase.FAILED, 10)


def test_the_last_replica_is_lost_once_it_was_silent_for_long() -> None:
    record = JobRecord(shares=written((0, 2, 0, ()), (1, 2, 0, ())), processes={0: 1, 1: 1})
    with kept(record, lost_s=0.2) as job:
        job.ps[0].reports.put(leads(0, 2))
        wait_until(job.ps[0].reports.empty, 10)
        job.ps[0].is_listening = job.ps[0].is_lost = True
        wait_until(lambda: job.job.phase is Phase.FAILED, 10)
        assert "the last replica of share" in job.job.reason


@pytest.mark.parametrize("answers", [True, False])
def test_a_leader_that_is_to_leave_hands_over_before_another_one_is_told_to_lead(
    *, answers: bool
) -> None:
    before = JobRecord(shares=written((0, 2, 0, (1,)), (1, 1, 1, ())), processes={0: 1, 1: 1})
    with kept(before) as job:
        job.ps[0].is_silent = not answers
        job.ps[1].reports.put(leads(1, 1))
        wait_until(job.ps[1].reports.empty, 10)
        report = leads(0, 2, FollowerState(PS[1], has_joined=True))
        job.ps[0].reports.put(replace(report, draining=True))
        led = Lead(0, 3, PS[1], (PS[0],), leader_ended=answers)
        job.until_told(led)
        record = written((0, 3, 1, (0,)), (1, 1, 1, ()))
        order = [record, HandOver(0, 3, PS[0], PS[1]), led]
        assert [each for each in job.told if each in order] == order
        leaders = job.locked_job.leaders
        # In the next epoch the ps that is to leave is left out, which may come first.
        wait_until(lambda: leaders.now()[0].epoch >= 3, 10)
        assert (leaders.failovers, leaders.last_failover_s) == (0, 0), "nothing was lost"


def test_a_move_is_told_of_until_the_other_ps_answers() -> None:
    record = JobRecord(shares=written((0, 2, 0, (1,)), (1, 1, 1, ())), processes={0: 1, 1: 1})
    with kept(record) as job:
        moves = job.locked_job.part(Moves)
        job.ps[1].reports.put(leads(1, 1))
        job.ps[0].reports.put(leads(0, 2, FollowerState(PS[1], has_joined=True)))
        job.until_told((CopyTo(1, 1, PS[1], PS[0]), "ps0:1"))
        begun = moves.begin(0, PS[1])
        assert moves.last is not None
        assert moves.last.number == begun.number == 1
        job.until_told(Lead(0, 3, PS[1], (PS[0],), leader_ended=True))
        assert moves.done == 0
        job.ps[1].reports.put(leads(0, 3))
        job.until_told(Lead(0, 4, PS[1]))
        job.ps[1].reports.put(leads(0, 4))
        wait_until(lambda: moves.done == 1, 10)
        assert moves.last is not None
        assert moves.last.seconds > 0
        with pytest.raises(RefusedError, match="it leads it already"):
            moves.begin(0, PS[1])


@pytest.mark.parametrize("rebalances", [True, False])
def test_a_share_moves_from_a_ps_that_leads_all_if_that_is_asked_for(
    *, rebalances: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "_MEASURED_S", 0.01)
    record = JobRecord(shares=written((0, 2, 0, (1,)), (1, 2, 0, (1,))), processes={0: 1, 1: 1})
    follower = FollowerState(PS[1], has_joined=True)
    with kept(record, rebalances=rebalances) as job:
        job.ps[1].reports.put(PsReport(1))
        wait_until(job.ps[1].reports.empty, 10)
        orders = {HandOver(share, 3, PS[0], PS[1]) for share in range(2)}
        rounds = itertools.count(1)

        def moves() -> bool:
            return any(order in job.told for order in orders)

        def reports_until_told() -> bool:
            pushes = next(rounds) * 100
            led = [
                ShareState(share, ReplicaRole.LEADING, 2, True, (follower,), 9, pushes)
                for share in range(2)
            ]
            job.ps[0].reports.put(PsReport(1, shares=tuple(led)))
            return moves() or (not rebalances and pushes > 500)

        wait_until(reports_until_told, 10)
        wait_until(job.ps[0].reports.empty, 10)
        assert moves() is rebalances


def test_a_chief_that_forgot_who_leads_ends_its_job() -> None:
    """It would tell another ps to lead what this one leads: see the model."""
    before = threading.active_count()
    with kept() as job:
        job.ps[0].reports.put(leads(0, 4))
        wait_until(lambda: job.job.phase is Phase.FAILED, 10)
        assert FencedError.__name__ in job.job.reason
        assert "--model-dir" in job.job.reason
    assert threading.active_count() < before + 50
