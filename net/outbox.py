"""A thread that sends what a stream does not take at once."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from ..core.process.threads import new_thread
from .stream import ByteStream

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
