"""A link of a ring over a connection: between machines, or where memory cannot be shared."""

import time

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.errors import RefusedError
from ..net.connection import Connection
from ..net.stream import NEVER
from .ring_frames import MAX_PAYLOAD_BYTES


class StreamSender:
    """The sending end. See :class:`~ropewalk.collectives.ring_frames.Sender`.

    What the stream takes at once is sent by the caller, the rest by a thread, so that neighbours
    may both send before either receives.

    Args:
        connection: Connection to the receiver; owned from now on.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.description = connection.description

    @property
    def has_hung_up(self) -> bool:
        """Whether the receiver's process has ended."""
        return self._connection.has_hung_up

    is_stopped = False  # of a process of another machine that is not known

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame."""
        self._connection.post(head, payload, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent."""
        self._connection.flush(timeout_s)

    def close(self, linger_s: float = 1.0) -> None:
        """Break the link. What was sent arrives if it is read within ``linger_s``."""
        try:
            self._connection.flush(linger_s)
        except OSError:  # the other end has closed
            self._connection.cancel()
        self._connection.close()


class StreamReceiver:
    """The receiving end. See :class:`~ropewalk.collectives.ring_frames.Receiver`.

    Args:
        connection: Connection from the sender; owned from now on.
    """

    is_stopped = False  # as above

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer: Array = np.empty(0, np.uint8)
        self._head: bytes | None = None  # of a frame whose payload is not complete yet
        self._size = self._filled = 0

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """Receive the next frame. What came before a timeout is kept."""
        self._connection.deadline = time.monotonic() + timeout_s
        try:
            if self._head is None and not self._begin():
                return None
            target = self._buffer[: self._size].data
            while self._filled < self._size:
                self._filled += self._connection.read_some(target[self._filled :])
        finally:
            self._connection.deadline = NEVER
        head, self._head = self._head or b"", None
        return head, self._buffer[: self._size]

    def _begin(self) -> bool:
        message = self._connection.receive()
        if message is None:
            return False
        size = self._connection.unread_bytes
        if size > MAX_PAYLOAD_BYTES:
            raise RefusedError(
                f"{self._connection.peer} sent a frame of {size} bytes round the ring, "
                f"{MAX_PAYLOAD_BYTES} are the most"
            )
        if self._buffer.size < size:
            self._buffer = np.empty(MAX_PAYLOAD_BYTES, np.uint8)
        self._head, self._size, self._filled = bytes(message), size, 0
        return True

    def release(self) -> None:
        """Keep the buffer, which is used again for the next frame."""

    def close(self) -> None:
        """Break the link."""
        self._connection.cancel()
        self._connection.close()
