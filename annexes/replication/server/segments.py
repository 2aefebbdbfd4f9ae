"""Segments of workers that a leader hands on, so that its follower reads pushes where they are.

A worker has two where a ps may be followed, and writes a push over the one before the last as soon
as it has the last one's answer. That waits for the follower: so a follower may read a segment as
long as answers wait for it, and no longer.
"""

import weakref
from collections import deque
from collections.abc import Sequence

from ....core.arrays.dtypes import Array
from ....core.errors import RefusedError
from ....net.shared_memory import SharedSegment

_MAX_SEGMENTS = 8192  # a session has two at a time


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
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
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
        if len(self._segments) >= _MAX_SEGMENTS:
            raise RefusedError(f"a leader hands on more than {_MAX_SEGMENTS} segments")
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
