"""Reading the payload of a step from wherever it is, copying only where it must."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ...core.arrays import Array
from ...core.errors import RefusedError
from ...net.frame_socket import FrameSocket
from ...net.shared_memory import APPLIED, HEADER_BYTES, WRITTEN, SharedSegment, wait_for


class PayloadReader(Protocol):
    """Hands out a payload piece by piece."""

    @property
    def torn(self) -> bool:
        """Whether nobody knows any more where the next step begins."""
        ...

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes; valid until the next call.

        Raises:
            RefusedError: So many are not left.
            OSError: The connection is broken.
        """
        ...

    def applied(self) -> None:
        """What was taken so far is in the values it is for; whoever pulls may want to know."""
        ...

    def drain(self) -> None:
        """Read to the end of the payload, for a step that is refused."""
        ...


class FramesReader:
    """Hands out the next n bytes; a piece inside one frame is not copied.

    Args:
        first: Payload that came with the step's header.
        total: Bytes the header announced.
        more: Returns the next frame's bytes; raises when the stream ends.
    """

    def __init__(
        self, first: bytes | memoryview, total: int, more: Callable[[], bytes | memoryview]
    ) -> None:
        self._frame = memoryview(first)
        self._more = more
        self._left = total - len(first)
        self.torn = False  # a frame did not fit: nobody knows where the next step begins
        self._staging = memoryview(b"")
        if self._left < 0:
            raise RefusedError(f"a frame of {len(first)} bytes in a payload of {total}")

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes; valid until the next call."""
        if count <= len(self._frame):
            piece, self._frame = self._frame[:count], self._frame[count:]
            return piece
        if len(self._staging) < count:
            self._staging = np.empty(count, np.uint8).data
        filled = 0
        while filled < count:
            if not self._frame:
                self._next_frame()
            part = self._frame[: count - filled]
            self._staging[filled : filled + len(part)] = part
            filled += len(part)
            self._frame = self._frame[len(part) :]
        return self._staging[:count]

    def applied(self) -> None:
        """Nobody asks."""

    def drain(self) -> None:
        """Read to the end of the payload, for a step that is refused."""
        self._frame = memoryview(b"")
        while self._left > 0:
            self._next_frame()
        self._frame = memoryview(b"")

    def _next_frame(self) -> None:
        data = self._more() if self._left > 0 else b""
        if not data or len(data) > self._left:
            self.torn = True
            raise RefusedError(
                f"a frame of {len(data)} bytes where {self._left} bytes of the payload were left"
            )
        self._left -= len(data)
        self._frame = memoryview(data)


class SocketReader:
    """Hands out what follows a message on a socket.

    Args:
        frames: The connection.
        total: Bytes the step announced.
        memory: Lends at least so many bytes, where large pieces are put.
    """

    torn = False

    def __init__(self, frames: FrameSocket, total: int, memory: Callable[[int], Array]) -> None:
        if frames.unread_bytes != total:
            raise RefusedError(f"{frames.unread_bytes} bytes follow a step of {total}")
        self._frames = frames
        self._memory = memory

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        return self._frames.read(count, self._memory)

    def applied(self) -> None:
        """Nobody asks."""

    def drain(self) -> None:
        """Read to the end of the payload."""
        self._frames.skip()


class SegmentReader:
    """Hands out the next n bytes of a payload in shared memory, once they are there; nothing is copied.

    Args:
        segment: The worker's.
        total: Bytes the step announced.
        is_open: Whether the worker is still there.
    """

    torn = False

    def __init__(self, segment: SharedSegment, total: int, is_open: Callable[[], bool]) -> None:
        if HEADER_BYTES + total > segment.num_bytes:
            raise RefusedError(f"a payload of {total} bytes in a segment of {segment.num_bytes}")
        self._counters = segment.counters
        self._is_open = is_open
        self._taken = 0
        self._left: memoryview = segment.memory[
            HEADER_BYTES : HEADER_BYTES + total
        ].data.toreadonly()

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        if count > len(self._left):
            raise RefusedError(f"{count} bytes of a payload that has {len(self._left)} left")
        piece, self._left = self._left[:count], self._left[count:]
        self._taken += count
        if not wait_for(self._counters, WRITTEN, self._taken, self._is_open):
            raise ConnectionError("the worker left while it wrote its push")
        return piece

    def applied(self) -> None:
        """Tell the worker, which reads values before the step is over."""
        self._counters[APPLIED] = self._taken

    def drain(self) -> None:
        """Nothing is under way but what the worker writes."""
