"""Reading the payload of a step from wherever it is, copying only where it must."""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ...core.errors import RefusedError
from ...core.process.waiting import wait_for_counter
from ...core.wire.steps import HEADER_BYTES
from ...net.connection import Connection, Lender
from ...net.shared_memory import APPLIED, FIRST_SEGMENT_BYTES, WRITTEN, SharedSegment

_PAGE_BYTES = 4096


def most_segment_bytes(max_step_bytes: int) -> int:
    """Compute the size of the largest segment that a worker may hand over. Unit: bytes."""
    # A worker's first segment is larger than it may need.
    return max(max_step_bytes, FIRST_SEGMENT_BYTES) + HEADER_BYTES + _PAGE_BYTES


class Payload(Protocol):
    """Hands out a payload part by part. Used by one thread.

    Attributes:
        segment: Shared memory that the parts are in, until the step is answered; None: they are
            in memory of this process.
    """

    segment: SharedSegment | None

    def take(self, count: int) -> memoryview:
        """Take the next ``count`` bytes, uint8; valid until the next call.

        Raises:
            RefusedError: So many are not left.
            OSError: The connection is broken.
        """
        ...

    def mark_applied(self) -> None:
        """Note that what was taken so far is applied; a worker that shares memory may read the
        values now.
        """
        ...

    def drain(self) -> None:
        """Read to the end, for a step that is refused.

        Raises:
            OSError: The connection is broken.
        """
        ...


class ConnectionPayload:
    """The payload behind a message.

    Args:
        connection: Connection whose last frame it belongs to.
        lend: Memory for large parts.
    """

    segment: SharedSegment | None = None

    def __init__(self, connection: Connection, lend: Lender) -> None:
        self._connection = connection
        self._lend = lend

    def take(self, count: int) -> memoryview:
        """Take the next bytes."""
        return self._connection.read(count, self._lend)

    def mark_applied(self) -> None:
        """Do nothing: this worker reads no values before the answer."""

    def drain(self) -> None:
        """Read to the end."""
        self._connection.skip()


class SegmentPayload:
    """A payload in the worker's shared segment, there as the worker writes it; none is copied.

    Args:
        segment: The worker's.
        total: Bytes the step announced.
        is_open: Whether the worker is still there.

    Raises:
        RefusedError: The segment is smaller.
    """

    def __init__(self, segment: SharedSegment, total: int, is_open: Callable[[], bool]) -> None:
        if HEADER_BYTES + total > segment.num_bytes:
            raise RefusedError(f"a payload of {total} bytes in a segment of {segment.num_bytes}")
        self.segment: SharedSegment | None = segment
        self._counters = segment.counters
        self._is_open = is_open
        self._taken = 0
        whole = segment.memory[HEADER_BYTES : HEADER_BYTES + total]
        self._left: memoryview = whole.data.toreadonly()

    def take(self, count: int) -> memoryview:
        """Take the next bytes, once they are there."""
        if count > len(self._left):
            raise RefusedError(f"{count} bytes of a payload that has {len(self._left)} left")
        part, self._left = self._left[:count], self._left[count:]
        self._taken += count
        if not wait_for_counter(self._counters, WRITTEN, self._taken, self._is_open):
            raise ConnectionError("the worker left while it wrote its push")
        return part

    def mark_applied(self) -> None:
        """Tell the worker, which reads values before the step is over."""
        self._counters[APPLIED] = self._taken

    def drain(self) -> None:
        """Do nothing: nothing is on its way but what the worker writes."""


class BufferPayload:
    """A payload in arrays of this process, one after another; a part inside one is not copied.

    Args:
        buffers: uint8 each.
    """

    segment: SharedSegment | None = None

    def __init__(self, buffers: Iterable[memoryview]) -> None:
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def take(self, count: int) -> memoryview:
        """Take the next bytes."""
        if not self._rest and count:
            self._rest = self._next()
        if count <= len(self._rest):
            part, self._rest = self._rest[:count], self._rest[count:]
            return part
        joined = np.empty(count, np.uint8).data
        filled = 0
        while filled < count:
            if not self._rest:
                self._rest = self._next()
            part = self._rest[: count - filled]
            joined[filled : filled + len(part)] = part
            filled += len(part)
            self._rest = self._rest[len(part) :]
        return joined

    def _next(self) -> memoryview:
        for buffer in self._buffers:
            if len(buffer):
                return buffer
        raise RefusedError("the payload has fewer bytes than its layout")

    def mark_applied(self) -> None:
        """Do nothing: the worker waits for the whole step."""

    def drain(self) -> None:
        """Do nothing: nothing is on its way."""
