"""Writing frames: whole, one after the other, by any thread.

Answers to the peer's own frames (acknowledgements, windows) come from the thread that reads, which
must never wait for a peer that does not read: they are queued here, and sent as soon as the socket
takes them, at the latest with the next frame.
"""

import threading
from collections.abc import Sequence

from ..stream import READ_BYTES, Buffer, ByteStream
from .frames import Code, Http2Error

_MOST_WAITING_BYTES = 64 * 1024  # a peer that does not read is disconnected


class Outlet:
    """What one connection sends.

    Args:
        stream: Carries it.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._writing = threading.Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._noting = threading.Lock()
        self._unsent: Buffer = b""  # the rest of what the socket did not take at once

    @property
    def is_blocked(self) -> bool:
        """Whether bytes wait until the peer reads."""
        return bool(self._unsent) or bool(self._waiting)

    def put_soon(self, *frames: bytes) -> None:
        """Send frames without waiting.

        Raises:
            Http2Error: Too much waits: the peer does not read.
            OSError: The connection is broken.
        """
        self.note(*frames)
        self.flush_now()

    def note(self, *frames: bytes) -> None:
        """Queue frames for the next :meth:`flush_now`, which sends them in one system call.

        Raises:
            Http2Error: Too much waits: the peer does not read.
        """
        with self._noting:
            self._waiting += frames
            self._waiting_bytes += sum(map(len, frames))
            if self._waiting_bytes > _MOST_WAITING_BYTES:
                raise Http2Error(
                    Code.ENHANCE_YOUR_CALM,
                    f"{self._waiting_bytes} bytes wait to be sent, and the peer reads none",
                )

    def flush_now(self) -> None:
        """Send bytes that wait, as many as the socket takes.

        Raises:
            OSError: The connection is broken.
        """
        while self.is_blocked and self._writing.acquire(blocking=False):
            # The thread that has the lock sends what waits; frames that are queued just before it
            # releases the lock are seen in the next round.
            try:
                self._unsent = self._unsent or self._take_waiting()
                if self._unsent and not self._try(self._unsent):
                    return
            finally:
                self._writing.release()

    def put(self, buffers: Sequence[Buffer], deadline: float) -> None:
        """Send buffers, in one piece.

        Raises:
            TimeoutError: The peer reads nothing; the rest of a frame can only be sent later.
            OSError: The connection is broken.
        """
        with self._writing:
            if self.is_blocked:
                self._send_waiting(deadline)
            small = sum(map(len, buffers)) <= READ_BYTES
            for buffer in [b"".join(buffers)] if small else buffers:
                self._stream.send(buffer, deadline)
        if self._waiting:
            self.flush_now()

    def put_now(self, buffers: Sequence[Buffer]) -> bool:
        """Send buffers if the socket can take some; the rest of them waits.

        Returns:
            Whether they are on their way; False: no byte was taken, since other threads write or
            wait.

        Raises:
            OSError: The connection is broken.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if not self._unsent:
                self._unsent = self._take_waiting()
            if self._unsent and not self._try(self._unsent):
                return False
            self._try(b"".join(buffers))
        finally:
            self._writing.release()
        return True

    def _send_waiting(self, deadline: float) -> None:
        unsent, self._unsent = self._unsent, b""
        self._stream.send(b"".join([unsent, self._take_waiting()]), deadline)

    def _take_waiting(self) -> bytes:
        with self._noting:
            frames, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return b"".join(frames)

    def _try(self, data: Buffer) -> bool:
        """Send as much as the socket takes; returns whether that was all."""
        sent = self._stream.send_now([data])
        self._unsent = memoryview(data)[sent:] if sent < len(data) else b""
        return not self._unsent
