"""A new follower: everything that a store holds is copied to it while pushes go on."""

from ....core.errors import RefusedError
from ....core.task import TaskId
from ..store import Store
from .copying import copy_block
from .records import CopyCompleted
from .stream import Follower, FollowerLink


def copy_store(store: Store, task: TaskId, link: FollowerLink) -> Follower:
    """Copy all of a store to a follower, which has everything when this returns.

    Answers do not wait for it yet: see :meth:`RecordStream.need`.

    Raises:
        PeerLostError: The link broke, or the follower is too slow.
        RefusedError: The store has growing tables, which cannot be copied yet.
    """
    stream = store.records
    follower = Follower(task, link)
    store.attach(follower)
    if tables := store.table.tables():
        stream.detach(task)
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
    return follower
