"""One share on one ps: its store, and this ps's part in it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ....cluster.replication import replica
from ....cluster.replication.configuration import CopyTo, GiveUpShare, Lead
from ....cluster.replication.replica import Replica, ReplicaRole
from ....cluster.replication.reports import FollowerState, ShareState
from ....core.errors import FencedError, MovedError, RefusedError, WindlassError
from ....core.process.threads import new_thread
from ....core.settings import Settings
from ....core.task import TaskId
from ..memory_limits import HeldBytes
from ..store import Store
from .follower import Follower, FollowerLink
from .joining import copy_store
from .records import Record
from .replaying import Replayer
from .sessions import RunningSessions
from .stream import RecordStream

log = logging.getLogger(__name__)

OpenLink = Callable[[CopyTo, str, RecordStream], FollowerLink]
"""Dials the follower of an order at an address; its acknowledgements go to the stream."""

OpenFormer = Callable[[TaskId, RecordStream], FollowerLink]
"""Dials the ps that led before, which has what this ps has, and is to follow."""

_ACKNOWLEDGED_S = 0.2
"""Twice this is how long a handover waits for what is under way; within ``GRANT_S`` the chief
has its answer. Unit: seconds.
"""


class ReplicatedShare:
    """A share that this ps leads, follows, or does not hold. Thread-safe.

    Args:
        number: Number of the share.
        task: This ps.
        settings: Settings of this ps, for the store's bounds.
        contents: Identity of what the share holds, if this ps is the first to lead it. A worker
            that finds another one knows that its variables are gone.
        changed: Called after each change of :attr:`state`.
        beside: What the other shares of this ps hold.

    Attributes:
        store: The share's content; replaced when this ps follows another leader.
        replica: Role and state of this ps in the share.
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
        self.replica = Replica()
        self._task = task
        self._settings = settings
        self._changed = changed
        self._beside = beside
        self._lock = threading.Lock()
        self._obeying = threading.Lock()  # orders are obeyed one after the other
        self._position = 0
        self._break_link: Callable[[], None] = lambda: None
        self._joined: frozenset[TaskId] = frozenset()
        self._heard = 0.0  # of the leader, by the clock of time.monotonic
        self._leader_ended = False
        self._following: object = None
        self._sessions = RunningSessions(self._lock)
        self._is_ending = False  # its lead: no session begins
        self._is_closed = False
        self._even_with: frozenset[TaskId] = frozenset()
        self._renew(contents)

    def _renew(self, contents: int) -> None:
        self.store = store = Store(self._task, self._settings, self.number, self._beside)
        store.contents = contents
        store.records.closed = self._changed
        store.records.lost = lambda task, error: self._link_lost(store, task, error)
        self._replayer = Replayer(store)
        self._position = 0
        self._joined = frozenset()
        self._even_with = frozenset()

    # -- leading -----------------------------------------------------------------------------

    def lead(self, order: Lead, open_former: OpenFormer | None = None) -> None:
        """Obey an order to lead: answers wait for exactly the followers that it names.

        What a link has brought until now is carried out, and nothing more is taken from it.

        Args:
            order: The order.
            open_former: Dials the ps that led before, if that has given up and is to follow.

        Raises:
            FencedError: This ps may not: it has heard of a later epoch, or has not everything.
        """
        with self._obeying:
            self._outlast_grant(order)
            self._lead(order, self._former(order, open_former))

    def _lead(self, order: Lead, former: Follower | None) -> None:
        with self._lock:
            after = replica.ordered(self.replica, order)
            goes_on = after is not None and replica.goes_on_with(self.replica, order)
            if former is not None and (self._is_closed or not goes_on):
                former.link.close()
                former = None
            if after is None:
                raise self._fenced(f"cannot lead share {self.number} in epoch {order.epoch}")
            if after is self.replica:
                return
            store, records = self.store, self.store.records
            if former is not None:  # before a report says that this ps leads
                store.attach(former, has_all=True)
                self._joined = frozenset([former.task])
            if self.replica.role is ReplicaRole.FOLLOWING:  # what its leader has sent was not noted
                store.bases.clear()
                store.cuts.abandon("this ps has followed meanwhile")
            self._even_with = frozenset()
            self.replica = after
            self._break_link()
            self._break_link = lambda: None
            for follower in records.followers:
                if follower.task in after.needs:
                    follower.lead_in(after.epoch)
                else:  # and hears nothing of this epoch
                    records.detach(follower.task)
            self._joined &= frozenset(after.needs)
            records.need(after.needs)
        log.info("leads share %d in epoch %d", self.number, order.epoch)
        self._changed()

    def _former(self, order: Lead, open_former: OpenFormer | None) -> Follower | None:
        """The ps that led before, as a follower that has what is here."""
        with self._lock:
            may_lead = replica.ordered(self.replica, order) is not None
            goes_on = may_lead and replica.goes_on_with(self.replica, order)
            stream = self.store.records
        former = order.former
        if not goes_on or open_former is None or former is None or former not in order.followers:
            return None
        try:
            return Follower(former, open_former(former, stream))
        except (OSError, WindlassError) as error:  # the chief hears that there is no link to it
            log.warning("%s does not follow share %d: %s", former, self.number, error)
            return None

    def _outlast_grant(self, order: Lead) -> None:
        """As follower: take no more records, and wait until the leader answers no reads either."""
        with self._lock:
            follows = self.replica.role is ReplicaRole.FOLLOWING
            if not follows or replica.ordered(self.replica, order) is None:
                return
            if not replica.waits_for_reads(order, leader_ended=self._leader_ended):
                return
            until = self._heard + replica.GRANT_S
            self._break_link()
            self._break_link = lambda: None
            self.replica = replace(self.replica, leader=None)
        left_s = until - time.monotonic()
        if left_s > 0:
            threading.Event().wait(left_s)

    def give_up(self, order: GiveUpShare) -> frozenset[TaskId]:
        """Obey an order to give up the share: when this returns, this ps answers nothing any more.

        What it had is thrown away, unless the chief still counts on it.

        Returns:
            Followers that have exactly what is kept here: one of them may lead, and be followed by
            this ps without a copy.

        Raises:
            FencedError: It has heard of that epoch, or of a later one: the order came late.
        """
        with self._obeying:
            return self._give_up_in_order(order)

    def _give_up_in_order(self, order: GiveUpShare) -> frozenset[TaskId]:
        with self._lock:
            if self._given_up(order) is self.replica:
                return self._even_with
        even_with = self._end_lead() if order.keeps else frozenset()
        try:
            with self._lock:
                after = self._given_up(order)  # another order may have come meanwhile
                if after is self.replica:
                    return self._even_with
                if after.is_whole:
                    self._step_down(after, even_with)
                else:
                    self._become(after, "another ps leads")
        finally:
            self._is_ending = False
        log.info("has given up share %d in epoch %d", self.number, order.epoch)
        self._changed()
        return even_with

    def _given_up(self, order: GiveUpShare) -> Replica:
        after = replica.given_up(self.replica, order)
        if after is None:
            raise self._fenced(f"cannot give up share {self.number} in epoch {order.epoch}")
        return after

    def _end_lead(self) -> frozenset[TaskId]:
        """As leader, end what uses the share; which followers have exactly what is here then."""
        with self._lock:
            if self.replica.role is not ReplicaRole.LEADING:
                return frozenset()
            self._is_ending = True
            store = self.store
            self._sessions.cancel()
        store.cuts.abandon("another ps is to lead the share")
        if not self._sessions.ended_within(_ACKNOWLEDGED_S):
            return frozenset()
        return store.records.even_within(_ACKNOWLEDGED_S)

    def _step_down(self, after: Replica, even_with: frozenset[TaskId]) -> None:
        """Keep everything, and answer nothing: what waits to be answered waits on.

        The caller holds the lock, so that no session begins meanwhile.
        """
        self._break_link()
        self._break_link = lambda: None
        self.replica = after
        self._even_with = even_with
        records = self.store.records
        records.need([self._task])  # which has no link here
        for follower in records.followers:
            records.detach(follower.task)
        self._sessions.cancel()

    def _become(self, after: Replica, why: str, contents: int = 0) -> None:
        """Begin with nothing; whoever waits for what was here gets a ``MovedError``.

        The caller holds the lock, so that no session begins meanwhile.
        """
        self._break_link()
        self._break_link = lambda: None
        self.replica = after
        before = self.store.records
        self._renew(contents)
        before.close(self._moved(why, after.epoch))
        for follower in before.followers:
            before.detach(follower.task)
        self._sessions.cancel()

    def check(self) -> None:
        """As leader: ask the followers whether they follow still, so that reads need not."""
        if self.store.records.followers:
            self.store.records.check()

    @contextmanager
    def serving(self, cancel: Callable[[], None] = lambda: None) -> Iterator[Store]:
        """The share's store, for a session or call that may change it.

        Args:
            cancel: Makes it end soon, since this ps leads no more.

        Raises:
            MovedError: This ps does not lead the share.
        """
        with self._lock:
            store = self._led()
            session = self._sessions.begin(cancel)
        try:
            yield store
        finally:
            with self._lock:
                self._sessions.end(session)

    @property
    def leads(self) -> bool:
        """Whether this ps leads the share."""
        return self.replica.role is ReplicaRole.LEADING

    @property
    def is_held(self) -> bool:
        """Whether this ps leads or follows the share, and has all of it."""
        return self.replica.is_whole

    def led(self) -> Store:
        """The share's store, for a call.

        Raises:
            MovedError: This ps does not lead the share.
        """
        with self._lock:
            return self._led()

    def _led(self) -> Store:
        if self.replica.role is not ReplicaRole.LEADING or self.store.records.is_closed:
            raise self._moved(self._described(), self.replica.epoch)
        if self._is_ending:
            raise self._moved("another ps is to lead it", self.replica.epoch)
        return self.store

    def _moved(self, why: str, epoch: int) -> MovedError:
        return MovedError(
            f"{self._task} does not lead share {self.number}: {why}",
            task=self._task,
            share=self.number,
            epoch=epoch,
        )

    # -- copying to a follower -----------------------------------------------------------------

    def copy_to(self, order: CopyTo, address: str, open_link: OpenLink) -> None:
        """Obey an order to copy the share to another ps, in a thread of its own.

        A repeated order changes nothing. A copy that fails is given up: the chief orders it anew.

        Raises:
            FencedError: This ps does not lead the share in that epoch.
        """
        with self._lock:
            now = self.replica
            if now.role is not ReplicaRole.LEADING or now.epoch != order.epoch:
                raise self._fenced(f"cannot copy share {self.number} in epoch {order.epoch}")
            after = replica.told_to_copy(now, order)
            if after is None:
                return
            self.replica = after
            store = self.store

        follower: Follower | None = None

        def copy() -> None:
            nonlocal follower
            try:
                follower = Follower(order.follower, open_link(order, address, store.records))
                copy_store(store, follower, lambda: self._attach(store, order, follower))
                self._count(store, follower)
            except (OSError, WindlassError) as error:
                log.warning("share %d was not copied to %s: %s", self.number, order.follower, error)
                self._give_up(store, order, follower)

        def failed(error: BaseException) -> None:
            log.error("share %d was not copied to %s: %r", self.number, order.follower, error)
            self._give_up(store, order, follower)

        new_thread(f"copy-{order.follower.short}", copy, failed=failed).start()

    def _count(self, store: Store, follower: Follower) -> None:
        """Answers wait for a follower from now on; the chief hears of it once it has all before."""
        with self._lock:
            if self.store is not store or self.replica.copies_to != follower.task:
                raise FencedError(f"the chief has changed who follows share {self.number}")
            self.replica = replica.copy_sent(self.replica)
            store.records.need(self.replica.needs)
            position = follower.position
        store.records.wait_for(follower, position)
        with self._lock:
            if follower.task in self.replica.needs:
                self._joined |= {follower.task}
        log.info("%s follows share %d", follower.task, self.number)
        self._changed()

    def _attach(self, store: Store, order: CopyTo, follower: Follower) -> None:
        """Begin to send records to a follower, if the chief has ordered nothing else meanwhile."""
        with self._lock:
            now = self.replica
            is_current = (now.copies_to, now.epoch) == (order.follower, order.epoch)
            if self.store is not store or not is_current:
                raise FencedError(f"the chief has changed who follows share {self.number}")
            store.attach(follower)
            if self._is_closed:  # it may have come too late for `close` to remove it
                raise FencedError(f"{self._task} ends")

    def _give_up(self, store: Store, order: CopyTo, follower: Follower | None) -> None:
        if follower is not None:
            follower.cancel()
        with self._lock:
            is_current = self.store is store and self.replica.epoch == order.epoch
            if is_current and self.replica.copies_to == order.follower:
                self.replica = replica.copy_broken(self.replica)
            # One that is needed stays: the chief hears that it is lost.
            if follower is not None and not follower.is_needed:
                store.records.remove(follower)
        self._changed()

    def _link_lost(self, store: Store, task: TaskId, error: BaseException) -> None:
        """A link broke. Its end, or a record that found it broken, says so; any thread."""
        needs = any(each.task == task and each.is_needed for each in store.records.followers)
        if isinstance(error, FencedError) and needs:
            # The follower knows of a later epoch: this ps leads no more.
            store.records.close(MovedError(f"share {self.number} is led elsewhere: {error}"))
        log.warning("the link of share %d to %s broke: %s", self.number, task, error)
        self._changed()

    # -- following -----------------------------------------------------------------------------

    def follow(self, leader: TaskId, epoch: int, break_link: Callable[[], None]) -> object:
        """Follow a leader from now on; everything that is here is thrown away.

        Args:
            leader: That copies its share here.
            epoch: In which it leads.
            break_link: Ends its link. From any thread.

        Returns:
            What this following is called in :meth:`leader_ended` and :meth:`stopped_following`: a
            leader may come again on another link.

        Raises:
            FencedError: This ps leads the share, or knows of a later epoch.
        """
        with self._lock:
            after = replica.followed(self.replica, leader, epoch)
            if after is None:
                raise self._fenced(
                    f"does not follow {leader} in epoch {epoch} of share {self.number}"
                )
            self._become(after, f"{leader} leads it in epoch {epoch}")
            following = self._begin_to_follow(break_link)
        self._changed()
        return following

    def follow_on(self, leader: TaskId, epoch: int, break_link: Callable[[], None]) -> object:
        """As :meth:`follow`, for a leader that this ps has handed the share over to.

        What is here stays: the leader has the same.

        Raises:
            RefusedError: It may have something else.
        """
        with self._lock:
            after = replica.followed_on(self.replica, leader, epoch, self._even_with)
            if after is None:
                raise RefusedError(
                    f"{self._task} does not follow {leader} in epoch {epoch} of share "
                    f"{self.number} without a copy: {self._described()}",
                    task=self._task,
                )
            self.replica = after
            self._even_with = frozenset()
            self.store.records.need(())
            self._replayer = Replayer(self.store, is_whole=True)
            self._position = 0
            following = self._begin_to_follow(break_link)
        log.info("follows %s in share %d, which it led before", leader, self.number)
        self._changed()
        return following

    def _begin_to_follow(self, break_link: Callable[[], None]) -> object:
        """The caller holds the lock."""
        self._break_link = break_link
        self._leader_ended = False
        self._following = object()
        return self._following

    def take(
        self,
        leader: TaskId,
        epoch: int,
        position: int,
        record: Callable[[], Record],
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """Carry out a record of the leader.

        Args:
            leader: That has sent it.
            epoch: In which it leads.
            position: Of the record, on its link.
            record: Returns the record.
            accepted: Called before that and before the record is carried out, when it is sure that
                it will be before this ps leads. Briefly: the share is locked.

        Raises:
            FencedError: This ps follows another leader, or none, by now.
            RefusedError: A record is missing.
        """
        with self._lock:
            if not replica.takes_record(self.replica, leader, epoch, position, self._position):
                if position != self._position + 1:
                    raise RefusedError(
                        f"{leader} sent record {position} of share {self.number} after "
                        f"{self._position}",
                        task=leader,
                    )
                raise self._fenced(
                    f"does not follow {leader} in epoch {epoch} of share {self.number} any more"
                )
            self._heard = time.monotonic()
            accepted()
            try:
                self._replayer.take(record())
            except BaseException as error:
                self.replica = replace(self.replica, is_whole=False)  # before it may lead
                raise RefusedError(
                    f"record {position} of share {self.number} of {leader} could not be carried "
                    f"out: {error!r}",
                    task=leader,
                ) from error
            self._position = position
            self.replica = replica.took_record(self.replica, epoch)
            became_whole = self._replayer.is_whole and not self.replica.is_whole
            if became_whole:
                self.replica = replica.copied_whole(self.replica)
        if became_whole:
            self._changed()

    def leader_ended(self, following: object) -> None:
        """The leader has ended the link: without this ps it answers nothing any more.

        A copy that was not complete is thrown away.
        """
        with self._lock:
            if self._following is not following or self.replica.leader is None:
                return
            self._leader_ended = True
            if self.replica.is_whole:
                return
            self._become(replica.copy_ended(self.replica), "it was copied to in part")
        self._changed()

    def stopped_following(self, following: object, error: BaseException) -> None:
        """A leader's record could not be carried out: this ps has not what the leader has."""
        with self._lock:
            leader = self.replica.leader
            if self._following is not following or self.replica.role is not ReplicaRole.FOLLOWING:
                return
            self.replica = replace(self.replica, is_whole=False)
        log.error("does not follow %s in share %d any more: %s", leader, self.number, error)
        self._changed()

    # -- reporting -----------------------------------------------------------------------------

    @property
    def state(self) -> ShareState:
        """What this ps is to the share."""
        # Without the lock, which a record that is carried out may hold for long.
        now, store = self.replica, self.store
        state = ShareState(
            self.number, now.role, now.epoch, now.is_whole and not store.records.is_closed
        )
        if now.role is not ReplicaRole.LEADING:
            return state
        counters = store.counters()
        return replace(
            state,
            followers=tuple(self._followers(now, store)),
            held_bytes=counters.value_bytes + counters.slot_bytes,
            pushes=counters.pushes,
            received_bytes=counters.bytes_in,
        )

    def _followers(self, now: Replica, store: Store) -> Iterator[FollowerState]:
        joined, copies_to = self._joined, now.copies_to
        for each in store.records.followers:
            yield FollowerState(
                each.task,
                has_joined=each.task in joined,
                is_lost=each.broken is not None,
                is_needed=each.is_needed,
                position=each.position,
                acknowledged=each.acknowledged,
                copied_bytes=each.copied_bytes,
            )
            copies_to = None if each.task == copies_to else copies_to
        if copies_to is not None:  # the link to it is being opened
            yield FollowerState(copies_to)

    def _fenced(self, what: str) -> FencedError:
        return FencedError(
            f"{self._task} {what}: {self._described()}", task=self._task, share=self.number
        )

    def _described(self) -> str:
        now = self.replica
        whole = "" if now.is_whole else ", without all of its contents"
        return f"it is {now.role} in epoch {now.epoch}{whole}"

    def close(self) -> None:
        """Break all links, and make no more."""
        self._is_closed = True  # without the lock, which a call on a link may hold
        self._break_link()
        for follower in self.store.records.followers:
            with suppress(OSError):
                self.store.records.remove(follower)
