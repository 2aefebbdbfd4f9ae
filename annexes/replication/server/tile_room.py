"""Shared memory in which a leader leaves tiles for a follower on the same machine.

A tile on a link takes as long as the follower needs to read it, and the follower may have a push to
run first, all of which would be time under a block's lock. A copy in shared memory takes a fraction
of a millisecond per MiB.
"""

import logging
from dataclasses import replace

from ....core.wire.memory import HEADER_BYTES
from ....net.shared_memory import SharedSegment
from .records import CopiedTile

log = logging.getLogger(__name__)

MOST_TILE = 4 * 1024 * 1024  # bytes
TILES_AHEAD = 2  # pushes wait behind them, on the link


class TileRoom:
    """Room for the tiles that are on their way. Used by one thread, which waits for the follower.

    Args:
        segments: Segments, one for each tile.
    """

    def __init__(self, segments: list[SharedSegment]) -> None:
        self._segments = segments
        for segment in segments:  # before a lock is taken: page faults must not make pushes wait
            segment.memory[HEADER_BYTES:] = 0

    @classmethod
    def create(cls) -> "TileRoom | None":
        """Create room; None: the machine has no memory to share."""
        try:
            return cls([SharedSegment.create(MOST_TILE) for _ in range(TILES_AHEAD)])
        except OSError as error:
            log.warning("no shared memory: %s; tiles go through the link", error)
            return None

    def take(self, tile: CopiedTile) -> CopiedTile:
        """Copy a tile, in place of the one before the last; returns the tile itself if it is larger
        than usual.
        """
        segment = self._segments.pop(0)
        self._segments.append(segment)
        arrays = {"": tile.value, **tile.slots}
        if sum(array.nbytes for array in arrays.values()) > segment.num_bytes - HEADER_BYTES:
            return tile
        stop = HEADER_BYTES
        for name, array in arrays.items():
            start, stop = stop, stop + array.nbytes
            arrays[name] = segment.memory[start:stop].view(array.dtype)
            arrays[name][:] = array
        return replace(tile, value=arrays.pop(""), slots=arrays, segment=segment)
