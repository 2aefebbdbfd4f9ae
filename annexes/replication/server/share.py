"""A share on one ps: its store, and this ps's part in it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ....cluster.replication import replica
from ....cluster.replication.configuration import (
    CopyTo,
    GiveUpShare,
    HandOver,
    Lead,
    ReplicaRole,
    ShareLeader,
    ShareState,
)
from ....cluster.replication.replica import Replica
from ....core.errors import RefusedError, RopewalkError
from ....core.settings import Settings
from ....core.task import TaskId
from ....server.ps.limits import HeldBytes
from ....server.ps.store import Store
from .follower import Follower, FollowerLink
from .joining import OpenLink, ShareCopy
from .leader_records import LeaderRecords
from .records import HandedOver
from .share_part import SharePart
from .stream import RecordStream

log = logging.getLogger(__name__)

OpenFormer = Callable[[RecordStream], FollowerLink]
"""Dials the ps that led before, which has what this ps has, and is to follow."""

_ENDED_S = 1.0  # so long a handover waits for what is under way: the chief waits for longer
_TAKEN_S = 0.5  # and so long until its last record has come


class ReplicatedShare:
    """A share that this ps leads, follows, or does not hold. Thread-safe.

    Args:
        number: Number of the share.
        task: Task of this ps.
        settings: Settings of this ps, for the store's bounds.
        contents: Identity of what the share holds, if this ps is the first to lead it. A worker
            that finds another one knows that its variables are gone.
        changed: Called after each change of :attr:`state`.
        beside: Counts what the other shares of this ps hold.
    """

    def __init__(
        self,
        number: int,
        task: TaskId,
        settings: Settings,
        contents: int = 1,
        changed: Callable[[], None] = lambda: None,
        beside: Callable[[], HeldBytes] = HeldBytes,
    ) -> None:
        self.number = number
        self._part = SharePart(number, task, settings, contents, changed, beside)
        self._lock = self._part.lock
        self._obeying = threading.Lock()  # orders are obeyed one after the other
        self._is_ending = False  # its lead: no session begins
        self._is_closed = False

    @property
    def store(self) -> Store:
        """The share's content; replaced when this ps follows another leader."""
        return self._part.store

    @property
    def replica(self) -> Replica:
        """Role and state of this ps in the share."""
        return self._part.replica

    @property
    def state(self) -> ShareState:
        """State of the share on this ps, for the chief."""
        return self._part.state

    # -- leading -----------------------------------------------------------------------------

    def lead(self, order: Lead) -> None:
        """Obey the chief's order to lead: answers wait for exactly the followers that it names.

        What a link has brought until now is carried out, and nothing more is taken from it.

        Raises:
            FencedError: This ps may not: it has heard of a later epoch, or has not everything.
        """
        with self._obeying:
            self._outlast_grant(order)
            self._lead(order)

    def succeed(
        self, order: Lead, take: Callable[[], None], open_former: OpenFormer | None = None
    ) -> None:
        """Lead in place of the leader that this ps has followed, by the last of its records.

        Args:
            order: Order in the record. The leader is the only follower.
            take: Takes the record; once it is acknowledged, an order of the chief waits.
            open_former: Dials the leader; None: it has not all that is here.

        Raises:
            FencedError: See :meth:`lead`; or this ps follows another leader by now.
            RefusedError: Records before it are missing.
        """
        with self._obeying:
            take()
            self._lead(order, self._former(order, open_former))

    def _lead(self, order: Lead, former: Follower | None = None) -> None:
        part = self._part
        with self._lock:
            after = replica.ordered(part.replica, order)
            if former is not None and (self._is_closed or after is None):
                former.link.close()
                former = None
            if after is None:
                raise part.fenced(f"cannot lead share {self.number} in epoch {order.epoch}")
            if after is part.replica:
                return
            stream = part.stream
            if former is not None:  # before a report says that this ps leads
                part.records.attach(former, has_all=True)
                part.joined = frozenset([former.task])
            if part.replica.role is ReplicaRole.FOLLOWING:  # what its leader has sent was not noted
                part.store.interrupt("this ps has followed meanwhile")
            part.successor, part.is_even = None, False
            part.replica = after
            part.break_link()
            for follower in stream.followers:
                if follower.task in after.needs:
                    follower.lead_in(after.epoch)
                else:  # and hears nothing of this epoch
                    stream.detach(follower.task)
            part.joined &= frozenset(after.needs)
            stream.need(after.needs)
        log.info("leads share %d in epoch %d", self.number, order.epoch)
        part.changed()

    def _former(self, order: Lead, open_former: OpenFormer | None) -> Follower | None:
        """Make a follower of the ps that led before, which has what is here."""
        if open_former is None:
            return None
        [former] = order.followers
        try:
            return Follower(former, open_former(self._part.stream))
        except (OSError, RopewalkError) as error:  # the chief hears that there is no link to it
            log.warning("%s does not follow share %d: %s", former, self.number, error)
            return None

    def _outlast_grant(self, order: Lead) -> None:
        """Take no more records, as follower, and wait until the leader answers no reads either."""
        part = self._part
        with self._lock:
            follows = part.replica.role is ReplicaRole.FOLLOWING
            if not follows or replica.ordered(part.replica, order) is None:
                return
            link = part.link
            ended = link is not None and link.has_ended
            if not replica.waits_for_reads(order, leader_ended=ended):
                return
            until = (0.0 if link is None else link.heard) + replica.GRANT_S
            part.break_link()
            part.replica = replace(part.replica, leader=None)
        left_s = until - time.monotonic()
        if left_s > 0:
            threading.Event().wait(left_s)

    def give_up(self, order: GiveUpShare) -> None:
        """Obey an order to give up the share: when this returns, this ps answers nothing any more.

        What it had is thrown away.

        Raises:
            FencedError: It has heard of that epoch, or of a later one: the order came late.
        """
        part = self._part
        with self._obeying, self._lock:
            after = replica.given_up(part.replica, order)
            if after is None:
                raise part.fenced(f"cannot give up share {self.number} in epoch {order.epoch}")
            if after is part.replica:
                return
            part.become(after, "another ps leads")
        log.info("has given up share %d in epoch %d", self.number, order.epoch)
        part.changed()

    def hand_over(self, order: HandOver, address: str, last: HandedOver) -> None:
        """Obey an order to hand the share over: when this returns, this ps answers nothing any
        more, and has told its successor to lead, if there is a link to it.

        Args:
            order: The order.
            address: Address of the successor.
            last: Last record that it gets.

        Raises:
            FencedError: This ps has heard of that epoch, or of a later one: the order came late.
        """
        part = self._part
        with self._obeying:
            with self._lock:
                if self._handed_over(order) == part.replica:
                    return
                part.successor = ShareLeader(self.number, order.epoch, order.successor, address)
            is_even = self._end_lead()
            try:
                with self._lock:
                    after = self._handed_over(order)  # another ps may have come to lead meanwhile
                    may_lead = order.successor in part.replica.needs
                    records = self._step_down(after, is_even=is_even)
            finally:
                self._is_ending = False
            if may_lead:
                last = last if is_even else replace(last, address="")
                records.pass_on(last, order.successor, _TAKEN_S)
            for follower in records.followers:
                records.detach(follower.task)
        log.info("has handed share %d over to %s", self.number, order.successor)
        part.changed()

    def _handed_over(self, order: HandOver) -> Replica:
        part = self._part
        after = replica.handed_over(part.replica, order)
        if after is None:
            raise part.fenced(f"cannot hand over share {self.number} in epoch {order.epoch}")
        return after

    def _end_lead(self) -> bool:
        """End what uses the share, as leader; returns whether all that it has begun is done."""
        part = self._part
        with self._lock:
            if part.replica.role is not ReplicaRole.LEADING:
                return False
            self._is_ending = True
            store = part.store
            part.sessions.cancel()
        store.interrupt("another ps is to lead the share")
        has_ended = part.sessions.ended_within(_ENDED_S)
        if not has_ended:
            log.warning("share %d is handed over while something is under way", self.number)
        return has_ended

    def _step_down(self, after: Replica, *, is_even: bool) -> RecordStream:
        """Keep everything, and answer nothing: what waits to be answered waits on.

        The caller holds the lock, so that no session begins meanwhile.

        Returns:
            The stream, which is to end.
        """
        part = self._part
        part.break_link()
        part.replica, part.is_even = after, is_even
        part.stream.need([part.task])  # which has no link here
        part.sessions.cancel()
        return part.stream

    def check(self) -> None:
        """Ask the followers, as leader, whether they follow still, so that reads need not."""
        part = self._part
        if part.stream.followers:
            part.stream.check()

    @contextmanager
    def serving(self, cancel: Callable[[], None] = lambda: None) -> Iterator[Store]:
        """Lend the share's store, for a session or call that may change it.

        Args:
            cancel: Makes it end soon, since this ps leads no more.

        Raises:
            MovedError: This ps does not lead the share.
        """
        part = self._part
        with self._lock:
            store = self._led()
            session = part.sessions.begin(cancel)
        try:
            yield store
        finally:
            with self._lock:
                part.sessions.end(session)

    @property
    def leads(self) -> bool:
        """Whether this ps leads the share."""
        return self._part.replica.role is ReplicaRole.LEADING

    @property
    def is_held(self) -> bool:
        """Whether this ps leads or follows the share, and has all of it."""
        return self._part.replica.is_whole

    def led(self) -> Store:
        """Return the share's store, for a call.

        Raises:
            MovedError: This ps does not lead the share.
        """
        with self._lock:
            return self._led()

    def _led(self) -> Store:
        part = self._part
        if part.replica.role is not ReplicaRole.LEADING or part.stream.is_closed:
            raise part.moved(part.described(), part.replica.epoch)
        if self._is_ending:
            raise part.moved("another ps is to lead it", part.replica.epoch)
        return part.store

    # -- copying to a follower -----------------------------------------------------------------

    def copy_to(self, order: CopyTo, address: str, open_link: OpenLink) -> None:
        """Obey an order to copy the share to another ps, in a thread of its own.

        A repeated order changes nothing. A copy that fails is given up: the chief orders it anew.

        Raises:
            FencedError: This ps does not lead the share in that epoch.
        """
        part = self._part
        with self._lock:
            now = part.replica
            if now.role is not ReplicaRole.LEADING or now.epoch != order.epoch:
                raise part.fenced(f"cannot copy share {self.number} in epoch {order.epoch}")
            after = replica.told_to_copy(now, order)
            if after is None:
                return
            part.replica = after
            copy = ShareCopy(part, order, lambda: self._is_closed)
        copy.start(address, open_link)

    # -- following -----------------------------------------------------------------------------

    def follow(self, leader: TaskId, epoch: int, break_link: Callable[[], None]) -> LeaderRecords:
        """Follow a leader from now on; everything that is here is thrown away.

        Args:
            leader: Leader that copies its share here.
            epoch: Epoch in which it leads.
            break_link: Ends its link. From any thread.

        Returns:
            Object that takes its records.

        Raises:
            FencedError: This ps leads the share, or knows of a later epoch.
        """
        part = self._part
        with self._lock:
            after = replica.followed(part.replica, leader, epoch)
            if after is None:
                raise part.fenced(
                    f"does not follow {leader} in epoch {epoch} of share {self.number}"
                )
            part.become(after, f"{leader} leads it in epoch {epoch}")
            part.link = records = LeaderRecords(part, leader, break_link)
        part.changed()
        return records

    def follow_on(
        self, leader: TaskId, epoch: int, break_link: Callable[[], None]
    ) -> LeaderRecords:
        """Follow as :meth:`follow` does a leader that this ps has handed the share over to.

        What is here stays: the leader has the same.

        Raises:
            RefusedError: It may have something else.
        """
        part = self._part
        with self._lock:
            successor = part.successor.leader if part.successor and part.is_even else None
            after = replica.followed_on(part.replica, leader, epoch, successor)
            if after is None:
                raise RefusedError(
                    f"{part.task} does not follow {leader} in epoch {epoch} of share "
                    f"{self.number} without a copy: {part.described()}",
                    task=part.task,
                )
            part.replica = after
            part.is_even = False
            part.stream.need(())
            part.link = records = LeaderRecords(part, leader, break_link, is_whole=True)
        log.info("follows %s in share %d, which it led before", leader, self.number)
        part.changed()
        return records

    def close(self) -> None:
        """Break all links, and make no more."""
        part = self._part
        self._is_closed = True  # without the lock, which a call on a link may hold
        self._part.break_link()
        for follower in part.stream.followers:
            with suppress(OSError):
                part.stream.remove(follower)
