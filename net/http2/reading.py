"""Choice of the thread that reads an HTTP/2 connection.

The thread that waits for bytes of a stream, or for a window, reads the connection itself, so
nothing is passed from thread to thread, and the payload of a large frame goes from the socket to
its destination. While one thread reads, others that wait are woken when it is their turn. Where a
server's selector reads (:attr:`Reading.is_driven`), no other thread does.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .frames import Buffer, Http2Error
from .protocol import Http2Stream
from .shares import new_thread

if TYPE_CHECKING:
    from .link import Http2Link

CLOSED = "the connection was closed"
NEVER = float("inf")
READ_BYTES = 64 * 1024
LONGEST_WAIT_S = 1.0
"""A thread that waits looks around after this long, whether its wait still has a purpose."""


class Transport(Protocol):
    """The byte stream below a connection. One thread may send while another receives.

    Calls raise OSError if the stream is broken, and TimeoutError if ``deadline``, on the clock of
    ``time.monotonic``, passes while nothing moves.

    Attributes:
        on_silence: Called after every second in which a call has waited and nothing moved, from the
            thread that waits.
    """

    on_silence: Callable[[], object]

    @property
    def peer_address(self) -> str:
        """Address of the other end, for messages."""
        ...

    @property
    def principal(self) -> Any:
        """Identity of the other end, if the stream itself shows it; None: it does not."""
        ...

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
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

    def receive_now(self, most_bytes: int) -> bytes | None:
        """Receive some bytes that have come already; None: none have, empty at the end of the
        stream.
        """
        ...

    def readiness_fileno(self) -> int:
        """Return the descriptor for a selector, after :meth:`receive_now` has said that there is
        nothing more.
        """
        ...

    def cancel(self) -> None:
        """Make running and later calls of both ends fail. From any thread, more than once."""
        ...

    def close(self) -> None:
        """Close it. What was sent still arrives, unless it was cancelled."""
        ...


def nothing() -> None:
    """Do nothing: the callback of threads that have none."""


class Silences:
    """Callbacks of threads that wait for a byte stream, called while nothing moves."""

    def __init__(self) -> None:
        self._calls: dict[int, Callable[[], object]] = {}

    @contextlib.contextmanager
    def of_this_thread(self, call: Callable[[], object]) -> Iterator[None]:
        """Set the callback of this thread, for as long as the block runs."""
        thread = threading.get_ident()
        self._calls[thread] = call
        try:
            yield
        finally:
            del self._calls[thread]

    def __call__(self) -> None:
        """Call the callback of this thread, in which the stream waits."""
        call = self._calls.get(threading.get_ident())
        if call is not None:
            call()


class Reading:
    """Takes turns at reading one connection.

    Args:
        link: The connection.

    Attributes:
        is_driven: Whether a selector's thread reads, by :meth:`receive_now`, when bytes have come.
        received_bytes: Number of bytes that have come.
        last_read: Time at which the connection was read last, on the clock of ``time.monotonic``.
    """

    def __init__(self, link: "Http2Link") -> None:
        self.is_driven = False
        self.received_bytes = 0
        self.last_read = time.monotonic()
        self._link = link
        self._waiting = 0  # threads at the condition
        self._is_read = False

    def wait(
        self,
        there: Callable[[], bool],
        deadline: float,
        on_silence: Callable[[], object] = nothing,
        direct: tuple[Http2Stream, memoryview] | None = None,
    ) -> int:
        """Wait until ``there`` is true, and read the connection meanwhile if no other thread does.

        Args:
            there: Called whenever bytes have come.
            deadline: Time limit, on the clock of ``time.monotonic``.
            on_silence: Called after every second in which nothing came.
            direct: A stream, and memory that its bytes may be read into.

        Returns:
            Number of bytes that were read into ``direct``; 0: ``there`` is true.

        Raises:
            TimeoutError: It was not true before the deadline.
            OSError: The connection is broken.
        """
        while True:
            with self._link.state.changed:
                if there():
                    return 0
                self._link.raise_if_broken()
                reads = not self._is_read and not self.is_driven
                if not reads:
                    self._wait_for_turn(deadline, on_silence)
                    continue
                self._is_read = True
            try:
                return self._read_until(there, deadline, on_silence, direct)
            finally:
                self._end_reading()

    def _end_reading(self) -> None:
        self.last_read = time.monotonic()
        with self._link.state.changed:
            self._is_read = False
            if self._waiting:
                self._link.state.changed.notify_all()

    def _wait_for_turn(self, deadline: float, on_silence: Callable[[], object]) -> None:
        """Wait for a moment; the caller has the lock."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._waiting += 1
        try:
            if not self._link.state.changed.wait(min(left_s, LONGEST_WAIT_S)):
                on_silence()
        finally:
            self._waiting -= 1

    def _read_until(
        self,
        there: Callable[[], bool],
        deadline: float,
        on_silence: Callable[[], object],
        direct: tuple[Http2Stream, memoryview] | None,
    ) -> int:
        stream = self._link.stream

        def silence() -> None:
            with contextlib.suppress(OSError):
                self._link.flush_now()
            if there():  # for example, it was cancelled
                raise _NoLongerWaitingError
            on_silence()

        try:
            with self._link.silences.of_this_thread(silence):
                while not there():
                    if direct is not None and self._is_next_of(direct[0]):
                        return self._read_into(direct[1], deadline)
                    self.feed(stream.receive(deadline))
        except _NoLongerWaitingError:
            return 0
        except TimeoutError:
            raise
        except OSError as error:
            self._link.fail(str(error))
            if not there():
                raise
        return 0

    def _read_into(self, target: memoryview, deadline: float) -> int:
        state = self._link.state
        count = self._link.stream.receive_into(target[: state.reader.data_left], deadline)
        if not count:
            raise ConnectionError(CLOSED)
        state.took_data(count)
        if self._link.is_blocked:
            self._link.flush_now()
        return count

    def receive_now(self, most_bytes: int = READ_BYTES) -> bool:
        """Handle what has come, without waiting; returns whether there may be more.

        Raises:
            Http2Error: The peer breaks the protocol: the caller must end the connection.
            OSError: The connection is over.
        """
        with self._link.state.changed:
            if self._is_read:
                return False
            self._is_read = True
        try:
            data = self._link.stream.receive_now(most_bytes)
            if data is None:
                self._link.flush_now()
                return False
            self.feed(data)
        except Http2Error:
            raise  # the driver decides when the link ends
        except OSError as error:
            self._link.fail(str(error))
            raise
        finally:
            self._end_reading()
        return True

    def _is_next_of(self, stream: Http2Stream) -> bool:
        state = self._link.state
        return state.data_of is stream and state.reader.is_inside_data and not stream.pieces

    def feed(self, data: bytes) -> None:
        """Handle bytes of the peer, by the one thread that reads.

        Raises:
            Http2Error: The peer breaks the protocol, and was told so.
            OSError: The connection has ended.
        """
        if not data:
            raise ConnectionError(CLOSED)
        self.received_bytes += len(data)
        try:
            self._link.state.feed(data)
        except Http2Error as error:
            with contextlib.suppress(OSError):
                self._link.go_away(error.code)
            raise
        self._link.flush_now()
        if self._waiting:
            self._link.wake()


class _NoLongerWaitingError(Exception):
    """Ends a wait, since its condition is true."""


log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_READS = 16  # per look: data that a busy thread will read itself stays in the kernel


class IdleLinks:
    """Reads connections that no other thread reads, so that pings and resets are answered all the
    same. Thread-safe.

    The connection of a stream of many messages is read by the thread that waits for its bytes.
    While that thread computes, an HTTP/2 proxy may ask whether this side is alive, and calls that
    share the connection go on. One thread of the process looks at such connections twice a second,
    as long as there are any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Http2Link, float] = {}  # until when, on the clock of time.monotonic
        self._is_running = False

    def watch(self, link: "Http2Link") -> None:
        """Read a connection when no other thread does, until :meth:`forget` or its end."""
        self._add(link, NEVER)

    def see_out(self, link: "Http2Link", until: float) -> None:
        """Close a connection once the other side has ended its calls, at ``until`` at the latest.

        Closing it at once, with frames of the peer unread, would reset it, and what was sent last
        could be lost.
        """
        if link.broken or not link.streams:
            self.forget(link)
            link.close()
        else:
            self._add(link, until)

    def forget(self, link: "Http2Link") -> None:
        """Stop reading it: another thread does from now on."""
        with self._lock:
            self._watched.pop(link, None)

    def _add(self, link: "Http2Link", until: float) -> None:
        with self._lock:
            self._watched[link] = until
            if not self._is_running:
                new_thread("idle-links", self._run, self._failed).start()
                self._is_running = True

    def _failed(self, _: BaseException) -> None:
        """Let the next connection start a new thread, which reads the others, too."""
        with self._lock:
            self._is_running = False

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_PERIOD_S)
            with self._lock:
                watched = list(self._watched.items())
                if not watched:
                    self._is_running = False
                    return
            for link, until in watched:
                if until != NEVER and (link.broken or not link.streams or time.monotonic() > until):
                    link.close()
                # Its owner closes a broken one.
                if not _goes_on(link) or (link.broken and until == NEVER):
                    self.forget(link)


def _goes_on(link: "Http2Link") -> bool:
    """Read what has come; return whether the connection is still to be watched."""
    try:
        if link.reading.is_driven:
            return False
        if not link.broken and time.monotonic() - link.reading.last_read >= _PERIOD_S:
            for _ in range(_READS):
                if not link.reading.receive_now():
                    break
    except OSError as error:
        link.fail(str(error))
    except Exception:  # one connection's failure does not concern the others
        log.exception("a connection could not be read")
        link.fail("it could not be read")
    return not link.is_closed


idle_links = IdleLinks()
"""Idle links of this process."""
