"""A link of a ring between two processes of one machine: slots in a segment of shared memory.

The sender copies a payload into the next slot and moves a counter on; the receiver works on the slot in place
and moves another one. Both look at the other's counter for a moment before they sleep, so that a chunk passes
without a system call. Few and small chunks stay in the cache the cores share: what is copied into a slot and
used from it does not go through memory.

A Unix socket goes with the segment. A byte on it wakes who sleeps, and its end tells that the process at the
other one is gone. Counters rely on stores that become visible in their order, as a segment does (see
:func:`shared_memory.unavailable`). A sleeper says so in a word of the segment first; should the other end,
which moves its counter and then looks, still miss that word, the sleep is short.
"""

import contextlib
import os
import select
import socket
import struct
import time

from ..core.arrays import Array
from ..core.errors import RefusedError
from ..core.steps import SegmentAddress
from ..net.shared_memory import HEADER_BYTES, SharedSegment
from .ring_frames import HEAD_BYTES, LENGTH, PLACE_BYTES, Place, unpack_place

SLOT_BYTES = 1024 * 1024  # the most; what is not written to takes no memory
SLOTS = 4
_LOOK_S = 300e-6
_LOOKS = 16  # in a row, then others may run
_SLEEP_S = 0.02
_LINE = 64  # a cache line: what two processes write is never in the same one
_SENT, _RETURNED, _RECEIVER_SLEEPS, _SENDER_SLEEPS = (8 * i for i in range(4))  # words, of 8 bytes
_HEADS = HEADER_BYTES + 4 * _LINE
_SLOTS = _HEADS + SLOTS * _LINE
_LINK_BYTES = _SLOTS - HEADER_BYTES + SLOTS * SLOT_BYTES
_ADDRESS = struct.Struct("<QQQ16s")


class _End:
    """What both ends have: the segment's parts, and waiting for the other one's counter."""

    def __init__(self, connection: socket.socket, segment: SharedSegment) -> None:
        self._socket = connection
        self._segment = segment
        memory = memoryview(segment.memory.data)
        self._words = memory[HEADER_BYTES:_HEADS].cast("Q")
        self._heads = [memory[start : start + HEAD_BYTES] for start in range(_HEADS, _SLOTS, _LINE)]
        self._slots = [
            segment.memory[_SLOTS + i * SLOT_BYTES : _SLOTS + (i + 1) * SLOT_BYTES]
            for i in range(SLOTS)
        ]

    def _wait(self, counter: int, known: int, flag: int, timeout_s: float) -> bool:
        """Wait until a counter is not ``known`` any more. False: the other end is closed, and it still is.

        Raises:
            TimeoutError: It did not move.
        """
        words = self._words
        began = time.perf_counter()
        while time.perf_counter() - began < _LOOK_S:
            for _ in range(_LOOKS):
                if words[counter] != known:
                    return True
            os.sched_yield()
        while words[counter] == known:
            left = timeout_s - (time.perf_counter() - began)
            if left <= 0:
                raise TimeoutError
            words[flag] = 1
            try:
                os.sched_yield()  # a system call: the flag is visible before the counter is looked at
                if words[counter] == known and not self._sleep(min(left, _SLEEP_S)):
                    return words[counter] != known
            finally:
                words[flag] = 0
        return True

    def _sleep(self, timeout_s: float) -> bool:
        """Sleep until the other end wakes this one; False: it is closed."""
        try:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return True
        except ValueError as error:  # the descriptor of a closed socket
            raise ConnectionError("the link is closed") from error
        try:
            return bool(self._socket.recv(_LINE, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:  # it was closed with bytes of ours unread
            return False

    def _move(self, counter: int, value: int, flag: int) -> None:
        """Move a counter on, and wake the other end if it sleeps."""
        self._words[counter] = value
        if self._words[flag]:
            # Full, and there are bytes to wake it already; or broken, and the next wait finds out.
            with contextlib.suppress(OSError):
                self._socket.send(b"\0", socket.MSG_DONTWAIT)

    def close(self, linger_s: float = 0.0) -> None:
        """Break the link. What was sent stays in the receiver's memory."""
        del linger_s
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._segment.close()


class LocalSender(_End):
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
        super().__init__(connection, SharedSegment.create(_LINK_BYTES))
        self._sent = 0
        address = self._segment.address
        connection.sendall(
            place.pack() + _ADDRESS.pack(address.pid, address.fd, address.num_bytes, address.word)
        )
        connection.settimeout(timeout_s)
        if not connection.recv(1):
            raise ConnectionError("the receiver cannot open the segment")
        connection.settimeout(None)

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame."""
        sent = self._sent
        returned = self._words[_RETURNED]
        if sent - returned >= SLOTS and not self._wait(
            _RETURNED, returned, _SENDER_SLEEPS, timeout_s
        ):
            raise ConnectionError("the connection was closed")
        slot = sent % SLOTS
        self._heads[slot][:] = head
        if payload.size:
            self._slots[slot][: payload.size] = payload
        self._sent = sent + 1
        self._move(_SENT, sent + 1, _RECEIVER_SLEEPS)


class LocalReceiver(_End):
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
        connection.settimeout(timeout_s)
        hello = b""
        while len(hello) < PLACE_BYTES + _ADDRESS.size:
            data = connection.recv(PLACE_BYTES + _ADDRESS.size - len(hello))
            if not data:
                raise RefusedError("the sender left before it began")
            hello += data
        self.place = unpack_place(hello[:PLACE_BYTES])
        pid, fd, num_bytes, word = _ADDRESS.unpack_from(hello, PLACE_BYTES)
        segment = SharedSegment.open(SegmentAddress(pid, fd, num_bytes, word))
        if segment.memory.size < HEADER_BYTES + _LINK_BYTES:
            segment.close()
            raise RefusedError("the segment is smaller than its slots")
        super().__init__(connection, segment)
        connection.sendall(b"\1")
        connection.settimeout(None)
        self._taken = 0

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """The next frame."""
        taken = self._taken
        if self._words[_SENT] == taken and not self._wait(
            _SENT, taken, _RECEIVER_SLEEPS, timeout_s
        ):
            return None
        slot = taken % SLOTS
        head = bytes(self._heads[slot])
        (length,) = LENGTH.unpack_from(head)
        if length > SLOT_BYTES:
            raise RefusedError(f"a frame names {length} bytes, in a slot of {SLOT_BYTES}")
        return head, self._slots[slot][:length]

    def release(self) -> None:
        """Give the slot back."""
        self._taken += 1
        self._move(_RETURNED, self._taken, _SENDER_SLEEPS)
