"""Copying blocks to a follower while pushes go on.

A block is copied in tiles, each under the block's lock for a moment. Of updates that come after the
copy of a block has begun the follower gets what changes the elements that it has: the others come
with their tiles, with the update in them. So nothing is kept for later, and no version of anything
is compared. Tiles become larger while the link is fast, since the follower runs the pushes that
came between two of them. To a follower on the same machine tiles go through shared memory: under
the lock they are copied, and nothing waits until the follower has read them.

What cannot be cut is one tile: small shards that share a block, and rules without kernels, which
look at whole shards.
"""

import time
from collections.abc import Sequence

from ....core.rules.update_rules import UpdateRule
from ....engine.block import Block
from ....engine.push_target import PushTarget
from ....server.ps.block_reader import LOCKED_BYTES
from ....server.ps.first_values import Held
from .follower import Follower
from .records import BlockCopyBegun, CopiedTile
from .stream import RecordStream
from .tile_room import MOST_TILE, TILES_AHEAD, TileRoom

_LEAST_TILE = LOCKED_BYTES
_QUICK_S, _SLOW_S = 0.002, 0.005  # to send a tile, which is done under the block's lock


def copy_target(
    stream: RecordStream,
    block: PushTarget,
    held: Sequence[Held],
    follower: Follower,
    room: TileRoom | None = None,
) -> None:
    """Copy arrays or a part of a table to a follower; see :func:`copy_block`."""
    if isinstance(block, Block):
        copy_block(stream, block, held, follower, room)
        return
    from ....engine.keyed.block import KeyedBlock  # a ps without tables never loads it
    from .table_copying import copy_table

    if isinstance(block, KeyedBlock):
        copy_table(stream, block, held, follower)


def copy_block(
    stream: RecordStream,
    block: Block,
    held: Sequence[Held],
    follower: Follower,
    room: TileRoom | None = None,
) -> None:
    """Copy one block to a follower.

    Args:
        stream: Record stream of the store.
        block: The block to copy.
        held: Shards of the block, in order.
        follower: The follower that gets it.
        room: Shared memory for tiles on their way; None: the link carries them.

    Raises:
        PeerLostError: The link broke, or the follower is too slow.
    """
    size, is_one_shard = block.value.size, len(block.shards) == 1
    with block.lock:
        stream.send(follower, _begun(block, held))
        if is_one_shard:
            follower.copied[block.number] = 0
        begun = follower.position
    stream.wait_for(follower, begun)  # making room for it takes longer than a lock may be held
    stop, num_bytes, sent = 0, _LEAST_TILE, list[int]()
    while not sent or stop < size:
        if len(sent) >= TILES_AHEAD:
            stream.wait_for(follower, sent.pop(0))
        with block.lock:
            began = time.monotonic()
            is_cut = is_one_shard and all(map(has_kernel, block.rules))
            start, stop = stop, min(size, stop + _elements(block, num_bytes)) if is_cut else size
            _send_tile(stream, follower, block, slice(start, stop), room)
            if is_one_shard:
                follower.copied[block.number] = stop
            num_bytes = next_tile(num_bytes, time.monotonic() - began)
            sent.append(follower.position)
    follower.copied.pop(block.number, None)


def next_tile(num_bytes: int, took_s: float) -> int:
    """Choose the size of the next tile, after one that was sent. Pure.

    Args:
        num_bytes: Size of the last tile.
        took_s: Time that sending it took. Unit: seconds.
    """
    if took_s > _SLOW_S:
        return max(_LEAST_TILE, num_bytes // 2)
    return min(MOST_TILE, num_bytes * 2) if took_s < _QUICK_S else num_bytes


def post_tiles(stream: RecordStream, block: Block, entry: int) -> None:
    """Send one shard's value and slots to all followers. The caller holds the block's lock."""
    where = block.range_of(entry)
    start, step = where.start, _elements(block, _LEAST_TILE)
    while start < where.stop:
        stop = min(where.stop, start + step)
        part = slice(start, stop)
        slots = {name: slot[part] for name, slot in block.slots.items()}
        stream.post(CopiedTile(block.number, start, stop, block.value[part], slots))
        start = stop


def _begun(block: Block, held: Sequence[Held]) -> BlockCopyBegun:
    sources = [each.restored_from for each in held]
    return BlockCopyBegun(
        block=block.number,
        shards=tuple(block.shards),
        defined_by=tuple(each.defined_by for each in held),
        bound_by=tuple(each.bound_by for each in held),
        rules=tuple(block.rules),
        slots=tuple(block.slots),
        restored_from=tuple(source.path if source is not None else "" for source in sources),
        versions=tuple(block.versions.tolist()),
        updates=tuple(block.updates.tolist()),
        initialized=tuple(block.initialized.tolist()),
        applied=dict(block.applied),
        closures=block.closures.copy(),
    )


def _send_tile(
    stream: RecordStream, follower: Follower, block: Block, part: slice, room: TileRoom | None
) -> None:
    value, slots = block.value[part], {name: slot[part] for name, slot in block.slots.items()}
    tile = CopiedTile(block.number, part.start, part.stop, value, slots)
    stream.send(follower, tile if room is None else room.take(tile))
    follower.copied_bytes += value.nbytes + sum(slot.nbytes for slot in slots.values())


def _elements(block: Block, num_bytes: int) -> int:
    """Count the elements of whole rows that take about so many bytes, slots included."""
    width = max(1, block.value.size // max(1, block.shards[0].rows))
    per_element = block.value.itemsize + len(block.slots) * block.compute_dtype.itemsize
    return max(1, num_bytes // (width * per_element)) * width


def has_kernel(rule: UpdateRule | None) -> bool:
    """Return whether a rule leaves the same bits on every processor."""
    return rule is None or bool(rule.kernels)
