"""A link of a ring between two processes of one machine: a segment of shared memory and a Unix socket.

The sender copies a payload into one of a few slots of its segment and says so in a frame on the socket; the
receiver works on the slot in place and gives it back with a byte. Few and small slots stay in the cache the
cores share, so that a chunk is copied and used without going through memory. Small payloads travel in the
frame itself.
"""

import contextlib
import os
import select
import socket
import struct
import time

import numpy as np

from .arrays import Array
from .errors import RefusedError
from .ring_frames import (
    HEAD_BYTES,
    NO_SLOT,
    PLACE_BYTES,
    Head,
    Place,
    unpack_head,
    unpack_place,
)
from .shared_memory import HEADER_BYTES, Segment, SegmentAddress

SLOT_BYTES = 256 * 1024
SLOTS = 4
_INLINE_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
_LOOK_S = 300e-6
_ADDRESS = struct.Struct("<QQQ16s")


class _Reader:
    """Reads from a socket with a timeout, looking a moment before it sleeps."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.buffer = b""

    def more(self, timeout_s: float) -> bool:
        """Read what has come into ``buffer``; False: the peer closed.

        Raises:
            TimeoutError: Nothing came.
        """
        until = time.perf_counter() + min(_LOOK_S, timeout_s)
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                pass
            if time.perf_counter() > until:
                if not select.select([self._socket], [], [], timeout_s)[0]:
                    raise TimeoutError
            else:
                os.sched_yield()
        self.buffer = self.buffer + data if self.buffer else data
        return bool(data)


class LocalSender:
    """The sending end.

    Args:
        connection: To the receiver; owned from now on.
        place: Whose link it is.
        timeout_s: For the receiver to open the segment.

    Raises:
        OSError: The connection broke, there is no memory to share, or the receiver cannot open it.
    """

    description = "shared memory"

    def __init__(self, connection: socket.socket, place: Place, timeout_s: float = 5.0) -> None:
        self._socket = connection
        self._segment = Segment.create(SLOTS * SLOT_BYTES)
        memory = self._segment.memory[HEADER_BYTES:]
        self._slots = [memory[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(SLOTS)]
        self._sent = 0
        self._returned = 0
        self._reader = _Reader(connection)
        address = self._segment.address
        connection.sendall(
            place.pack() + _ADDRESS.pack(address.pid, address.fd, address.num_bytes, address.word)
        )
        if not self._reader.more(timeout_s):
            raise ConnectionError("the receiver cannot open the segment")
        self._reader.buffer = b""

    def send(self, head: Head, payload: Array, timeout_s: float) -> None:
        """Send one frame."""
        if payload.size <= _INLINE_BYTES:
            self._socket.sendall(head.pack() + payload.tobytes())
            return
        if self._sent - self._returned >= SLOTS:
            self._collect(timeout_s)
        slot = self._sent % SLOTS
        np.copyto(self._slots[slot][: payload.size], payload)
        self._sent += 1
        self._socket.sendall(
            Head(
                head.sequence, head.elements, head.length, slot, head.kind, head.call, head.dtype
            ).pack()
        )

    def _collect(self, timeout_s: float) -> None:
        """Wait for a slot the receiver gives back."""
        if not self._reader.more(timeout_s):
            raise ConnectionError("the connection was closed")
        self._returned += len(self._reader.buffer)
        self._reader.buffer = b""

    def close(self) -> None:
        """Break the link."""
        _shut(self._socket)
        self._segment.close()


class LocalReceiver:
    """The receiving end.

    Args:
        connection: From the sender; owned from now on.

    Attributes:
        place: Whose link it is.

    Raises:
        RefusedError: The sender's segment cannot be opened.
        OSError: The connection broke, or the sender says nothing.
    """

    def __init__(self, connection: socket.socket, timeout_s: float = 5.0) -> None:
        self._socket = connection
        self._reader = _Reader(connection)
        while len(self._reader.buffer) < PLACE_BYTES + _ADDRESS.size:
            if not self._reader.more(timeout_s):
                raise RefusedError("the sender left before it began")
        self.place = unpack_place(self._reader.buffer[:PLACE_BYTES])
        pid, fd, num_bytes, word = _ADDRESS.unpack_from(self._reader.buffer, PLACE_BYTES)
        self._reader.buffer = self._reader.buffer[PLACE_BYTES + _ADDRESS.size :]
        self._segment = Segment.open(SegmentAddress(pid, fd, num_bytes, word))
        memory = self._segment.memory[HEADER_BYTES:]
        if memory.size < SLOTS * SLOT_BYTES:
            raise RefusedError("the segment is smaller than its slots")
        connection.sendall(b"\1")
        self._slots = [memory[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(SLOTS)]
        self._taken = False

    def receive(self, timeout_s: float) -> tuple[Head, Array] | None:
        """The next frame."""
        reader = self._reader
        while len(reader.buffer) < HEAD_BYTES:
            if not self._more(timeout_s):
                return None
        head = unpack_head(reader.buffer)
        if head.slot != NO_SLOT:
            if head.slot >= SLOTS or head.length > SLOT_BYTES:
                raise RefusedError(f"a frame names slot {head.slot} with {head.length} bytes")
            reader.buffer = reader.buffer[HEAD_BYTES:]
            self._taken = True
            return head, self._slots[head.slot][: head.length]
        if head.length > _READ_BYTES:
            raise RefusedError(f"a frame of {head.length} bytes is not in a slot")
        stop = HEAD_BYTES + head.length
        while len(reader.buffer) < stop:
            if not self._more(timeout_s):
                raise ConnectionError("the connection ended inside a frame")
        payload = np.frombuffer(reader.buffer, np.uint8, head.length, HEAD_BYTES)
        reader.buffer = reader.buffer[stop:]
        return head, payload

    def _more(self, timeout_s: float) -> bool:
        try:
            return self._reader.more(timeout_s)
        except ConnectionResetError:
            return False

    def release(self) -> None:
        """Give the slot back."""
        if self._taken:
            self._taken = False
            with contextlib.suppress(OSError):  # the next receive finds out
                self._socket.send(b"\0")

    def close(self) -> None:
        """Break the link."""
        _shut(self._socket)
        self._segment.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
