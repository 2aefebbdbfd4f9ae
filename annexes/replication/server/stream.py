"""The stream of a store's records: to each follower in order, and what they acknowledge.

A record goes to every link before :meth:`RecordStream.post` returns, under one lock: all followers
get all records in one order, which is the order of each block's updates, since a record is posted
under its block's lock. A slow follower so slows every session down: that is the bound on what is
under way.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ....cluster.replication.replica import GRANT_S, may_answer
from ....core.errors import FencedError, PeerLostError, RopewalkError
from ....core.task import TaskId
from .follower import Follower, FollowerLink
from .records import Checked, Record

log = logging.getLogger(__name__)

_SILENCE_S = 10.0  # one that loads a kernel may be silent for some seconds
_JOINING_S = 2.0  # so long a push waits for a ps that is not needed yet, and reads it
_MOST_UNREAD = 64  # a Unix socket takes some hundred acknowledgements before the follower stands
_LONGEST_READ_S = 0.25  # then whoever reads looks whether it still has to wait


class RecordStream:
    """Posts records to followers, and waits for acknowledgements. Thread-safe.

    Args:
        timeout_s: Timeout of a wait for acknowledgements. Unit: seconds.
        changed: Called when :attr:`is_used` may have changed.

    Attributes:
        followers: Replaced as a whole, so that no lock is needed to see that there is none.
        lost: Called once for each follower whose link broke, with the reason.
        closed: Called when this ps leads no more.
    """

    def __init__(self, timeout_s: float, changed: Callable[[], None] = lambda: None) -> None:
        self.followers: tuple[Follower, ...] = ()
        self.lost: Callable[[TaskId, BaseException], None] = lambda task, error: None  # noqa: ARG005
        self.closed: Callable[[], None] = lambda: None
        self._timeout_s = timeout_s
        self._use_changed = changed
        self._silence_s = min(timeout_s, _SILENCE_S)
        self._lock = threading.Lock()
        self._changed = threading.Condition()  # acknowledgements, and who is needed
        self._missing: set[TaskId] = set()  # needed, and without a link
        self._closed: RopewalkError | None = None

    def attach(self, follower: Follower) -> None:
        """Send records to a follower from now on; answers do not wait for it yet."""
        with self._lock:
            self.followers = (*self.followers, follower)
        self._use_changed()

    def detach(self, task: TaskId) -> None:
        """Send nothing more to a ps. If it is needed, answers wait until it is not any more."""
        for follower in self.followers:
            if follower.task == task:
                self.remove(follower)

    def remove(self, follower: Follower) -> None:
        """Remove a follower as :meth:`detach` does, for one of two links to the same ps."""
        follower.cancel()  # a thread may wait for room on the link, and hold the lock
        with self._changed:  # first: no answer may leave in between
            if follower.is_needed and follower in self.followers:
                self._missing.add(follower.task)
        with self._lock:
            self.followers = tuple(each for each in self.followers if each is not follower)
        with self._changed:
            follower.is_removed = True
            if not follower.is_read:
                follower.link.close()
            self._changed.notify_all()
        self._use_changed()

    def post(self, record: Record) -> None:
        """Send a record to every follower that is to have it."""
        for follower in self.followers:
            if follower.num_ahead > _MOST_UNREAD:
                self._look_at(follower)
        with self._lock:
            self._send(self.followers, record)

    def send(self, follower: Follower, record: Record) -> None:
        """Send a record to one follower."""
        if follower.num_ahead > _MOST_UNREAD:
            self._look_at(follower)
        with self._lock:
            self._send((follower,), record)

    def _look_at(self, follower: Follower) -> None:
        """Read what a follower has said, if no thread waits for it, and wait for nothing."""
        with self._changed:
            is_free = follower.may_be_read
            follower.is_read |= is_free
        if is_free:
            self._read(follower, 0.0)

    def _send(self, followers: Iterable[Follower], record: Record) -> None:
        for follower in followers:
            was_broken = follower.broken is not None
            follower.send(record)
            if follower.broken is not None and not was_broken:
                self.lost(follower.task, follower.broken)

    def claim(self, follower: Follower, block: int) -> bool:
        """Claim a block for a follower; returns whether the caller is to copy it: nobody else
        does.
        """
        with self._lock:
            if block in follower.claimed:
                return False
            follower.claimed.add(block)
            return True

    def is_claimed(self, block: int) -> bool:
        """Return whether a block is copied to all followers."""
        with self._lock:
            return all(block in follower.claimed for follower in self.followers)

    def need(self, tasks: Iterable[TaskId]) -> None:
        """Wait with answers for exactly these followers from now on.

        One that has no link here is waited for, too: the chief counts on it, so that only the chief
        can say that it is needed no more.
        """
        needed = set(tasks)
        with self._changed:
            for follower in self.followers:
                follower.is_needed = follower.task in needed
            self._missing = needed - {follower.task for follower in self.followers}
            self._changed.notify_all()
        self._use_changed()

    def acknowledge(self, link: FollowerLink, position: int) -> None:
        """Note that a follower has all records up to a position, as its link says."""
        with self._changed:
            for follower in self.followers:
                if follower.link is link:
                    follower.acknowledged = max(follower.acknowledged, position)
                    if follower.checked is not None and position >= follower.checked[0]:
                        follower.granted_until = follower.checked[1] + GRANT_S
                        follower.checked = None
                    if not follower.is_read:  # else whoever reads wakes the others
                        self._changed.notify_all()

    def link_ended(self, link: FollowerLink, error: BaseException) -> None:
        """Handle the end of the acknowledgements on a link: it is broken."""
        for follower in self.followers:
            if follower.link is link:
                follower.has_ended = True
                self.give_up(follower, error)

    def give_up(self, follower: Follower, error: BaseException) -> None:
        """Send nothing more to a follower, and say that it is lost.

        If it is needed, answers wait until the chief says that it is not any more.
        """
        follower.cancel()
        with self._lock:
            # That it follows another leader says more than that the link broke.
            says_more = isinstance(error, FencedError) and not isinstance(
                follower.broken, FencedError
            )
            if follower.broken is None or says_more:
                follower.broken = error
                self.lost(follower.task, error)
        with self._changed:
            self._changed.notify_all()

    def pass_on(self, record: Record, task: TaskId, timeout_s: float) -> None:
        """Send the last record to a follower, and wait until it has come, or cannot any more."""
        for follower in self.followers:
            if follower.task == task:
                self.send(follower, record)
                with suppress(RopewalkError):
                    self._wait([(follower, follower.position)], follower, timeout_s)

    def close(self, error: RopewalkError) -> None:
        """End the lead of this ps: every wait raises ``error``, now and from now on."""
        with self._changed:
            self._closed = self._closed or error
            self._changed.notify_all()
        self._use_changed()
        self.closed()

    @property
    def is_closed(self) -> bool:
        """Whether this ps leads no more."""
        return self._closed is not None

    @property
    def is_used(self) -> bool:
        """Whether a record has a follower, or an answer something to wait for."""
        return bool(self.followers or self._missing or self._closed is not None)

    def confirm(self) -> None:
        """Wait until every follower that is needed has all that was posted until now, and no other
        one reads what workers may write over then.

        Raises:
            RopewalkError: This ps leads no more.
            PeerLostError: They have not in time.
        """
        if self.is_used:
            self._wait([(each, each.position) for each in self.followers])

    def check(self) -> None:
        """Ask all followers whether they follow still, without waiting for the answers.

        One that has not answered for long is lost, whatever the connection says.
        """
        for follower in self.followers:
            self._look_at(follower)
        now = time.monotonic()
        for follower in self.followers:
            asked = follower.checked
            if asked is not None and follower.broken is None and now - asked[1] > self._silence_s:
                self.give_up(follower, TimeoutError(f"no acknowledgement for {_SILENCE_S:g} s"))
        # A record to one that takes nothing may be under way: that is a question, too.
        may_send = self._lock.acquire(timeout=GRANT_S / 4)
        try:
            for follower in self.followers:
                if may_send:
                    self._send((follower,), Checked())
                if follower.checked is None:
                    follower.checked = follower.position, now
        finally:
            if may_send:
                self._lock.release()

    def confirm_read(self) -> None:
        """Confirm as :meth:`confirm` does, for an answer that has changed nothing.

        A push that all have acknowledged shows that this ps leads; a read has to ask, unless they
        have granted it a while ago.

        Raises:
            RopewalkError: This ps leads no more.
            PeerLostError: They have not answered in time.
        """
        if not self.is_used:
            return
        now = time.monotonic()
        needed = [each for each in self.followers if each.is_needed]
        if any(each.broken is not None or each.granted_until < now for each in needed):
            self.check()
        self.confirm()

    def wait_for(self, follower: Follower, position: int) -> None:
        """Wait until one follower has all up to a position.

        Raises:
            PeerLostError: Its link broke, or it has not in time.
        """
        self._wait([(follower, position)], also_copied=follower)

    def _wait(
        self,
        awaited: list[tuple[Follower, int]],
        also_copied: Follower | None = None,
        timeout_s: float | None = None,
    ) -> None:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        began = time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            left_s = timeout_s - waited_s
            if also_copied is None and waited_s >= min(_JOINING_S, timeout_s):
                self._give_up_joining(awaited)
            with self._changed:
                late = self._late(awaited, also_copied)
                missing = self._missing if also_copied is None else set()
                if not late and not missing:
                    return
                if left_s <= 0:
                    raise self._too_late(late, missing)
                # One of those that wait reads, which wakes one thread less than if another did.
                reader = next((each for each, _ in late if each.may_be_read), None)
                if reader is None:
                    self._changed.wait(left_s)
                    continue
                reader.is_read = True
            self._read(reader, min(left_s, _LONGEST_READ_S))

    def _read(self, follower: Follower, timeout_s: float) -> None:
        """Read acknowledgements; the caller has set ``is_read``."""
        try:
            follower.link.read(timeout_s)
        finally:
            with self._changed:
                follower.is_read = False
                if follower.is_removed:
                    follower.link.close()
                self._changed.notify_all()

    def _give_up_joining(self, awaited: list[tuple[Follower, int]]) -> None:
        for each, position in awaited:
            if not each.is_needed and each.holds_up(position):
                self.give_up(each, TimeoutError("pushes waited for it though it only joins"))

    def _late(
        self, awaited: list[tuple[Follower, int]], also_copied: Follower | None
    ) -> list[tuple[Follower, int]]:
        """List the followers that have not acknowledged what is awaited of them. The caller holds
        the lock.
        """
        if self._closed is not None:
            raise self._closed
        if also_copied is not None and also_copied.broken is not None:
            raise PeerLostError(
                f"the link to {also_copied.task} broke: {also_copied.broken}",
                peer=str(also_copied.task),
            )
        return [
            (each, position)
            for each, position in awaited
            if each in self.followers
            and (
                each.holds_up(position)
                or (each is also_copied and not may_answer(position, (each.acknowledged,)))
            )
        ]

    def _too_late(
        self, late: list[tuple[Follower, int]], missing: Iterable[TaskId]
    ) -> PeerLostError:
        if not late:
            task = min(missing)
            return PeerLostError(
                f"{task} follows this ps, has no link to it, and was not given up by the chief in "
                f"{self._timeout_s:.0f} s (request_timeout_s)",
                peer=str(task),
            )
        follower, position = late[0]
        return PeerLostError(
            f"{follower.task} follows this ps and has acknowledged {follower.acknowledged} of "
            f"{position} records in {self._timeout_s:.0f} s (request_timeout_s)",
            peer=str(follower.task),
        )
