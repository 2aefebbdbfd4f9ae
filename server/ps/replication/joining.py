"""A new follower: everything that a store holds is copied to it while pushes go on."""

from collections.abc import Callable

from ....core.errors import RefusedError
from ..store import Store
from .copying import copy_block
from .records import CopyCompleted
from .stream import Follower


def copy_store(store: Store, follower: Follower, attach: Callable[[], None] | None = None) -> None:
    """Copy all of a store to a follower, which has everything when this returns.

    Answers do not wait for it yet: see :meth:`RecordStream.need`.

    Args:
        store: The leader's.
        follower: It has nothing yet.
        attach: Attaches it to the store, or raises; None: nobody else attaches followers.

    Raises:
        PeerLostError: The link broke, or the follower is too slow.
        RefusedError: The store has growing tables, which cannot be copied yet.
    """
    stream, task = store.records, follower.task
    if attach is None:
        store.attach(follower)
    else:
        attach()
    if tables := store.table.tables():
        stream.remove(follower)
        raise RefusedError(
            f"{store.task} has {len(tables)} growing tables, from {tables[0].shards[0].label!r} "
            f"on, and {task} cannot follow it: tables cannot be copied yet",
            task=store.task,
        )
    copied: set[int] = set()
    while new := [block for block in store.table.blocks() if block.number not in copied]:
        for block in new:
            copied.add(block.number)
            if stream.claim(follower, block.number):
                copy_block(stream, block, store.table.held_of(block), follower)
    stream.send(follower, CopyCompleted())
    stream.wait_for(follower, follower.position)
