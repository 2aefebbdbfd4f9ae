"""Copying a growing table to a follower while pushes go on.

Eviction looks at all rows, so records cannot run on part of a table as they do on part of an array.
The table is copied in passes instead: one of all rows, then of the rows that changed since the pass
before began, until few are left; these are copied at one moment, with what the table remembers
beside its rows, and from there on the follower gets records.

A pass leaves out rows that have changed since it began, which come with the next one. So the rows
that are at the follower during a pass were all at the leader when it began, and there is room for
them. If more rows are evicted during a pass than the table remembers, it is copied at one moment.
"""

from collections.abc import Sequence

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.errors import LimitExceededError
from ....engine.keyed.block import KeyedBlock
from ....engine.keyed.tiles import Tile
from ..first_values import Held
from .follower import Follower
from .records import RowsCopied, TableCopied, TableCopyBegun
from .stream import RecordStream

_TILE_BYTES = 512 * 1024  # copied under a table's lock: 0.1 ms
_TILES_AHEAD = 2  # pushes wait behind them, on the link
_FEW_BYTES = 4 * 1024 * 1024  # copied under the lock at the end
_NO_KEYS = np.empty(0, np.int64)
_MOST_PASSES = 8  # then the rest is copied, however much it is


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
    since, most = 0, _MOST_PASSES
    try:
        while True:
            since, num_bytes = copy.one_pass(since)
            most -= 1
            if num_bytes <= _FEW_BYTES or not most:
                break
        with block.lock:
            copy.rest(since, block.table.removed_since(since))
    except LimitExceededError:  # more rows are evicted during a pass than are remembered
        with block.lock:
            copy.rest(0, _NO_KEYS, anew=True)
    finally:
        with block.lock:
            block.table.end_marks()


class _Copy:
    def __init__(self, stream: RecordStream, block: KeyedBlock, follower: Follower) -> None:
        self._stream = stream
        self._block = block
        self._follower = follower
        self._sent: list[int] = []
        row = sum(column[:1].nbytes for column in block.table.columns.values())
        self._rows = max(1, _TILE_BYTES // max(1, row))

    def one_pass(self, since: int) -> tuple[int, int]:
        """Copy rows that changed since the pass before began.

        Returns:
            (the mark at which this one began, how many bytes were copied)
        """
        table, num_bytes, cursor = self._block.table, 0, 0
        with self._block.lock:
            removed = table.removed_since(since) if since else _NO_KEYS
            mark = table.mark()
        while cursor >= 0:
            if not since:  # of later passes few rows are copied
                self._block.fetch_copied(range(cursor, min(cursor + self._rows, table.places)))
            with self._block.lock:
                tile, cursor = table.copy(cursor, self._rows, since, before=mark)
            if tile.keys.size or removed.size:
                num_bytes += self._send(tile, removed)
                removed = _NO_KEYS
        return mark, num_bytes

    def rest(self, since: int, removed: Array, *, anew: bool = False) -> None:
        """Copy what has changed since a pass began, and what is not in rows; records follow."""
        table, block = self._block.table, self._block
        for tile in table.tiles(self._rows, since):
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
