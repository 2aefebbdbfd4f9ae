"""A connection: frames over a byte stream, for sessions and for links between workers.

A frame is a message and the payload behind it, both unchanged, with their lengths in front
(little-endian uint32 and uint64). Arrays go from and to the stream directly: nothing is encoded.
"""

import select
import struct
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.arrays.gather_buffer import copy_into
from ..core.errors import LimitExceededError, RefusedError
from .stream import NEVER, READ_BYTES, Buffer, ByteStream, Outbox

_LENGTHS = struct.Struct("<IQ")
HEAD_BYTES = _LENGTHS.size
MAGIC = b"RPWK"
"""The first bytes of a connection of ours, on a port that has others, too."""

_JOIN_BYTES = 1024 * 1024  # small parts are joined up to this
_WAITING_FRAMES = 4
_LEAST_RATE = 4 * 1024 * 1024  # bytes a second of a peer that has a deadline for each frame

Lender = Callable[[int], Array]
"""``lend(n)``: at least n bytes of memory, until the next call."""


def frame_lengths(head: bytes) -> tuple[int, int]:
    """Read the lengths of a frame's message and payload, in bytes, from its first bytes."""
    length, payload_bytes = _LENGTHS.unpack_from(head)
    return length, payload_bytes


def temporary(num_bytes: int) -> Array:
    """Allocate fresh memory."""
    return np.empty(num_bytes, np.uint8)


def frame_of(message: bytes) -> bytes:
    """Make a frame without a payload."""
    return _LENGTHS.pack(len(message), 0) + message


class Connection:
    """Sends and receives frames. One thread may send while another receives; ``cancel`` is for any.

    Args:
        stream: Owned from now on.
        max_message_bytes: A peer that announces a longer message is refused, before memory is
            allocated.
        peer: Name of the peer, for messages.
        received: Bytes that were read from the stream already.

    Attributes:
        deadline: Time at which sending and receiving raise TimeoutError, on the clock of
            ``time.monotonic``.
        receive_deadline: Deadline of receiving alone, for one thread that receives while another
            sends; None: ``deadline``.
        frame_s: Longest time that a peer that is served may take to send the rest of a frame, and
            to take its answer, beside a second for each 4 MiB of them; between frames it may take
            its time. None: ``deadline`` is for the caller to set. Unit: seconds.
        unread_bytes: Number of bytes of the last frame's payload that are still to be read.
    """

    def __init__(
        self,
        stream: ByteStream,
        max_message_bytes: int,
        peer: str = "the peer",
        received: bytes = b"",
    ) -> None:
        self.stream = stream
        self.max_message_bytes = max_message_bytes
        self.peer = peer
        self.deadline = NEVER
        self.receive_deadline: float | None = None
        self.frame_s: float | None = None
        self.unread_bytes = 0
        self._outbox = Outbox(stream, _WAITING_FRAMES)
        self._cancelled = False
        self._torn = False  # a frame was begun, and its rest will not be sent
        self._buffer: Buffer = received
        self._at = 0

    @property
    def description(self) -> str:
        """Name of the transport, for messages."""
        return self.stream.description

    @property
    def has_hung_up(self) -> bool:
        """Whether the other end sends nothing any more, as of a process that has ended. Nothing is
        read; False also where the stream cannot tell.
        """
        number = self.stream.fileno()
        if number < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLRDHUP)
        return bool(poll.poll(0))

    # -- sending -----------------------------------------------------------------------------

    def send(
        self, messages: Sequence[bytes], parts: Iterable[memoryview] = (), payload_bytes: int = 0
    ) -> None:
        """Send a frame for each message, the last one with a payload.

        Raises:
            OSError: The connection is broken.
            TimeoutError: The deadline passed.
        """
        self._await_outbox()
        self._send(messages, parts, payload_bytes)

    def send_in_background(
        self, messages: Sequence[bytes], parts: Iterable[memoryview], payload_bytes: int
    ) -> None:
        """Send frames from a thread, so that the answer can be received meanwhile.

        The parts must stay as they are until the answer has come. A failure breaks the connection.
        """
        self._outbox.put(lambda: self._send(messages, parts, payload_bytes))

    def send_with_descriptor(self, message: bytes, descriptor: int) -> None:
        """Send a frame and an open file with it; the stream must pass files.

        Raises:
            OSError: The connection is broken.
            TimeoutError: The deadline passed.
        """
        self._await_outbox()
        head = _LENGTHS.pack(len(message), 0)
        self.stream.send_with_descriptor(head + message, descriptor, self.deadline)

    def post(self, message: bytes, payload: Array, timeout_s: float) -> None:
        """Send a frame, and from a thread what the stream does not take at once: see :meth:`flush`.

        Args:
            message: The frame's.
            payload: uint8, flat. Must not change until :meth:`flush` returns.
            timeout_s: Time to wait for room. Unit: seconds.

        Raises:
            TimeoutError: There was no room; nothing was sent, and the call may be repeated.
            OSError: The connection is broken.
        """
        if self._torn:
            raise ConnectionError("a frame was interrupted while it was sent")
        head = _LENGTHS.pack(len(message), payload.size) + message
        buffers: list[Buffer] = [head, payload.data] if payload.size else [head]
        if self._outbox.is_idle:
            self._torn = True
            sent = self.stream.send_now(buffers)
            if sent < len(head) + payload.size:
                self._outbox.put(lambda: self._send_rest(buffers, sent))
            self._torn = False
            return
        self._outbox.put(lambda: self._send_rest(buffers, 0), timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything posted is sent, so that payloads may change.

        Raises:
            TimeoutError: It is not within ``timeout_s``. Unit: seconds.
            OSError: The connection is broken.
        """
        self._outbox.flush(timeout_s)

    def _await_outbox(self) -> None:
        left = None if self.deadline == NEVER else max(0.0, self.deadline - time.monotonic())
        self._outbox.flush(left)

    def _send(
        self, messages: Sequence[bytes], parts: Iterable[memoryview], payload_bytes: int
    ) -> None:
        *before, last = messages
        writer = FrameWriter(self, last, payload_bytes, before=before)
        for part in parts:
            writer.write(part)
        writer.finish()

    def _send_rest(self, buffers: Sequence[Buffer], sent: int) -> None:
        for buffer in buffers:
            if sent < len(buffer):
                self.stream.send(memoryview(buffer)[sent:], NEVER)
            sent = max(0, sent - len(buffer))

    def frame(self, message: bytes, payload_bytes: int, lend: Lender) -> "FrameWriter":
        """Begin a frame whose payload is written part by part.

        Args:
            message: The frame's.
            payload_bytes: Total size of the parts.
            lend: Memory for parts that change before they are sent.
        """
        return FrameWriter(self, message, payload_bytes, lend)

    def write(self, piece: Buffer) -> None:
        """Send a piece of a frame."""
        self.stream.send(piece, self.deadline)

    # -- receiving ---------------------------------------------------------------------------

    def receive(self) -> memoryview | None:
        """Receive the next message; None when the peer closed the connection between two frames.

        After a timeout the call may be repeated, except for a message over 64 KiB.

        Raises:
            OSError: The connection is broken, or ended inside a frame.
            LimitExceededError: The message is longer than allowed.
            RefusedError: The last payload was not read.
            TimeoutError: The deadline passed.
        """
        if self._cancelled:  # not even what had arrived before
            raise ConnectionError("cancelled")
        if self.unread_bytes:
            raise RefusedError(f"{self.unread_bytes} unread payload bytes from the previous frame")
        if self.frame_s is not None:
            self.deadline = NEVER
        if not self._fill_buffer(_LENGTHS.size):
            return None
        length, payload_bytes = _LENGTHS.unpack_from(self._buffer, self._at)
        if length > self.max_message_bytes:
            raise LimitExceededError(
                f"{self.peer} announces a message of {length} bytes, more than "
                f"max_message_bytes={self.max_message_bytes}; raise ROPEWALK_MAX_MESSAGE_BYTES "
                "here, or look whether it is another program",
                limit="max_message_bytes",
            )
        self.hurry(length + payload_bytes)
        if length <= READ_BYTES:
            self._fill_buffer(_LENGTHS.size + length)  # a timeout loses nothing
            self._at += _LENGTHS.size
            message = self._take(length)
        else:
            self._at += _LENGTHS.size
            message = memoryview(bytearray(length))
            self._fill(message)
        self.unread_bytes = payload_bytes
        return message

    def read(self, count: int, lend: Lender) -> memoryview:
        """Read the next ``count`` bytes of the payload, uint8; valid until the next call.

        Args:
            count: Unit: bytes.
            lend: Memory, if there are many bytes.

        Raises:
            OSError: The connection is broken.
            RefusedError: The payload has fewer.
        """
        if count <= max(READ_BYTES, len(self._buffer) - self._at):
            self._count_read(count)
            return self._take(count)
        target = lend(count)[:count].data
        self.read_into(target)
        return target

    def read_into(self, target: memoryview) -> None:
        """Read the next bytes of the payload, as many as ``target`` has.

        Raises:
            OSError: The connection is broken.
            RefusedError: The payload has fewer.
        """
        self._count_read(len(target))
        self._fill(target)

    def read_some(self, target: memoryview) -> int:
        """Read the next bytes of the payload, at least one and as many as have come.

        Returns:
            Number of bytes that were read. A timeout loses no bytes.

        Raises:
            OSError: The connection is broken.
            RefusedError: The payload is at its end.
        """
        target = target[: self.unread_bytes]
        if not len(target):
            raise RefusedError("the payload is at its end")
        count = min(len(self._buffer) - self._at, len(target))
        if count:
            target[:count] = memoryview(self._buffer)[self._at : self._at + count]
            self._at += count
        else:
            count = self.stream.receive_into(target, self.deadline)
            if not count:
                raise ConnectionError("the connection ended inside a frame")
        self.unread_bytes -= count
        return count

    def skip(self) -> None:
        """Discard the rest of the payload."""
        while self.unread_bytes:
            count = min(self.unread_bytes, READ_BYTES)
            self._count_read(count)
            self._take(count)

    @property
    def has_begun_another(self) -> bool:
        """Whether the beginning of another frame has been received already."""
        return self._at < len(self._buffer)

    def is_silent(self) -> bool:
        """Return whether nothing has come, neither bytes nor an end; False if that is not known."""
        return self._at >= len(self._buffer) and self.stream.is_silent()

    # -- ending ------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Make running and later calls fail. From any thread."""
        self._cancelled = True
        self.stream.cancel()

    def close(self) -> None:
        """Close it. What was sent still arrives; what waits to be sent does not."""
        if not self._outbox.is_idle:
            self.stream.cancel()
        self._outbox.close()
        self.stream.close()

    # -- bytes -------------------------------------------------------------------------------

    def hurry(self, num_bytes: int) -> None:
        """Have so many bytes come or go in a time that fits them: see :attr:`frame_s`."""
        if self.frame_s is not None:
            self.deadline = time.monotonic() + self.frame_s + num_bytes / _LEAST_RATE

    def _count_read(self, count: int) -> None:
        if count > self.unread_bytes:
            raise RefusedError(f"{count} bytes of a payload that has {self.unread_bytes} left")
        self.unread_bytes -= count

    def _take(self, count: int) -> memoryview:
        """Take the next bytes, which fit into the buffer."""
        if count and not self._fill_buffer(count):
            raise ConnectionError("the connection ended inside a frame")
        start, self._at = self._at, self._at + count
        return memoryview(self._buffer)[start : self._at]

    def _fill_buffer(self, count: int) -> bool:
        """Have ``count`` bytes in the buffer; False: the stream ended where a frame may begin."""
        late = self.receive_deadline
        while len(self._buffer) - self._at < count:
            more = self.stream.receive(self.deadline if late is None else late)
            if not more:
                if self._at < len(self._buffer):
                    raise ConnectionError("the connection ended inside a frame")
                return False
            rest = bytes(memoryview(self._buffer)[self._at :])
            self._buffer, self._at = rest + more if rest else more, 0
        return True

    def _fill(self, target: memoryview) -> None:
        start = memoryview(self._buffer)[self._at : self._at + len(target)]
        filled = len(start)
        self._at += filled
        target[:filled] = start
        while filled < len(target):
            count = self.stream.receive_into(target[filled:], self.deadline)
            if not count:
                raise ConnectionError("the connection ended inside a frame")
            filled += count


class FrameWriter:
    """A frame that is written part by part: small parts are joined, large ones go alone.

    Args:
        connection: Sends it.
        message: The frame's.
        payload_bytes: Total size of the parts.
        lend: Memory for :meth:`copy`.
        before: Messages of frames without a payload that go first.
    """

    def __init__(
        self,
        connection: Connection,
        message: bytes,
        payload_bytes: int,
        lend: Lender = temporary,
        *,
        before: Sequence[bytes] = (),
    ) -> None:
        self._connection = connection
        self._small: list[Buffer] = [_LENGTHS.pack(len(each), 0) + each for each in before]
        self._small.append(_LENGTHS.pack(len(message), payload_bytes) + message)
        self._size = 0
        self._lend = lend
        connection.hurry(payload_bytes)

    def copy(self, values: Array) -> Buffer:
        """Copy some values; the copy is valid until the next one: pass it to :meth:`write`
        before.
        """
        if values.nbytes < READ_BYTES:
            return values.tobytes()
        own = self._lend(values.nbytes)[: values.nbytes]
        copy_into(own, values.reshape(-1).view(np.uint8))
        return own.data

    def write(self, part: Buffer) -> None:
        """Send the next part; a small one may be kept until :meth:`finish`, and must not change."""
        if len(part) < READ_BYTES:
            self._small.append(part)
            self._size += len(part)
            if self._size >= _JOIN_BYTES:
                self.finish()
            return
        self.finish()
        self._connection.write(part)

    def finish(self) -> None:
        """Send the parts that were kept."""
        if self._small:
            self._connection.write(b"".join(self._small))
            self._small, self._size = [], 0
