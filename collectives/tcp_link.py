"""A link of a ring between two machines: frames over a TCP connection of its own.

What the kernel takes at once is sent by the caller; the rest is copied into a slot and sent by a thread, so
that neighbours may both send before either receives. The receiver reads into one buffer, and looks for the
next bytes for a moment before it sleeps.
"""

import contextlib
import os
import queue
import select
import socket
import threading
import time

import numpy as np

from ..core.arrays import Array
from ..core.errors import RefusedError
from .ring_frames import HEAD_BYTES, LENGTH, PLACE_BYTES, Place, unpack_place

TICKET_BYTES = 16
SLOT_BYTES = 1024 * 1024  # the longest payload
_SLOTS = 4
_IN_BYTES = 256 * 1024
_LOOK_S = 300e-6
_COME_IN = b"\1"


class TcpSender:
    """The sending end.

    Args:
        connection: To the receiver; owned from now on.
        place: Whose link it is.
        ticket: What the receiver gave out over gRPC.
        timeout_s: For the receiver to take it in.

    Raises:
        OSError: The connection broke, or the receiver did not take it in.
    """

    description = "tcp"

    def __init__(
        self, connection: socket.socket, place: Place, ticket: bytes, timeout_s: float = 5.0
    ) -> None:
        connection.settimeout(timeout_s)
        connection.sendall(place.pack() + ticket)
        if connection.recv(1) != _COME_IN:
            raise ConnectionError("the receiver let this end not in, or is something else")
        connection.settimeout(None)
        self._socket = connection
        self._free: queue.SimpleQueue[Array] = queue.SimpleQueue()
        for _ in range(_SLOTS):
            self._free.put(np.empty(HEAD_BYTES + SLOT_BYTES, np.uint8))
        self._filled: queue.SimpleQueue[tuple[Array, int] | None] = queue.SimpleQueue()
        self._behind = 0  # slots that were filled
        self._written = 0  # slots that were sent
        self._broken = False
        self._within = False  # a frame was begun, perhaps, and what is left of it is in no slot
        self._thread = threading.Thread(target=self._write, name="link", daemon=True)
        self._thread.start()

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame."""
        if self._broken or self._within:  # by Ctrl-C: what comes next would be taken for the rest
            raise ConnectionError("the connection broke")
        sent = 0
        total = len(head) + payload.size
        if self._behind == self._written:
            self._within = True
            try:
                sent = self._socket.sendmsg([head, payload.data], [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except TimeoutError as error:
                raise _given_up(error) from error
            self._within = 0 < sent < total
        if sent == total:
            return
        try:
            # A frame that was begun must be finished: there is a slot then, nothing is behind.
            slot = self._free.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        rest = 0
        if sent < len(head):
            rest = len(head) - sent
            slot[:rest] = np.frombuffer(head, np.uint8)[sent:]
        left = payload[max(0, sent - len(head)) :]
        slot[rest : rest + left.size] = left
        self._behind += 1
        self._filled.put((slot, rest + left.size))
        self._within = False

    def _write(self) -> None:
        while (item := self._filled.get()) is not None:
            slot, size = item
            if not self._broken:
                try:
                    self._socket.sendall(slot[:size].data)
                except OSError:
                    self._broken = True
            self._written += 1
            self._free.put(slot)

    def close(self, linger_s: float = 1.0) -> None:
        """Break the link. What was sent arrives if it is read within ``linger_s``."""
        self._filled.put(None)
        self._thread.join(linger_s)
        if self._thread.is_alive():  # nobody reads
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        self._broken = True  # a slot filled from now on is sent by nobody
        self._socket.close()


class TcpReceiver:
    """The receiving end.

    Args:
        connection: From the sender; owned from now on.
        timeout_s: For the sender to say who it is.

    Attributes:
        place: Whose link it is.
        ticket: What the sender shows; whoever made the receiver must look at it, and :meth:`accept`.

    Raises:
        OSError: The connection broke, or the sender says nothing.
    """

    def __init__(self, connection: socket.socket, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        hello = b""
        while len(hello) < PLACE_BYTES + TICKET_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = connection.recv(PLACE_BYTES + TICKET_BYTES - len(hello))
            if not data:
                raise ConnectionError("the sender left before it began")
            hello += data
        self.place = unpack_place(hello[:PLACE_BYTES])
        self.ticket = hello[PLACE_BYTES:]
        self._socket = connection
        self._buffer = np.empty(HEAD_BYTES + SLOT_BYTES, np.uint8)
        self._view = self._buffer.data
        self._arrived = 0

    def accept(self) -> None:
        """Let the sender begin.

        Raises:
            OSError: The connection broke, or the sender has given it up.
        """
        self._socket.settimeout(None)  # with one MSG_DONTWAIT waits
        with contextlib.suppress(BlockingIOError):
            if not self._socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                # It has another link by now, which this one must not replace.
                raise ConnectionError("the sender did not wait for so long")
        self._socket.sendall(_COME_IN)  # a byte always fits

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """The next frame."""
        deadline = time.perf_counter() + timeout_s
        if not self._fill(HEAD_BYTES, deadline):
            return None
        head = bytes(self._view[:HEAD_BYTES])
        (length,) = LENGTH.unpack_from(head)
        if length > SLOT_BYTES:
            raise RefusedError(f"a frame names {length} bytes, of {SLOT_BYTES} at most")
        stop = HEAD_BYTES + length
        if not self._fill(stop, deadline):
            raise ConnectionError("the connection ended inside a frame")
        return head, self._buffer[HEAD_BYTES:stop]

    def _fill(self, stop: int, deadline: float) -> bool:
        """Read up to ``stop``. What came before a timeout is kept. False: the end, before a frame."""
        began = time.perf_counter()
        while self._arrived < stop:
            until = min(stop, self._arrived + _IN_BYTES)
            try:
                count = self._socket.recv_into(
                    self._view[self._arrived : until], 0, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                self._wait(began, deadline)
                continue
            except TimeoutError as error:
                raise _given_up(error) from error
            if not count:
                if self._arrived:
                    raise ConnectionError("the connection ended inside a frame")
                return False
            self._arrived += count
            began = time.perf_counter()
        return True

    def _wait(self, began: float, deadline: float) -> None:
        now = time.perf_counter()
        if now < began + _LOOK_S:
            os.sched_yield()
            return
        if now >= deadline:
            raise TimeoutError
        number = self._socket.fileno()
        if number < 0:
            raise ConnectionError("the link is closed")
        poll = select.poll()
        poll.register(number, select.POLLIN)
        poll.poll((deadline - now) * 1000)

    def release(self) -> None:
        """The last payload is not needed any more."""
        self._arrived = 0

    def close(self) -> None:
        """Break the link."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _given_up(error: TimeoutError) -> ConnectionError:
    """The system gave the peer up (ETIMEDOUT): that link is broken, ours that time out can be tried again."""
    return ConnectionError(error.errno, error.strerror)
