"""A link of a ring between two processes of one machine: slots in shared memory.

The sender copies a payload into the next slot and moves a counter on; the receiver works on the
slot in place and moves another one. Both look at the other's counter for a moment before they
sleep, so that a chunk passes without a system call. Few and small chunks stay in the cache the
cores share: what is copied into a slot and used from it does not go through memory.

A Unix socket goes with the segment. A byte on it wakes who sleeps, and its end tells that the
process at the other one is gone. Counters rely on stores that become visible in their order, as a
segment does (see :func:`~ropewalk.net.shared_memory.unavailable`). A sleeper says so in a word of
the segment first; should the other end, which moves its counter and then looks, still miss that
word, the sleep is short.
"""

import contextlib
import os
import select
import time

from ...core.arrays.dtypes import Array
from ...core.errors import RefusedError
from ...core.process.waiting import spin_then_sleep
from ...core.wire.steps import HEADER_BYTES
from ...net.connection import Connection
from ...net.shared_memory import SharedSegment
from ...net.sockets import peer_process
from .stream_link import HEAD_BYTES, LENGTH, MAX_PAYLOAD_BYTES

SLOT_BYTES = MAX_PAYLOAD_BYTES  # what is not written to takes no memory
SLOTS = 4
_SPIN_S = 300e-6
_LOOKS = 16
_SLEEP_S = 0.02
_LINE = 64  # a cache line: what two processes write is never in the same one
_SENT, _RETURNED, _RECEIVER_SLEEPS, _SENDER_SLEEPS = (8 * i for i in range(4))  # words, of 8 bytes
_HEADS = HEADER_BYTES + 4 * _LINE
_SLOTS = _HEADS + SLOTS * _LINE
LINK_BYTES = _SLOTS - HEADER_BYTES + SLOTS * SLOT_BYTES


class _End:
    """The part that both ends have: the segment's parts, and waiting for the other one's
    counter.
    """

    def __init__(self, connection: Connection, segment: SharedSegment) -> None:
        self._stream = connection.stream
        self._connection = connection
        memory = memoryview(segment.memory.data)
        self._words = memory[HEADER_BYTES:_HEADS].cast("Q")
        self._heads = [memory[start : start + HEAD_BYTES] for start in range(_HEADS, _SLOTS, _LINE)]
        self._slots = [
            segment.memory[_SLOTS + i * SLOT_BYTES : _SLOTS + (i + 1) * SLOT_BYTES]
            for i in range(SLOTS)
        ]

    def _wait(self, counter: int, last: int, flag: int, timeout_s: float) -> bool:
        """Wait until a counter is not ``last`` any more. False: the other end is closed, and it
        still is.

        Raises:
            TimeoutError: It did not move.
        """
        words = self._words

        def attempt() -> bool | None:
            return True if words[counter] != last else None

        def sleep(left: float) -> None:
            words[flag] = 1
            try:
                # A system call: the flag is visible before the counter is looked at.
                os.sched_yield()
                if words[counter] == last and not self._sleep(min(left, _SLEEP_S)):
                    raise _ClosedError
            finally:
                words[flag] = 0

        try:
            return spin_then_sleep(
                attempt, sleep, timeout_s=timeout_s, spin_s=_SPIN_S, looks=_LOOKS
            )
        except _ClosedError:
            return bool(words[counter] != last)

    def _sleep(self, timeout_s: float) -> bool:
        """Sleep until the other end wakes this one; False: it is closed."""
        number = self._stream.fileno()
        if number < 0:
            raise ConnectionError("the link is closed")
        poll = select.poll()
        poll.register(number, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return True
        try:
            return bool(self._stream.receive(time.monotonic()))
        except TimeoutError:
            return True
        except OSError:  # it was closed with bytes of ours unread
            return False

    def _move(self, counter: int, value: int, flag: int) -> None:
        """Move a counter on, and wake the other end if it sleeps."""
        self._words[counter] = value
        if self._words[flag]:
            # Full, and there are bytes to wake it already; or broken, and the next wait finds out.
            with contextlib.suppress(OSError):
                self._stream.send_now([b"\0"])

    @property
    def has_hung_up(self) -> bool:
        """Whether the other end's process has ended."""
        return self._connection.has_hung_up

    @property
    def is_stopped(self) -> bool:
        """Whether a signal keeps the other end's process from running."""
        # Imported late: asked of a worker that does not answer, which is rare.
        from ...core.process.processes import is_stopped

        number = self._stream.fileno()
        return number >= 0 and is_stopped(peer_process(number))

    def flush(self, timeout_s: float) -> None:
        """Return at once: what was sent is in the segment."""

    def close(self, linger_s: float = 0.0) -> None:
        """Break the link. What was sent stays in the receiver's memory."""
        del linger_s
        self._connection.close()


class SlotSender(_End):
    """The sending end. See :class:`~ropewalk.annexes.ring.stream_link.Sender`.

    Args:
        connection: Connection to the receiver, over a Unix socket; owned from now on.
        segment: Handed over to the receiver; of ``LINK_BYTES``.
    """

    description = "shm"

    def __init__(self, connection: Connection, segment: SharedSegment) -> None:
        super().__init__(connection, segment)
        self._sent = 0

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


class SlotReceiver(_End):
    """The receiving end. See :class:`~ropewalk.annexes.ring.stream_link.Receiver`.

    Args:
        connection: Connection from the sender, over a Unix socket; owned from now on.
        segment: The sender's.

    Raises:
        RefusedError: The segment is too small.
    """

    def __init__(self, connection: Connection, segment: SharedSegment) -> None:
        if segment.num_bytes < HEADER_BYTES + LINK_BYTES:
            raise RefusedError(
                f"a segment of {segment.num_bytes} bytes has no room for {SLOTS} slots of "
                f"{SLOT_BYTES}"
            )
        super().__init__(connection, segment)
        self._taken = 0

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """Receive the next frame."""
        taken = self._taken
        if self._words[_SENT] == taken and not self._wait(
            _SENT, taken, _RECEIVER_SLEEPS, timeout_s
        ):
            return None
        slot = taken % SLOTS
        head = bytes(self._heads[slot])
        (length,) = LENGTH.unpack_from(head)
        if length > SLOT_BYTES:
            raise RefusedError(f"a frame of {length} bytes in a slot of {SLOT_BYTES}")
        return head, self._slots[slot][:length]

    def release(self) -> None:
        """Give the slot back."""
        self._taken += 1
        self._move(_RETURNED, self._taken, _SENDER_SLEEPS)


class _ClosedError(Exception):
    """The other end is closed."""
