"""A new follower: everything that a store holds is copied to it while pushes go on."""

from collections.abc import Callable

from ..store import Store
from .copying import copy_target
from .follower import Follower
from .posting import StoreRecords
from .records import CopyCompleted
from .tile_room import TileRoom

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
