"""A new follower: everything that a store holds is copied to it while pushes go on."""

import logging
from collections.abc import Callable

from ....cluster.replication import replica
from ....cluster.replication.configuration import CopyTo
from ....core.errors import FencedError, RopewalkError
from ....core.process.threads import new_thread
from ....server.ps.store import Store
from .copying import copy_target
from .follower import Follower, FollowerLink, TileRoom
from .posting import StoreRecords
from .records import CopyCompleted
from .share_part import SharePart
from .stream import RecordStream

log = logging.getLogger(__name__)

OpenLink = Callable[[CopyTo, str, RecordStream], FollowerLink]
"""Dials the follower of an order at an address; its acknowledgements go to the stream."""

_MOST_AHEAD = 32  # records


def copy_store(
    store: Store,
    follower: Follower,
    attach: Callable[[], None] | None = None,
) -> None:
    """Copy all of a store to a follower, which has everything when this returns.

    Answers do not wait for it yet: see :meth:`RecordStream.need`.

    Args:
        store: The leader's.
        follower: Follower that has nothing yet.
        attach: Attaches it to the store, or raises; None: nothing else attaches followers.

    Raises:
        PeerLostError: The link broke, or the follower is too slow.
        LimitExceededError: More rows of a table are evicted meanwhile than it has.
    """
    records = store.part(StoreRecords)
    stream = records.stream
    if attach is None:
        records.attach(follower)
    else:
        attach()
    room = TileRoom.create() if follower.link.shares_memory else None
    copied: set[int] = set()
    while new := [block for block in store.table.targets() if block.number not in copied]:
        for block in new:
            copied.add(block.number)
            if stream.claim(follower, block.number):
                copy_target(stream, block, store.table.held_of(block), follower, room)
                # Many small blocks are not to stand on the link in front of pushes.
                stream.wait_for(follower, follower.position - _MOST_AHEAD)
    stream.send(follower, CopyCompleted())
    stream.wait_for(follower, follower.position)


class ShareCopy:
    """The copy of a share to one follower, as the chief has ordered it.

    The caller holds the lock of the part.

    Args:
        part: Part of this ps in the share, whose replica has taken the order.
        order: The order.
        is_closed: Whether this ps makes no more links.
    """

    def __init__(self, part: SharePart, order: CopyTo, is_closed: Callable[[], bool]) -> None:
        self._part = part
        self._order = order
        self._is_closed = is_closed
        self._store, self._records = part.store, part.records
        self._follower: Follower | None = None

    def start(self, address: str, open_link: OpenLink) -> None:
        """Copy in a thread of its own. A copy that fails is given up: the chief orders it anew."""
        number, task = self._part.number, self._order.follower

        def copy() -> None:
            try:
                link = open_link(self._order, address, self._records.stream)
                self._follower = follower = Follower(task, link)
                copy_store(self._store, follower, lambda: self._attach(follower))
                self._count(follower)
            except (OSError, RopewalkError) as error:
                log.warning("share %d was not copied to %s: %s", number, task, error)
                self._give_up()

        def failed(error: BaseException) -> None:
            log.error("share %d was not copied to %s: %r", number, task, error)
            self._give_up()

        new_thread(f"copy-{task.short}", copy, failed=failed).start()

    def _attach(self, follower: Follower) -> None:
        """Begin to send records to a follower, if the chief has ordered nothing else meanwhile."""
        part = self._part
        with part.lock:
            self._check_current(self._is_current)
            self._records.attach(follower)
            if self._is_closed():  # it may have come too late to be removed with the others
                raise FencedError(f"{part.task} ends")

    def _count(self, follower: Follower) -> None:
        """Have answers wait for a follower from now on; the chief hears of it once it has all
        before.
        """
        part, stream = self._part, self._records.stream
        with part.lock:
            self._check_current(part.replica.copies_to == follower.task)
            part.replica = replica.copy_sent(part.replica)
            stream.need(part.replica.needs)
            position = follower.position
        stream.wait_for(follower, position)
        with part.lock:
            if follower.task in part.replica.needs:
                part.joined |= {follower.task}
        log.info("%s follows share %d", follower.task, part.number)
        part.changed()

    @property
    def _is_current(self) -> bool:
        now, order = self._part.replica, self._order
        return (now.copies_to, now.epoch) == (order.follower, order.epoch)

    def _check_current(self, is_current: bool) -> None:
        """Go on only with the order of the chief that is the last one. The caller locks."""
        if self._part.store is not self._store or not is_current:
            raise FencedError(f"the chief has changed who follows share {self._part.number}")

    def _give_up(self) -> None:
        part, follower = self._part, self._follower
        if follower is not None:
            follower.cancel()
        with part.lock:
            if part.store is self._store and self._is_current:
                part.replica = replica.copy_broken(part.replica)
            # One that is needed stays: the chief hears that it is lost.
            if follower is not None and not follower.is_needed:
                self._records.stream.remove(follower)
        part.changed()
