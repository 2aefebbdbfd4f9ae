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

import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.rules.update_rules import UpdateRule
from ....engine.block import Block
from ....engine.push_target import PushTarget, RowsByKey
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import LOCKED_BYTES
from ....server.ps.new_blocks import Held
from .follower import MOST_TILE, TILES_AHEAD, Follower, TileRoom
from .records import BlockCopyBegun, CopiedTile, RowsCopied, TableCopied, TableCopyBegun
from .stream import RecordStream

# -- Copying a growing table to a follower while pushes go on ----------------------------------
# Eviction looks at all rows, so records cannot run on part of a table as they do on part of an
# array. The table is copied in passes instead: one of all rows, then of the rows that changed
# since the pass before began, until few are left; these are copied at one moment, with what the
# table remembers beside its rows, and from there on the follower gets records.
#
# A pass leaves out rows that have changed since it began, which come with the next one. So the
# rows that are at the follower during a pass were all at the leader when it began, and there is
# room for them. A pass begins anew if it is no longer known what changed; after some passes the
# rest is copied at one moment, however much it is.


_TILES_AHEAD = 2  # pushes wait behind them, on the link
_FEW_BYTES = 4 * 1024 * 1024  # copied under the lock at the end
_NO_KEYS = np.empty(0, np.int64)
_MOST_PASSES = 8


def copy_table(
    stream: RecordStream,
    block: RowsByKey,
    held: Sequence[Held],
    follower: Follower,
) -> None:
    """Copy one part of a table to a follower.

    Args:
        stream: Record stream of the store.
        block: The part.
        held: Shard of the table.
        follower: The follower that gets it.

    Raises:
        PeerLostError: The link broke, or the follower is too slow.
    """
    copy = _Copy(stream, block, follower)
    stream.send(follower, TableCopyBegun(block.number, block.shards[0], held[0].defined_by))
    since: ChangeMark | None = None
    try:
        for _ in range(_MOST_PASSES):
            since, num_bytes = copy.one_pass(since)
            if num_bytes <= _FEW_BYTES:
                break
        with block.lock:
            copy.rest(since)
    finally:
        with block.lock:
            block.unfollow(copy)


class _Copy:
    """A copy of a table on its way, for which changes of rows are noted."""

    def __init__(self, stream: RecordStream, block: RowsByKey, follower: Follower) -> None:
        self._stream = stream
        self._block = block
        self._follower = follower
        self._sent: list[int] = []
        row = sum(column[:1].nbytes for column in block.columns.values())
        self._rows = max(1, LOCKED_BYTES // max(1, row))

    def one_pass(self, since: ChangeMark | None) -> tuple[ChangeMark, int]:
        """Copy rows that changed since the pass before began; None: all rows.

        Returns:
            (the mark at which this one began, how many bytes were copied)
        """
        block, num_bytes = self._block, 0
        with block.lock:
            position, removed, anew = self._known(since)
            mark = block.mark(0, self)
            mark.changes.remember_removed(block.shards[0].rows)
            places = block.places(0)
        for start in range(0, places, self._rows):
            stop = min(start + self._rows, places)
            if not position:  # of later passes few rows are copied
                block.fetch_copied(range(start, stop))
            with block.lock:
                if not block.knows(mark):
                    return mark, sys.maxsize
                rows = mark.changes.since(position, start, stop, before=mark.position)
                tile = block.copied_rows(rows)
            if tile["keys"].size or removed.size or anew:
                num_bytes += self._send(tile, removed, anew=anew)
                removed, anew = _NO_KEYS, False
        return mark, num_bytes

    def rest(self, since: ChangeMark | None) -> None:
        """Copy what has changed since a pass began, and what is not in rows; records follow."""
        block = self._block
        position, removed, anew = self._known(since)
        for start in range(0, block.places(0), self._rows):
            rows = np.arange(start, min(start + self._rows, block.places(0)))
            if since is not None and position:
                rows = since.changes.since(position, start, start + rows.size)
            tile = block.copied_rows(rows)
            if tile["keys"].size or removed.size or anew:
                self._send(tile, removed, waits=False, anew=anew)
                removed, anew = _NO_KEYS, False
        copied = TableCopied(
            block=block.number,
            state=block.state(),
            version=int(block.versions[0]),
            updates=int(block.updates[0]),
            applied=dict(block.applied),
            closures=block.closures.copy(),
        )
        self._stream.send(self._follower, copied)

    def _known(self, since: ChangeMark | None) -> tuple[int, Array, bool]:
        """Look up what is known since a mark. The caller locks the block.

        Returns:
            (position from which on rows are copied, keys that went, whether to begin anew)
        """
        if since is None:
            return 0, _NO_KEYS, False
        if not self._block.knows(since):
            return 0, _NO_KEYS, True
        return (
            since.position,
            np.concatenate([_NO_KEYS, *since.changes.removed_parts(since.position)]),
            False,
        )

    def _send(
        self,
        columns: Mapping[str, Array],
        removed: Array,
        *,
        waits: bool = True,
        anew: bool = False,
    ) -> int:
        if waits and len(self._sent) >= _TILES_AHEAD:
            self._stream.wait_for(self._follower, self._sent.pop(0))
        record = RowsCopied(self._block.number, columns, removed, anew)
        self._stream.send(self._follower, record)
        self._sent.append(self._follower.position)
        num_bytes = sum(column.nbytes for column in columns.values())
        self._follower.copied_bytes += num_bytes
        return num_bytes


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
    if isinstance(block, RowsByKey):
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
