"""Frames of a ring's links, and a link over a connection.

A frame has a head that names the collective call, and a payload. By the head a receiver notices
that its neighbour is in another call.
"""

import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from ...core.arrays.dtypes import DTYPES, Array
from ...core.errors import RefusedError, RopewalkError
from ...net.connection import Connection
from ...net.stream import NEVER

# -- Frames ------------------------------------------------------------------------------------

_HEAD = struct.Struct("<QQIBBBx")
HEAD_BYTES = _HEAD.size
LENGTH = struct.Struct("<16xI")  # of the payload, in a packed head
MAX_PAYLOAD_BYTES = 1024 * 1024


class RingFrameKind(IntEnum):
    """The kind of a frame."""

    DATA = 0
    ABORT = 1  # the ring is broken; the payload is an ErrorDetail, to be passed on
    BYE = 2  # the sender closed its ring


class Call(IntEnum):
    """The kind of a collective call."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    BROADCAST = 3
    BARRIER = 5


class Head(NamedTuple):
    """The head of a frame.

    Attributes:
        sequence: Number of the call in its ring, from 1 on.
        elements: Size of the call's array; 0: it differs between workers.
        length: Bytes of this frame's payload.
        kind: Kind of the frame.
        call: Kind of the call.
        dtype: Number of the dtype in ``DTYPES``.
    """

    sequence: int
    elements: int
    length: int
    kind: RingFrameKind
    call: Call
    dtype: int

    def pack(self) -> bytes:
        """Pack the head as bytes."""
        return _HEAD.pack(*self)

    @property
    def what(self) -> str:
        """Description for people: ``all_reduce of 1024 float32``."""
        return f"{self.call.name.lower()} of {self.elements} {DTYPES[self.dtype].name}"


class RingMember(NamedTuple):
    """The sender of a link.

    Attributes:
        ring: Number of the ring, from its cluster and the order of creation; one per strategy.
        rank: Rank of the sender.
        size: Number of workers.
    """

    ring: int
    rank: int
    size: int


def unpack_head(data: bytes | bytearray | memoryview) -> Head:
    """Unpack the head in the first ``HEAD_BYTES`` of ``data``.

    Raises:
        RefusedError: It is not a head.
    """
    try:
        sequence, elements, length, kind, call, dtype = _HEAD.unpack_from(data)
        DTYPES[dtype]
        return Head(sequence, elements, length, RingFrameKind(kind), Call(call), dtype)
    except (struct.error, ValueError, IndexError) as error:
        raise RefusedError(f"bytes from the ring are not a frame: {error}") from error


@dataclass(frozen=True, slots=True)
class RingProgress:
    """A worker's progress in its ring.

    Attributes:
        calls: Collective calls begun.
        doing: The latest one.
        waiting: Whether it is still in progress.
        failure: Failure that broke the ring.
    """

    calls: int = 0
    doing: str = ""
    waiting: bool = False
    failure: RopewalkError | None = None


def dtype_number(dtype: np.dtype[np.generic]) -> int:
    """Return the number of a dtype in heads.

    Raises:
        TypeError: The dtype cannot be sent.
    """
    try:
        return DTYPES.index(dtype)
    except ValueError:
        raise TypeError(f"arrays of {dtype} cannot be sent to other workers") from None


class Sender(Protocol):
    """The sending end of a link. Used by one thread at a time, except ``close``."""

    @property
    def description(self) -> str:
        """The link's kind, for people."""
        ...

    @property
    def has_hung_up(self) -> bool:
        """Whether the receiver's process has ended, as far as that can be known by now."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether a signal keeps the receiver's process from running; False if that is not known
        here.
        """
        ...

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame, its head packed; ``payload`` (flat bytes) may be changed after
        :meth:`flush`.

        Raises:
            TimeoutError: The receiver is busy. Nothing was sent; try again.
            OSError: The link is broken.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent and payloads may be changed.

        Raises:
            TimeoutError: The receiver is busy; try again.
            OSError: The link is broken.
        """
        ...

    def close(self, linger_s: float = 1.0) -> None:
        """Close the link.

        What was sent arrives if it is in shared memory or read in ``linger_s``.
        """
        ...


class Receiver(Protocol):
    """The receiving end of a link. Used by one thread at a time, except ``close``."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal keeps the sender's process from running; False if that is not known
        here.
        """
        ...

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """Receive the next frame: its packed head, and its payload as flat bytes, valid until
        :meth:`release`.

        None: the sender has closed the link.

        Raises:
            TimeoutError: Nothing arrived in time; try again.
            OSError: The link is broken.
        """
        ...

    def release(self) -> None:
        """Release the last payload, which is not needed any more."""
        ...

    def close(self) -> None:
        """Break the link."""
        ...


# -- A link over a connection: between machines, or where memory cannot be shared ---------------


class StreamSender:
    """The sending end. See :class:`~ropewalk.annexes.ring.stream_link.Sender`.

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
    """The receiving end. See :class:`~ropewalk.annexes.ring.stream_link.Receiver`.

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
