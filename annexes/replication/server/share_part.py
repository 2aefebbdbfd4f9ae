"""The part of one ps in a share: its contents, its role, and who uses it now."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from ....cluster.replication.configuration import (
    FollowerState,
    ReplicaRole,
    ShareLeader,
    ShareState,
)
from ....cluster.replication.replica import Replica
from ....core.errors import FencedError, MovedError
from ....core.settings import Settings
from ....core.task import TaskId
from ....server.ps.limits import HeldBytes
from ....server.ps.store import Store
from .posting import StoreRecords
from .stream import RecordStream

log = logging.getLogger(__name__)

# -- The sessions and calls that use a share's store now ---------------------------------------

SERVICE = "follow"
"""The service that a leader greets a follower with."""


class RunningSessions:
    """The users of a share's store, until it has ended. Not thread-safe but for
    :meth:`ended_within`.

    Args:
        lock: Held by callers of all other methods.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._running: dict[object, Callable[[], None]] = {}

    def begin(self, cancel: Callable[[], None]) -> object:
        """Add a session; returns its key for :meth:`end`."""
        key = object()
        self._running[key] = cancel
        return key

    def end(self, key: object) -> None:
        """Remove a finished session."""
        del self._running[key]
        self._changed.notify_all()

    def cancel(self) -> None:
        """Make all of them end soon."""
        for cancel in list(self._running.values()):
            cancel()

    def ended_within(self, seconds: float) -> bool:
        """Wait until all have ended; False: some have not. The caller does not hold the lock."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)


class LeaderLink(Protocol):
    """The link of a leader that this ps follows, or followed last.

    Attributes:
        heard: Time at which it has heard of the leader last, by the clock of ``time.monotonic``.
        has_ended: Whether the leader has ended the link.
    """

    heard: float
    has_ended: bool

    def cancel(self) -> None:
        """End it. From any thread; a second time does nothing."""


class SharePart:
    """A ps's part in a share. All of it changes together, under the lock.

    Args:
        number: Number of the share.
        task: Task of this ps.
        settings: Settings of this ps, for the store's bounds.
        contents: Identity of what the share holds, if this ps is the first to lead it.
        changed: Called after each change of :attr:`state`, without the lock.
        beside: Counts what the other shares of this ps hold.

    Attributes:
        lock: Held by whoever reads or changes the others.
        replica: Role and state of this ps in the share.
        store: The share's content; replaced when this ps follows another leader.
        records: Posts what happens to the store.
        stream: Stream of these records.
        link: The link of the leader that this ps follows, or followed last; None: of none.
        joined: Followers that the chief may count on.
        successor: The ps that this one has been told to hand the share over to last, and has not
            led since; None: there is none.
        is_even: Whether what is here is what that ps had when it came to lead.
        sessions: Users of the store.
    """

    def __init__(
        self,
        number: int,
        task: TaskId,
        settings: Settings,
        contents: int,
        changed: Callable[[], None],
        beside: Callable[[], HeldBytes],
    ) -> None:
        self.number = number
        self.task = task
        self.changed = changed
        self._settings = settings
        self._beside = beside
        self.lock = threading.Lock()
        self.replica = Replica()
        self.link: LeaderLink | None = None
        self.sessions = RunningSessions(self.lock)
        self._renew(contents)

    def _renew(self, contents: int) -> None:
        self.store = store = Store(self.task, self._settings, self.number, self._beside)
        store.contents = contents
        self.records = store.part(StoreRecords)
        self.stream = stream = self.records.stream
        stream.closed = self.changed
        stream.lost = lambda task, error: self._link_lost(stream, task, error)
        self.joined: frozenset[TaskId] = frozenset()
        self.successor: ShareLeader | None = None
        self.is_even = False

    def break_link(self) -> None:
        """End the link of the leader, if there is one."""
        if self.link is not None:
            self.link.cancel()

    def become(self, after: Replica, why: str, contents: int = 0) -> None:
        """Begin with nothing; whoever waits for what was here gets a ``MovedError``.

        The caller holds the lock, so that no session begins meanwhile.
        """
        self.break_link()
        self.replica = after
        before = self.stream
        self._renew(contents)
        before.close(self.moved(why, after.epoch))
        for follower in before.followers:
            before.detach(follower.task)
        self.sessions.cancel()

    def _link_lost(self, stream: RecordStream, task: TaskId, error: BaseException) -> None:
        """Handle a link that broke. Its end, or a record that found it broken, says so; any
        thread.
        """
        needs = any(each.task == task and each.is_needed for each in stream.followers)
        if isinstance(error, FencedError) and needs:
            # The follower knows of a later epoch: this ps leads no more.
            stream.close(MovedError(f"share {self.number} is led elsewhere: {error}"))
        log.warning("the link of share %d to %s broke: %s", self.number, task, error)
        self.changed()

    # -- saying what it is -----------------------------------------------------------------------

    @property
    def state(self) -> ShareState:
        """State of the share on this ps."""
        # Without the lock, which a record that is carried out may hold for long.
        now, store, stream = self.replica, self.store, self.stream
        state = ShareState(self.number, now.role, now.epoch, now.is_whole and not stream.is_closed)
        if now.role is not ReplicaRole.LEADING:
            return state
        counters = store.counters()
        return replace(
            state,
            followers=tuple(self._followers(now, stream)),
            held_bytes=counters.value_bytes + counters.slot_bytes,
            pushes=counters.pushes,
            received_bytes=counters.bytes_in,
        )

    def _followers(self, now: Replica, stream: RecordStream) -> Iterator[FollowerState]:
        joined, copies_to = self.joined, now.copies_to
        for each in stream.followers:
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

    def described(self) -> str:
        """Describe the role of this ps in the share, for messages."""
        now = self.replica
        whole = "" if now.is_whole else ", without all of its contents"
        return f"it is {now.role} in epoch {now.epoch}{whole}"

    def fenced(self, what: str) -> FencedError:
        """Make the error of an order or a leader that this ps may not obey."""
        return FencedError(
            f"{self.task} {what}: {self.described()}", task=self.task, share=self.number
        )

    def moved(self, why: str, epoch: int) -> MovedError:
        """Make the error for a caller that takes this ps for the share's leader, with the next one
        if known.
        """
        leads: dict[str, object] = {"epoch": epoch}
        if (now := self.successor) is not None:
            leads = {"epoch": now.epoch, "leader": now.leader.index, "address": now.address}
        return MovedError(
            f"{self.task} does not lead share {self.number}: {why}",
            task=self.task,
            share=self.number,
            **leads,
        )
