"""Copying a growing table to a follower while pushes go on.

Eviction looks at all rows, so records cannot run on part of a table as they do on part of an array.
The table is copied in passes instead: one of all rows, then of the rows that changed since the pass
before began, until few are left; these are copied at one moment, with what the table remembers
beside its rows, and from there on the follower gets records.

A pass leaves out rows that have changed since it began, which come with the next one. So the rows
that are at the follower during a pass were all at the leader when it began, and there is room for
them. A pass begins anew if it is no longer known what changed; after some passes the rest is copied
at one moment, however much it is.
"""

import sys
from collections.abc import Sequence

import numpy as np

from ....core.arrays.dtypes import Array
from ....engine.keyed.block import KeyedBlock
from ....engine.keyed.tiles import Tile
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import LOCKED_BYTES
from ....server.ps.first_values import Held
from .follower import Follower
from .records import RowsCopied, TableCopied, TableCopyBegun
from .stream import RecordStream

_TILES_AHEAD = 2  # pushes wait behind them, on the link
_FEW_BYTES = 4 * 1024 * 1024  # copied under the lock at the end
_NO_KEYS = np.empty(0, np.int64)
_MOST_PASSES = 8


def copy_table(
    stream: RecordStream,
    block: KeyedBlock,
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

    def __init__(self, stream: RecordStream, block: KeyedBlock, follower: Follower) -> None:
        self._stream = stream
        self._block = block
        self._follower = follower
        self._sent: list[int] = []
        row = sum(column[:1].nbytes for column in block.table.columns.values())
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
            places = block.table.places
        for start in range(0, places, self._rows):
            stop = min(start + self._rows, places)
            if not position:  # of later passes few rows are copied
                block.fetch_copied(range(start, stop))
            with block.lock:
                if not block.knows(mark):
                    return mark, sys.maxsize
                rows = mark.changes.since(position, start, stop, before=mark.position)
                tile = block.table.copy(rows)
            if tile.keys.size or removed.size or anew:
                num_bytes += self._send(tile, removed, anew=anew)
                removed, anew = _NO_KEYS, False
        return mark, num_bytes

    def rest(self, since: ChangeMark | None) -> None:
        """Copy what has changed since a pass began, and what is not in rows; records follow."""
        table, block = self._block.table, self._block
        position, removed, anew = self._known(since)
        for start in range(0, table.places, self._rows):
            rows = np.arange(start, min(start + self._rows, table.places))
            if since is not None and position:
                rows = since.changes.since(position, start, start + rows.size)
            tile = table.copy(rows)
            if tile.keys.size or removed.size or anew:
                self._send(tile, removed, waits=False, anew=anew)
                removed, anew = _NO_KEYS, False
        copied = TableCopied(
            block=block.number,
            state=table.state(),
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

    def _send(self, tile: Tile, removed: Array, *, waits: bool = True, anew: bool = False) -> int:
        if waits and len(self._sent) >= _TILES_AHEAD:
            self._stream.wait_for(self._follower, self._sent.pop(0))
        columns = tile.columns
        record = RowsCopied(self._block.number, columns, removed, anew)
        self._stream.send(self._follower, record)
        self._sent.append(self._follower.position)
        num_bytes = sum(column.nbytes for column in columns.values())
        self._follower.copied_bytes += num_bytes
        return num_bytes
