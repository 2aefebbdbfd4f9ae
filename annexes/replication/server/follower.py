"""A follower of a stream of records, its link, and the memory that both ends share."""

import logging
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ....cluster.replication.replica import may_answer
from ....core.arrays.dtypes import Array
from ....core.errors import RefusedError, RopewalkError
from ....core.task import TaskId
from ....core.wire.steps import HEADER_BYTES
from ....net.shared_memory import SharedSegment
from .records import (
    BLOCK_RECORDS,
    BlockCopyBegun,
    BlockUpdated,
    CopiedTile,
    Record,
    TableCopied,
    before,
    completion_of,
)

log = logging.getLogger(__name__)

# -- Segments of workers that a leader hands on: its follower reads pushes where they are -------
# A worker has two where a ps may be followed, and writes a push over the one before the last as
# soon as it has the last one's answer. That waits for the follower: so a follower may read a
# segment as long as answers wait for it, and no longer.


class SegmentsSent:
    """Numbers of the segments that a link has handed on. One thread at a time calls it."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[SharedSegment, int] = weakref.WeakKeyDictionary()
        self._last = 0
        # Appended to by whichever thread drops the last reference to a segment.
        self._gone: deque[int] = deque()

    def number_of(self, segment: SharedSegment) -> int:
        """Find the segment's number; 0: the follower does not have it."""
        return self._numbers.get(segment, 0)

    def add(self, segment: SharedSegment) -> int:
        """Give a number to a segment that is handed on now."""
        self._last += 1
        self._numbers[segment] = self._last
        weakref.finalize(segment, self._gone.append, self._last).atexit = False
        return self._last

    def take_gone(self) -> list[int]:
        """Take the numbers of segments that no session has any more, each once."""
        return [self._gone.popleft() for _ in range(len(self._gone))]


class SegmentsReceived:
    """The segments that a leader has handed on, at the follower. Used by one thread.

    Args:
        most_bytes: Size of the largest. Unit: bytes.
        most: Most at once; a session has two at a time.
    """

    def __init__(self, most_bytes: int, most: int = 8192) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._segments: dict[int, SharedSegment] = {}

    def take(self, number: int, descriptor: int, num_bytes: int) -> None:
        """Map a segment.

        Args:
            number: The leader's number for it.
            descriptor: The received file; owned from now on.
            num_bytes: Size of the segment. Unit: bytes.

        Raises:
            RefusedError: It cannot be mapped, or there are too many.
        """
        segment = SharedSegment.receive(
            descriptor, num_bytes, most=self._most_bytes, writable=False
        )
        segment.close()  # the mapping stays
        if len(self._segments) >= self._most:
            raise RefusedError(f"a leader hands on more than {self._most} segments")
        self._segments[number] = segment

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget segments."""
        for number in numbers:
            self._segments.pop(number, None)

    def part(self, number: int, offset: int, num_bytes: int) -> Array:
        """View bytes of a segment, uint8.

        Raises:
            RefusedError: There is no such segment, or it is smaller.
        """
        segment = self._segments.get(number)
        if segment is None:
            raise RefusedError(f"segment {number} was not handed on over this link")
        if offset + num_bytes > segment.num_bytes:
            raise RefusedError(
                f"bytes {offset} to {offset + num_bytes} of a segment of {segment.num_bytes}"
            )
        return segment.memory[offset : offset + num_bytes]


# -- Shared memory in which a leader leaves tiles for a follower on the same machine -----------
# A tile on a link takes as long as the follower needs to read it, and the follower may have a push
# to run first, all of which would be time under a block's lock. A copy in shared memory takes a
# fraction of a millisecond per MiB.

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


# -- Followers and links -------------------------------------------------------------------------


class FollowerLink(Protocol):
    """Carries records to one follower. One thread at a time sends, and one reads."""

    @property
    def shares_memory(self) -> bool:
        """Whether records may refer to segments, which are handed on."""
        ...

    def send(self, position: int, record: Record) -> None:
        """Send a record, and be done with its arrays.

        Raises:
            OSError: The link broke.
            RopewalkError: The same, in our words.
        """
        ...

    def read(self, timeout_s: float) -> None:
        """Wait for acknowledgements, and tell the stream: them, or that the link broke.

        Args:
            timeout_s: Return after this if none has come. Unit: seconds.
        """
        ...

    def cancel(self) -> None:
        """Make running and later calls fail. From any thread."""
        ...

    def close(self) -> None:
        """Close it, when no call runs any more."""
        ...

    def lead_in(self, epoch: int) -> None:
        """Send later records as those of this epoch."""
        ...


class Follower:
    """A follower of a stream.

    Args:
        task: The ps.
        link: Connection to it.

    Attributes:
        link: Connection to the follower.
        position: Position of the last record that was sent to it.
        acknowledged: The last position that it has acknowledged.
        blocks: Numbers of the blocks whose copy has begun, and of the tables whose copy has ended;
            it gets all records of these.
        claimed: Numbers of the blocks whose copy a thread has taken on or finished.
        copied: Number of elements that it has of each block that is being copied; changed under the
            block's lock. It gets no updates of the others: their tiles have them.
        is_needed: Whether answers wait for it.
        borrowed: Position of the last record that refers to a worker's segment.
        granted_until: Time until which it makes no other ps lead: see ``replica.GRANT_S``.
        checked: The record whose acknowledgement extends that, and when it was sent.
        copied_bytes: Bytes of values and slots that were copied to it.
        broken: Why nothing can be sent to it any more.
        is_read: Whether a thread waits for its acknowledgements.
        has_ended: Whether all that it said has been read, to the end of the link.
        is_removed: Whether nothing is sent to it any more; its link is closed when no thread reads.
    """

    def __init__(self, task: TaskId, link: FollowerLink) -> None:
        self.task = task
        self.position = 0
        self.acknowledged = 0
        self.blocks: set[int] = set()
        self.claimed: set[int] = set()
        self.copied: dict[int, int] = {}
        self.is_needed = False
        self.borrowed = 0
        self.granted_until = 0.0  # by the clock of time.monotonic
        self.checked: tuple[int, float] | None = None  # position, and when it was sent
        self.copied_bytes = 0
        self.broken: BaseException | None = None
        self.is_read = False
        self.has_ended = False
        self.is_removed = False
        self.link = link

    @property
    def may_be_read(self) -> bool:
        """Whether it may have said something, and no thread reads."""
        return not (self.is_read or self.has_ended or self.is_removed)

    @property
    def num_ahead(self) -> int:
        """Records that it has not acknowledged."""
        return self.position - self.acknowledged

    def holds_up(self, position: int) -> bool:
        """Return whether an answer waits for it: one that is not needed has to have read what the
        worker may write over then, if nothing more.

        Args:
            position: Position of the last record that the answer is about.
        """
        if not self.is_needed:
            position = min(position, self.borrowed) if self.broken is None else 0
        return not may_answer(position, (self.acknowledged,))

    def cancel(self) -> None:
        """Break the link. From any thread."""
        self.link.cancel()

    def lead_in(self, epoch: int) -> None:
        """Send later records in this epoch."""
        self.link.lead_in(epoch)

    def send(self, record: Record) -> None:
        """Send a record, if it is for this follower. The caller holds the stream's lock."""
        if isinstance(record, (BlockCopyBegun, TableCopied)):
            self.blocks.add(record.block)
        elif isinstance(record, BLOCK_RECORDS) and record.block not in self.blocks:
            completion = completion_of(record)
            if completion is None:
                return
            record = completion  # the rest comes with the block's copy
        self.position += 1  # also of what it will never get: no answer may leave that out
        if self.broken is not None:
            return
        if isinstance(record, BlockUpdated):
            if record.block in self.copied:
                record = before(record, self.copied[record.block])
            if record.segment is not None:
                self.borrowed = self.position
        try:
            self.link.send(self.position, record)
        except (OSError, RopewalkError) as error:
            self.broken = error
