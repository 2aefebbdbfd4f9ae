"""Frames over a connected socket: what carries a session, but for the gRPC stream it begins on.

A frame is a message and the payload behind it, both as they are, with their lengths in front (little-endian
uint32 and uint64). A message on a gRPC stream costs 0.14 ms and two threads on either side, and each byte
of a payload two copies more than here, where arrays go from and to the kernel directly.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import numpy as np

from ..core.arrays import Array
from ..core.copying import copy_into
from ..core.errors import RefusedError

_LENGTHS = struct.Struct("<IQ")
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s
_READ_BYTES = 64 * 1024
_LOOK_S = 200e-6
_SHORT_S = 500e-6
# On loopback 1 MiB out and 256 KiB in at a time moved 1.6 times as much as calls without a limit: the kernel
# works off what has arrived between two calls.
_OUT_BYTES = 1024 * 1024
_IN_BYTES = 256 * 1024

# A machine that vanished is noticed within 25 s. Not TCP_USER_TIMEOUT, which ends connections to a peer that
# lives and does not read: a worker may compute for minutes before it reads what it asked for.
_TCP_OPTIONS = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def frame_head(message: bytes, payload_bytes: int = 0) -> bytes:
    """A frame up to its payload."""
    return _LENGTHS.pack(len(message), payload_bytes) + message


class SocketWriter:
    """The bytes of one frame, in pieces to be written: small parts of the payload together, large ones alone.

    Args:
        message: The frame's.
        payload_bytes: What the parts will add up to.
        memory: Where large parts are copied; used again for the next part. None: parts do not change before
            they are written, and nothing is copied.
    """

    def __init__(
        self, message: bytes, payload_bytes: int, memory: Callable[[int], Array] | None = None
    ) -> None:
        self._small: list[bytes | memoryview] = [frame_head(message, payload_bytes)]
        self._size = 0
        self._memory = memory

    def add(self, part: memoryview) -> Iterator[bytes | memoryview]:
        """Take the next part; gives what is to be written before the next call."""
        if len(part) < _READ_BYTES:
            self._small.append(bytes(part) if self._memory is not None else part)
            self._size += len(part)
            if self._size >= _OUT_BYTES:
                yield from self.finish()
            return
        yield from self.finish()
        if self._memory is None:
            yield part
            return
        own = self._memory(len(part))[: len(part)]
        copy_into(own, np.frombuffer(part, np.uint8))
        yield own.data

    def finish(self) -> Iterator[bytes | memoryview]:
        """What is left."""
        if self._small:
            yield b"".join(self._small)
            self._small, self._size = [], 0


class FrameSocket:
    """Sends and receives frames. One thread may write while another reads; :meth:`cancel` is for any.

    Args:
        connection: A connected stream socket; owned from now on.
        max_message_bytes: A peer that announces a longer message is refused, before memory is taken.
    """

    def __init__(self, connection: socket.socket, max_message_bytes: int) -> None:
        self._socket = connection
        self.max_message_bytes = max_message_bytes
        self._buffer, self._at = b"", 0
        self._cancelled = False
        self._waited_s = 0.0
        self.unread_bytes = 0
        """Of the payload of the frame received last."""

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes of a frame.

        Raises:
            OSError: The connection is broken.
        """
        if len(data) <= _OUT_BYTES:
            self._socket.sendall(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), _OUT_BYTES):
            self._socket.sendall(view[start : start + _OUT_BYTES])

    def receive(self) -> memoryview | None:
        """The next message; None when the peer closed the connection between two frames.

        Raises:
            OSError: The connection is broken, or ended inside a frame.
            RefusedError: A message is over the limit, or nobody read the last payload.
        """
        if self._cancelled:  # what had arrived before is not wanted any more
            raise ConnectionError("cancelled")
        if self.unread_bytes:
            raise RefusedError(f"{self.unread_bytes} bytes came that no message speaks of")
        if not self._buffered(_LENGTHS.size):
            return None
        length, payload_bytes = _LENGTHS.unpack_from(self._buffer, self._at)
        if length > self.max_message_bytes:
            raise RefusedError(
                f"a message of {length} bytes is over the limit {self.max_message_bytes}"
            )
        self._at += _LENGTHS.size
        if length <= _READ_BYTES:
            message = self._take(length)
        else:
            message = memoryview(bytearray(length))
            self._fill(message)
        self.unread_bytes = payload_bytes
        return message

    def read(self, count: int, memory: Callable[[int], Array]) -> memoryview:
        """The next ``count`` bytes of the payload; valid until the next call.

        Args:
            count: Bytes.
            memory: Where many are put.

        Raises:
            OSError: The connection is broken.
            RefusedError: The payload has fewer.
        """
        if count <= _READ_BYTES:
            self._count_read(count)
            return self._take(count)
        view = memory(count)[:count].data
        self.read_into(view)
        return view

    def read_into(self, target: memoryview) -> None:
        """The next bytes of the payload, as many as ``target`` has.

        Raises:
            OSError: The connection is broken.
            RefusedError: The payload has fewer.
        """
        self._count_read(len(target))
        self._fill(target)

    def skip(self) -> None:
        """Read to the end of the payload, and forget it."""
        while self.unread_bytes:
            count = min(self.unread_bytes, _READ_BYTES)
            self._count_read(count)
            self._take(count)

    def is_silent(self) -> bool:
        """Whether nothing has come, neither bytes nor an end. Does not wait."""
        if self._cancelled or self._at < len(self._buffer):
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def cancel(self) -> None:
        """Make a running and every later call fail. From any thread."""
        self._cancelled = True
        with contextlib.suppress(OSError):  # it is closed already
            # Reset when it is closed. After a shutdown nobody tells a peer that waits for room to send that
            # there is some, nor, if all was read, that it is over: it would wait for long.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _count_read(self, count: int) -> None:
        if count > self.unread_bytes:
            raise RefusedError(f"{count} bytes of a payload that has {self.unread_bytes} left")
        self.unread_bytes -= count

    def _take(self, count: int) -> memoryview:
        """The next bytes, few enough for the buffer."""
        if not self._buffered(count) and count:
            raise ConnectionError("the connection ended inside a frame")
        start, self._at = self._at, self._at + count
        return memoryview(self._buffer)[start : self._at]

    def _buffered(self, count: int) -> bool:
        """Whether so many bytes are in the buffer; False: the connection ended where a frame may begin."""
        while len(self._buffer) - self._at < count:
            more = self._recv()
            if not more:
                if self._at < len(self._buffer):
                    raise ConnectionError("the connection ended inside a frame")
                return False
            rest = self._buffer[self._at :]
            self._buffer, self._at = rest + more if rest else more, 0
        return True

    def _recv(self) -> bytes:
        """Bytes of the peer, whenever they come.

        Where the last ones came soon, this thread looks for the next ones a moment before it goes to
        sleep: to wake a sleeping core costs more than a small step, above all on a virtual machine.
        """
        began = time.perf_counter()
        if self._waited_s < _SHORT_S:
            while time.perf_counter() < began + _LOOK_S:
                try:
                    data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
                    continue
                self._waited_s = time.perf_counter() - began
                return data
        data = self._socket.recv(_READ_BYTES)
        self._waited_s = time.perf_counter() - began
        return data

    def _fill(self, target: memoryview) -> None:
        start = self._buffer[self._at : self._at + len(target)]
        filled = len(start)
        self._at += filled
        target[:filled] = start
        while filled < len(target):
            count = self._socket.recv_into(target[filled : filled + _IN_BYTES])
            if not count:
                raise ConnectionError("the connection ended inside a frame")
            filled += count


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def prepare_tcp(connection: socket.socket) -> None:
    """Send at once, and notice a peer that is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):  # systems differ in what they offer
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
