"""Frames of a link of a ring: what collective call they belong to, and which bytes they carry.

The head says enough for the receiver to notice that its neighbour is in another call.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from ..core.arrays import DTYPES, Array
from ..core.errors import RefusedError, WindlassError

_HEAD = struct.Struct("<QQIBBBx")
HEAD_BYTES = _HEAD.size
LENGTH = struct.Struct("<16xI")  # of the payload, in a packed head
MAX_PAYLOAD_BYTES = 1024 * 1024


class Kind(IntEnum):
    """What a frame is."""

    DATA = 0
    ABORT = 1  # the payload is an ErrorDetail: somebody is lost, pass it on
    BYE = 2  # the sender has left in order


class Call(IntEnum):
    """Which collective call."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    BROADCAST = 3
    REDUCE_SCATTER = 4
    BARRIER = 5


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a frame.

    Attributes:
        sequence: Number of the call in its ring, from 1 on.
        elements: Of the call's array; 0: they differ between workers.
        length: Bytes of this frame's payload.
        kind: What the frame is.
        call: Which call.
        dtype: Number of the dtype in ``DTYPES``.
    """

    sequence: int
    elements: int
    length: int
    kind: Kind
    call: Call
    dtype: int

    def pack(self) -> bytes:
        """As bytes."""
        return _HEAD.pack(
            self.sequence, self.elements, self.length, self.kind, self.call, self.dtype
        )

    @property
    def what(self) -> str:
        """For people: ``all_reduce of 1024 float32``."""
        return f"{self.call.name.lower()} of {self.elements} {DTYPES[self.dtype].name}"


@dataclass(frozen=True, slots=True)
class RingMember:
    """The sender of a link.

    Attributes:
        ring: Every strategy of a program has one: a number of its cluster and the order of
            creation.
        rank: Of the sender.
        size: Workers in the ring.
    """

    ring: int
    rank: int
    size: int


def unpack_head(data: bytes | bytearray | memoryview) -> Head:
    """The head in the first ``HEAD_BYTES`` of ``data``.

    Raises:
        RefusedError: It is none.
    """
    try:
        sequence, elements, length, kind, call, dtype = _HEAD.unpack_from(data)
        DTYPES[dtype]
        return Head(sequence, elements, length, Kind(kind), Call(call), dtype)
    except (struct.error, ValueError, IndexError) as error:
        raise RefusedError(f"what came round the ring is no frame: {error}") from error


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker's ring is.

    Attributes:
        calls: Collective calls begun.
        doing: The last of them.
        waiting: It is still in that one.
        failure: What broke the ring.
    """

    calls: int = 0
    doing: str = ""
    waiting: bool = False
    failure: WindlassError | None = None


def dtype_number(dtype: np.dtype[np.generic]) -> int:
    """The number heads have for a dtype.

    Raises:
        TypeError: Arrays of it cannot be sent.
    """
    try:
        return DTYPES.index(dtype)
    except ValueError:
        raise TypeError(f"arrays of {dtype} cannot be sent to other workers") from None


class Sender(Protocol):
    """The end of a link that sends. Used by one thread at a time, but for ``close``."""

    @property
    def description(self) -> str:
        """How bytes travel, for people."""
        ...

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame, its head packed; ``payload`` (flat bytes) may be changed after
        :meth:`flush`.

        Raises:
            TimeoutError: The receiver took nothing for so long; nothing was sent, it may be tried
                again.
            OSError: The link is broken.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, and payloads may be changed.

        Raises:
            TimeoutError: The receiver took nothing for so long; it may be tried again.
            OSError: The link is broken.
        """
        ...

    def close(self, linger_s: float = 1.0) -> None:
        """Break the link.

        What was sent arrives if it is read within ``linger_s``, or is in shared memory.
        """
        ...


class Receiver(Protocol):
    """The end of a link that receives. Used by one thread at a time, but for ``close``."""

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """The next frame: its packed head, and its payload as flat bytes, valid until
        :meth:`release`.

        None: the sender has closed the link.

        Raises:
            TimeoutError: Nothing came for so long; it may be tried again.
            OSError: The link is broken.
        """
        ...

    def release(self) -> None:
        """The last payload is not needed any more."""
        ...

    def close(self) -> None:
        """Break the link."""
        ...
