"""Keeps every share of a job led and followed: decides, writes down, gives orders.

What is decided is in :mod:`ropewalk.annexes.replication.decisions`. One thread per ps waits for its
reports (:mod:`.ps_watch`); one thread decides, so that events have an order.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from ...client.ps.control import PsControl
from ...cluster.replication.configuration import (
    Configuration,
    CopyTo,
    GiveUpShare,
    HandOver,
    Lead,
    Move,
    PsReport,
    Reconfiguration,
    ReplicaRole,
    ShareLeader,
    first_leaders,
)
from ...cluster.spec import PS
from ...core.backoff import Backoff
from ...core.checkpoint.job_record import JobRecord, ShareRecord
from ...core.errors import (
    FencedError,
    PeerLostError,
    RefusedError,
    RopewalkError,
    StorageError,
)
from ...core.process.events import event
from ...core.process.threads import new_thread
from ...core.task import Incarnation, TaskId
from ...server.chief.servicer import LockedJob
from .balancing import WorkMeter, best_move
from .chief_part import Moves, Servers
from .decisions import Shares, lead_orders, other_orders
from .ps_watch import SUSPECTED, PsWatch

log = logging.getLogger(__name__)

_ORDER_S = 2.0
_WRITE_AGAIN_S = 0.75
_TURN_S = 0.1
_LEAVER_STAYS_S = 8.0  # a ps waits for longer by default: leave_grace_s, drain_grace_s and lease_s
_FIRST_COPY_AGAIN_S, _COPY_AGAIN_S = 0.2, 10.0

_ASKED = PsReport(0)
"""Stand-in for a report: a request without a report."""

_Event = tuple[TaskId, PsReport | None]


class ShareKeeper:
    """Leads the ps of a job whose shares move.

    Args:
        locked_job: The job; its leaders are published there, and it fails with the last replica.
        who: The chief.
        controls: Controls of the ps, one each.
        replicas: Number of ps that are to have each share.
        shares: Number of shares, of a job that begins.
        write: Writes down :meth:`records`; when it returns they are durable.
        record: Record that the chief before wrote down; None: there is none.
        spreads: A ps that comes is given as many shares as the others lead.
        rebalances: Shares are moved without being asked for, so that no ps has too much work.
        lost_s: Longest time that the last replica of a share may be silent before the job has lost
            it; a process that is known to have ended is lost at once. Unit: seconds.

    Raises:
        ValueError: The record is about ps that the job has not.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        who: Incarnation,
        controls: Sequence[PsControl],
        replicas: int,
        shares: int,
        write: Callable[[], None],
        record: JobRecord | None = None,
        *,
        spreads: bool = False,
        rebalances: bool = False,
        lost_s: float = 25.0,
    ) -> None:
        self._locked_job = locked_job
        self._who = who
        self._controls = {control.task: control for control in controls}
        self._write = write
        self._num_shares = (record.num_shares if record is not None else 0) or shares
        homes = first_leaders(self._num_shares, [control.task for control in controls])
        self._shares = _shares_of(record, replicas, homes, spreads=spreads)
        self._resumes = bool(self._shares.configurations)
        self._lock = threading.Lock()  # of the decisions, which a status reads
        self._leads: dict[int, Lead | HandOver] = {}  # orders that were not answered yet, by share
        self._leader_lost: dict[int, float] = {}  # when, of shares that another ps is to lead
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._closing = threading.Event()
        self._backoffs: dict[int, Backoff] = {}
        self._copy_again: dict[int, float] = {}
        self._meter = WorkMeter() if rebalances else None
        self._leaving_since: dict[TaskId, float] = {}  # by the clock of time.monotonic
        self._move_began = 0.0  # by the clock of time.monotonic
        self._lost_s = lost_s
        self._thread = new_thread("shares", self._run, failed=self._failed)
        self._watches = [self._watch(control, was_led=self._resumes) for control in controls]

    def start(self, join: Callable[[TaskId, str], None]) -> None:
        """Begin to lead.

        Args:
            join: Takes a ps and its address into the job.
        """
        with self._lock:
            self._leads |= {order.share: order for order in self._shares.begin()}
        self._locked_job.part(Moves).begin = self.move
        servers = self._locked_job.part(Servers)
        servers.shares, servers.join = self._num_shares, join
        self._locked_job.leaders.shares = self._num_shares
        self._thread.start()
        for watch in self._watches:
            watch.start()

    def _watch(self, control: PsControl, *, was_led: bool) -> PsWatch:
        return PsWatch(
            control,
            self._who,
            lambda task, report: self._events.put((task, report)),
            self._closing,
            was_led=was_led,
            lost_s=self._lost_s,
            failed=self._failed,
        )

    def add(self, control: PsControl) -> None:
        """Lead a ps, too, that has come after :meth:`start`. From any thread."""
        watch = self._watch(control, was_led=False)
        with self._lock:
            self._controls[control.task] = control
            self._watches.append(watch)
        watch.start()

    def stop(self) -> None:
        """Decide nothing more: the job is over, and its ps end."""
        self._closing.set()

    def close(self) -> None:
        """Stop, and wait until no ps is called any more: channels may be closed."""
        self.stop()
        for watch in tuple(self._watches):
            watch.join(_ORDER_S)
        if self._thread.ident is not None:
            self._thread.join(_ORDER_S)
        for control in tuple(self._controls.values()):
            control.end_watch()

    def _failed(self, error: BaseException) -> None:
        with self._locked_job.open() as (job, _):
            job.fail(f"the chief can no longer lead the ps: {error!r}")

    # -- what is known -------------------------------------------------------------------------

    def add_to(self, record: JobRecord) -> JobRecord:
        """Add the configurations and processes to a record, to be written down."""
        with self._lock:
            shares = tuple(
                ShareRecord(
                    share=each.share,
                    epoch=each.epoch,
                    leader=each.leader.index,
                    followers=tuple(task.index for task in each.followers),
                )
                for _, each in sorted(self._shares.configurations.items())
            )
            processes = {task.index: each for task, each in self._shares.processes.items()}
            servers = {task.index: each.address for task, each in self._controls.items()}
        return record.model_copy(
            update={
                "shares": shares,
                "num_shares": self._num_shares,
                "processes": processes,
                "servers": servers,
            }
        )

    def leaders(self) -> list[tuple[int, PsControl]]:
        """List each share with the control of the ps that leads it.

        Raises:
            PeerLostError: A share has no leader.
        """
        with self._lock:
            configurations = dict(self._shares.configurations)
            lost = set(self._shares.lost)
        if lost or len(configurations) < self._num_shares:
            without = set(range(self._num_shares)) - configurations.keys()
            raise PeerLostError(f"no ps leads share {min(without)}")
        return [
            (share, self._controls[each.leader]) for share, each in sorted(configurations.items())
        ]

    def has_lost_values(self) -> bool:
        """Return whether a share is led by no ps."""
        with self._lock:
            return bool(self._shares.lost)

    def takes_ps(self) -> bool:
        """Return that a ps may come."""
        return True

    def process_of(self, task: TaskId) -> int:  # noqa: ARG002
        """Return 0: those that lead shares have them."""
        return 0

    def may_leave(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has nothing that is needed."""
        with self._lock:
            return self._shares.may_leave(task) and not self._leads

    def replicated_process(self, task: TaskId) -> int:
        """Find the process of a ps, if each share has its replicas; else 0."""
        with self._lock:
            is_whole = self._shares.are_replicated and not self._leads
            return self._shares.processes.get(task, 0) if is_whole else 0

    def is_stuck(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has what no other ps is there to take."""
        with self._lock:
            return self._shares.is_stuck(task)

    # -- moving --------------------------------------------------------------------------------

    def move(self, share: int, to: TaskId) -> Move:
        """Begin to move a share, which is over some time after this returns. From any thread.

        Raises:
            NotFoundError: There is no such share, or no such ps.
            RefusedError: See :meth:`Shares.begin_move`.
        """
        with self._lock:
            before = self._shares.move
            move = self._shares.begin_move(share, to)
            if move is not before:
                self._move_began = time.monotonic()
        self._tell_of_move()
        self._events.put((to, _ASKED))
        return move

    def _rebalance(self, task: TaskId, report: PsReport) -> None:
        """Take what a ps has reported of its shares' work, and move the one for which that pays."""
        with self._lock:
            newcomers = self._shares.move_to_newcomer()
        if newcomers is not None:
            self._move_by_itself(*newcomers, "which leads fewer")
        if self._meter is None:
            return
        with self._lock:
            configurations = dict(self._shares.configurations)
            servers = self._shares.settled()
        for state in report.shares:
            now = configurations.get(state.share)
            if now is not None and now.leader == task and state.role is ReplicaRole.LEADING:
                self._meter.see(time.monotonic(), now, state)
        best = best_move(self._meter.work(configurations.values()), servers) if servers else None
        if best is not None:
            self._move_by_itself(*best, "which has less work")

    def _move_by_itself(self, share: int, to: TaskId, why: str) -> None:
        log.info("share %d moves to %s, %s", share, to.short, why)
        with suppress(RefusedError):  # another move was asked for meanwhile
            self.move(share, to)

    def _tell_of_move(self) -> None:
        with self._lock:
            move = self._shares.move
        if move is not None:
            seconds = time.monotonic() - self._move_began
            self._locked_job.part(Moves).publish(replace(move, seconds=seconds))

    # -- deciding ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                task, report = self._events.get(timeout=_TURN_S)
            except Empty:
                pass
            else:
                self._decide(task, report)
                if report is not None:
                    self._rebalance(task, report)
            if self._events.empty():  # an order may wait for a ps of which an event says it is lost
                self._tell()
            self._tell_of_move()

    def _decide(self, task: TaskId, report: PsReport | None) -> None:
        began = time.monotonic()
        with self._lock:
            before = dict(self._shares.configurations)
            is_gone = report is None or report is SUSPECTED
            has_left = is_gone and self._shares.may_leave(task)
            decided = self._decided(task, report)
            decided += self._shares.hand_over(self._stays)
            orders, give_ups = lead_orders(decided), other_orders(decided)
            lost = sorted(self._shares.lost)
            has_changed = any(each.write is not None for each in decided)
            after = dict(self._shares.configurations)
        if self._closing.is_set():
            return
        if has_left:
            with self._locked_job.open() as (job, now):
                job.ps_left(task, now=now)
        if has_changed and not self._is_written():  # before anybody hears of it
            return
        for share, configuration in after.items():
            if before.get(share) != configuration:
                log.info("%s", _described(configuration))
                self._backoffs.pop(share, None)
                self._copy_again.pop(share, None)
        if lost:
            self._fail_without(task, lost)
        with self._lock:
            self._leads.update({order.share: order for order in orders})
            for order in orders:
                if is_gone and before[order.share].leader == task:
                    self._leader_lost.setdefault(order.share, began)
        for give_up in give_ups:
            self._tell_to_give_up(give_up)

    def _decided(self, task: TaskId, report: PsReport | None) -> list[Reconfiguration]:
        if report is _ASKED:
            return []
        if report is None or report is SUSPECTED:
            self._leaving_since.pop(task, None)
            return self._shares.gone(task, is_suspected=report is SUSPECTED)
        self._check_known(task, report)
        return self._shares.reported(task, report)

    def _stays(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave can wait: it leaves without an answer
        otherwise.
        """
        since = self._leaving_since.setdefault(task, time.monotonic())
        return time.monotonic() - since < _LEAVER_STAYS_S

    def _is_written(self) -> bool:
        """Write down what was decided, however long that takes; False: the job is over."""
        while not self._closing.is_set():
            try:
                self._write()
            except StorageError as error:
                log.error("who leads the ps cannot be written down, and is tried again: %s", error)
                self._closing.wait(_WRITE_AGAIN_S)
            else:
                return True
        return False

    def _check_known(self, task: TaskId, report: PsReport) -> None:
        """Refuse a ps that leads in an epoch that was not written down: it cannot be led, see ADR
        0054.
        """
        if self._resumes or task in self._shares.processes:
            return
        known = self._shares.configurations
        if any(state.epoch > 0 and state.share not in known for state in report.shares):
            raise FencedError(
                f"{task} has been led by a chief that wrote nothing down; a chief that restarts "
                "needs a model directory (--model-dir) in a job with ps_shares or ps_replicas"
            )

    def _fail_without(self, task: TaskId, lost: Sequence[int]) -> None:
        names = ", ".join(str(share) for share in lost)
        with self._locked_job.open() as (job, _):
            job.fail_without_variables(
                f"{task} was lost, and with it the last replica of share {names}"
            )

    def _tell(self) -> None:
        """Give the orders that were not answered yet, and have copies made."""
        with self._lock:
            # One that does not answer would hold up the others; its next report has it told.
            orders = [each for each in self._leads.values() if self._shares.may_hear(_leader(each))]
        for order in orders:
            self._tell_to_lead(order)
        with self._lock:
            copies = self._shares.copies(self._may_copy) if not self._leads else []
        for copy in copies:
            self._tell_to_copy(copy)

    def _may_copy(self, share: int) -> bool:
        """Return whether it is time for the next attempt to copy a share."""
        now = time.monotonic()
        if now < self._copy_again.get(share, 0):
            return False
        backoff = self._backoffs.setdefault(share, Backoff(_FIRST_COPY_AGAIN_S, _COPY_AGAIN_S))
        self._copy_again[share] = now + backoff.next_s()
        return True

    def _tell_to_lead(self, told: Lead | HandOver) -> None:
        """Have a ps lead. After a handover it does so already, if its leader could tell it."""
        order = self._tell_to_hand_over(told) if isinstance(told, HandOver) else told
        control = self._controls[order.to]
        try:
            control.lead_share(self._who, order, timeout_s=_ORDER_S)
        except PeerLostError as error:  # who watches it says whether it is lost
            log.debug("%s", error)
            return
        except RopewalkError as error:
            log.error("%s does not lead share %d: %s", order.to, order.share, error)
            self._events.put((order.to, None))
            with self._lock:
                self._leads.pop(order.share, None)
            return
        with self._lock:
            if self._leads.get(order.share) is told:
                del self._leads[order.share]
            self._shares.obeyed(order)
            lost = self._leader_lost.pop(order.share, None)
        failover_s = time.monotonic() - lost if lost is not None else None
        leader = ShareLeader(order.share, order.epoch, order.to, control.address, order.followers)
        self._locked_job.leaders.publish(leader, failover_s)
        if failover_s is not None:
            over = event("share.failover", share=order.share, to=order.to.short, took_s=failover_s)
            log.info(
                "share %d was without a leader for %.2f s", order.share, failover_s, extra=over
            )

    def _tell_to_hand_over(self, order: HandOver) -> Lead:
        """Tell a leader to hand over; returns the order to the one that leads then.

        One that does not answer is not waited for: it answers no reads after the grant either.
        """
        control, successor = self._controls[order.to], self._controls[order.successor]
        try:
            control.hand_over_share(self._who, order, successor.address, timeout_s=_ORDER_S)
        except RopewalkError as error:
            log.debug("%s", error)
            return order.lead
        return replace(order.lead, leader_ended=True)

    def _tell_to_give_up(self, order: GiveUpShare) -> None:
        try:
            self._controls[order.to].give_up_share(self._who, order, timeout_s=_ORDER_S)
        except RopewalkError as error:  # its next report says whether it has
            log.debug("%s", error)

    def _tell_to_copy(self, order: CopyTo) -> None:
        control, follower = self._controls[order.to], self._controls[order.follower]
        try:
            control.copy_share(self._who, order, follower.address, timeout_s=_ORDER_S)
        except RopewalkError as error:
            log.debug("%s", error)
            with self._lock:
                self._shares.copy_refused(order)


def _leader(order: Lead | HandOver) -> TaskId:
    return order.to if isinstance(order, Lead) else order.successor


def _shares_of(
    record: JobRecord | None, replicas: int, homes: Mapping[int, TaskId], *, spreads: bool
) -> Shares:
    if record is None:
        return Shares(replicas, homes, spreads=spreads)
    configurations = [
        Configuration(
            each.share,
            each.epoch,
            TaskId(PS, each.leader),
            tuple(TaskId(PS, index) for index in each.followers),
        )
        for each in record.shares
    ]
    processes = {TaskId(PS, index): process for index, process in record.processes.items()}
    return Shares(replicas, homes, configurations, processes, spreads=spreads)


def _described(now: Configuration) -> str:
    followers = ", ".join(task.short for task in now.followers) or "none"
    return (
        f"share {now.share}: {now.leader.short} leads, followers: {followers} (epoch {now.epoch})"
    )
