"""Frames over a connected socket: what a session between two processes of one machine is carried by.

A frame has its length in front, as a little-endian uint32. A message on a gRPC stream costs 0.14 ms and
two threads on either side; here a step is one ``send`` and one ``recv`` of the caller's own thread.
"""

import contextlib
import os
import socket
import struct
import time

from .errors import RefusedError

_LENGTH = struct.Struct("<I")
_READ_BYTES = 64 * 1024
_LOOK_S = 200e-6
_SHORT_S = 500e-6


class FrameSocket:
    """Sends and receives frames. Used by one thread at a time, but for :meth:`cancel`.

    Args:
        connection: A connected stream socket; owned from now on.
        max_frame_bytes: A peer that announces more is refused, before memory is taken.
    """

    def __init__(self, connection: socket.socket, max_frame_bytes: int) -> None:
        self._socket = connection
        self._max_frame_bytes = max_frame_bytes
        self._buffer = b""
        self._cancelled = False
        self._waited_s = 0.0

    def send(self, frame: bytes | bytearray) -> None:
        """Send one frame.

        Raises:
            OSError: The connection is broken.
        """
        head = _LENGTH.pack(len(frame))
        if len(frame) < _READ_BYTES:
            self._socket.sendall(head + frame)
        else:
            self._socket.sendall(head)
            self._socket.sendall(frame)

    def receive(self) -> bytes | bytearray | None:
        """The next frame; None when the peer closed the connection between two frames.

        Raises:
            OSError: The connection is broken, or ended inside a frame.
            RefusedError: A frame is over the limit.
        """
        if self._cancelled:  # what had arrived before is not wanted any more
            raise ConnectionError("cancelled")
        buffer = self._buffer
        while len(buffer) < _LENGTH.size:
            more = self._recv()
            if not more:
                if buffer:
                    raise ConnectionError("the connection ended inside a frame")
                return None
            buffer = buffer + more if buffer else more
        (length,) = _LENGTH.unpack_from(buffer)
        stop = _LENGTH.size + length
        if length > self._max_frame_bytes:
            raise RefusedError(
                f"a frame of {length} bytes is over the limit {self._max_frame_bytes}"
            )
        if len(buffer) >= stop:
            self._buffer = buffer[stop:]
            return buffer[_LENGTH.size : stop]
        self._buffer = b""
        return self._fill(length, memoryview(buffer)[_LENGTH.size :])

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

    def _fill(self, length: int, start: memoryview) -> bytearray:
        frame = bytearray(length)
        view, filled = memoryview(frame), len(start)
        view[:filled] = start
        while filled < length:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionError("the connection ended inside a frame")
            filled += count
        return frame

    def cancel(self) -> None:
        """Make a running and every later call fail. From any thread."""
        self._cancelled = True
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
