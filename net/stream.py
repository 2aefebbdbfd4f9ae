"""Byte streams: what a connection sends its frames over.

One interface, of which :mod:`~ropewalk.net.sockets` and :mod:`~ropewalk.net.tunnel` have kinds.
Flags of system calls, ``sendmsg`` and waiting for a socket stay in :class:`SocketStream`, so that
TLS can wrap a stream in one place.
"""

import contextlib
import logging
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..cluster.access import Principal
from ..core.errors import RefusedError
from ..core.process.threads import new_thread
from ..core.process.waiting import SPIN_S, spin_then_sleep

Buffer = bytes | memoryview
NEVER = float("inf")

_T = TypeVar("_T")

READ_BYTES = 64 * 1024
# On loopback 1 MiB out and 256 KiB in at a time moved 1.6 times as much as calls without a limit:
# the kernel processes what has arrived between two calls.
_OUT_BYTES = 1024 * 1024
_IN_BYTES = 256 * 1024
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s
LONGEST_WAIT_S = 1.0
"""A longer wait is split, and :attr:`ByteStream.on_silence` is called between its parts. (Another
thread may close a socket just before it is polled, and another file may get its number.)
"""
_SHORT_S = 500e-6  # after a longer wait for the last bytes there is no spinning for the next ones


class ByteStream(Protocol):
    """Bytes there and back. One thread may send while another receives; ``cancel`` is for any.

    Every call raises OSError if the connection is broken, and TimeoutError (which is one) if
    ``deadline``, on the clock of ``time.monotonic``, passes while nothing moves.

    Attributes:
        on_silence: Called after every second in which a call has waited and nothing moved, from the
            thread that waits.
    """

    on_silence: Callable[[], object]

    @property
    def description(self) -> str:
        """Name of the transport, for messages."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether both ends are on one machine, and share its memory bus."""
        ...

    @property
    def peer_address(self) -> str:
        """Address of the other end, for messages."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Principal at the other end, if the stream itself authenticates: TLS with certificates."""
        ...

    @property
    def passes_files(self) -> bool:
        """Whether it can pass open files, which only Unix sockets do."""
        ...

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        ...

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Send bytes, at least one, and an open file with the first of them.

        Raises:
            RefusedError: This kind of stream cannot.
        """
        ...

    def take_descriptor(self) -> int:
        """Take the next open file that was received; owned by the caller.

        Raises:
            RefusedError: None came.
        """
        ...

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as is taken without waiting; returns how many bytes."""
        ...

    def receive(self, deadline: float) -> bytes:
        """Receive some bytes, as they come; empty at the end of the stream."""
        ...

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Receive some bytes into ``target``; returns how many, 0 at the end of the stream."""
        ...

    def is_silent(self) -> bool:
        """Return whether neither bytes nor the end have come; False if that is not known."""
        ...

    def fileno(self) -> int:
        """Return the descriptor for ``poll``; -1 if there is none."""
        ...

    def limit_messages(self, num_bytes: int) -> None:
        """Send no longer messages, if this kind of stream has messages at all."""
        ...

    def cancel(self) -> None:
        """Make running and later calls of both ends fail. From any thread, more than once."""
        ...

    def close(self) -> None:
        """Close it. What was sent still arrives, unless it was cancelled."""
        ...


class SocketStream:
    """A connected stream socket. See :class:`ByteStream`.

    Args:
        connection: Owned from now on; blocking.
        description: Name of the transport, for messages.
        is_local: Whether both ends are on one machine.
    """

    passes_files = False
    principal: Principal | None = None

    def __init__(self, connection: socket.socket, description: str, *, is_local: bool) -> None:
        self.description = description
        self.is_local = is_local
        self._socket = connection
        self._waited_s = 0.0
        self._cancelled = False
        self.on_silence: Callable[[], object] = lambda: None

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            try:
                sent = self._socket.send(view[:_OUT_BYTES], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._sleep(select.POLLOUT, _left(deadline))
                continue
            view = view[sent:]

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the kernel takes at once."""
        try:
            return self._socket.sendmsg(buffers, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Refuse."""
        raise RefusedError(f"files are handed over on a Unix socket, not over {self.description}")

    def take_descriptor(self) -> int:
        """Refuse."""
        raise RefusedError(f"no file comes over {self.description}")

    def receive(self, deadline: float) -> bytes:
        """Receive some bytes."""
        return self._await(self._try_receive, deadline)

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Receive some bytes into ``target``."""
        piece = target[:_IN_BYTES]
        # In the middle of a large payload there mostly are some: without a closure or a clock.
        count = self._try_receive_into(piece)
        if count is None:
            count = self._await(lambda: self._try_receive_into(piece), deadline)
        return count

    def receive_now(self, most_bytes: int) -> bytes | None:
        """Receive some bytes that have come already."""
        self._raise_if_cancelled()
        try:
            return self._socket.recv(most_bytes, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def is_silent(self) -> bool:
        """Return whether nothing has come."""
        if self._cancelled:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def readiness_fileno(self) -> int:
        """Return the descriptor for a selector, after :meth:`receive_now` has said that there is
        nothing more.
        """
        return self._socket.fileno()

    @property
    def peer_address(self) -> str:
        """Address of the other end, for people."""
        try:
            name = self._socket.getpeername()
        except OSError:
            return "a client that has gone"
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a Unix socket"

    def end_sending(self) -> None:
        """Let the other side see the end, and receive on."""
        self._socket.shutdown(socket.SHUT_WR)

    def limit_messages(self, num_bytes: int) -> None:
        """Ignore the limit: the bytes have no boundaries."""

    def cancel(self) -> None:
        """Reset the connection."""
        self._cancelled = True
        with contextlib.suppress(OSError):  # it is closed already
            # Reset when it is closed: after a shutdown alone a peer that waits for room to send
            # does not learn that its bytes will not be read.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        # A process that was forked from this one may have it too: the peer sees the end all the
        # same.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _try_receive(self) -> bytes | None:
        self._raise_if_cancelled()
        try:
            return self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def _try_receive_into(self, target: memoryview) -> int | None:
        self._raise_if_cancelled()
        try:
            return self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise ConnectionError("cancelled")

    def _await(self, attempt: Callable[[], _T | None], deadline: float) -> _T:
        began = time.perf_counter()
        timeout_s = None if deadline == NEVER else _left(deadline)
        spin_s = SPIN_S if self._waited_s < _SHORT_S else 0.0
        result = spin_then_sleep(
            attempt,
            lambda left: self._sleep(select.POLLIN, left),
            timeout_s=timeout_s,
            spin_s=spin_s,
        )
        self._waited_s = time.perf_counter() - began
        return result

    def _sleep(self, events: int, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError("timed out")
        number = self._socket.fileno()
        if self._cancelled or number < 0:
            raise ConnectionError("cancelled" if self._cancelled else "the connection is closed")
        poll = select.poll()
        poll.register(number, events)
        if not poll.poll(min(timeout_s, LONGEST_WAIT_S) * 1000):
            self.on_silence()


def _left(deadline: float) -> float:
    return deadline - time.monotonic()


log = logging.getLogger(__name__)


class Outbox:
    """Frames that wait to be sent, oldest first. The first one starts the thread.

    Args:
        stream: Only the outbox may send on it, except while the outbox is idle.
        limit: Most frames that wait.
    """

    def __init__(self, stream: ByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._sending = False
        self._closed = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being sent."""
        return not self._waiting and not self._sending

    def put(self, send: Callable[[], None], timeout_s: float | None = None) -> None:
        """Queue a call of ``send``. What that sends must not change until :meth:`flush` returns.

        Raises:
            TimeoutError: Too many frames waited for so long; ``send`` is not called.
            OSError: An earlier one could not be sent.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_room, timeout_s):
                raise TimeoutError("the peer takes nothing")
            self._raise_if_broken()
            if self._thread is None:  # before the frame is queued: there may be no more threads
                thread = new_thread("outbox", self._run, failed=self._failed)
                thread.start()
                self._thread = thread
            self._waiting.append(send)
            self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything is sent.

        Raises:
            TimeoutError: It is not within ``timeout_s``.
            OSError: It could not be.
        """
        if self.is_idle and self._failure is None:
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_idle or self._closed, timeout_s):
                raise TimeoutError("the peer takes nothing")
            self._raise_if_broken()

    def close(self) -> None:
        """End the thread. The stream must have been cancelled, or everything sent."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            # It must not write to another file that gets the descriptor's number next.
            self._thread.join()

    def _has_room(self) -> bool:
        return len(self._waiting) < self._limit or self._closed or self._failure is not None

    def _raise_if_broken(self) -> None:
        if self._failure is not None:
            raise ConnectionError(f"an earlier frame could not be sent: {self._failure}")
        if self._closed:
            raise ConnectionError("the connection is closed")

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            self._failure = ConnectionError(str(error))
            self._sending = False
            self._waiting.clear()
            self._changed.notify_all()
        self._stream.cancel()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._sending = True  # first: `is_idle` reads without the lock
                send = self._waiting.popleft()
            try:
                send()
            except Exception as error:
                if not isinstance(error, OSError):  # for example, no memory to gather an array
                    log.exception("a frame could not be sent")
                with self._changed:
                    self._failure = error
                    self._waiting.clear()
                # Half a frame was sent: threads that wait for its answer must notice.
                self._stream.cancel()
            del send  # arrays are not kept until the next frame
