"""Writing frames: whole, one after the other, by any thread.

Answers to the peer's own frames (acknowledgements, windows) come from the thread that reads, which
must never wait for a peer that does not read: they are queued here, and sent as soon as the socket
takes them, at the latest with the next frame.

When the answer of a call is taken is up to the client: it opens the windows, and it reads or does
not. If a thread waited for that, a few clients that read nothing would have all threads of a
server. So answers are kept here, too, and whichever thread moves the connection next sends what can
be sent.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import frames
from .frames import Buffer, Code, Fields, Http2Error, Kind, fields_frames
from .protocol import Http2Protocol, Http2Stream
from .reading import READ_BYTES, Transport

_LARGEST_PIECE = 64 * 1024  # of an answer: it leaves this list, and waits for the socket alone
_FIELDS_BYTES = 1024  # an answer takes at least, with its objects
_MOST_WAITING_BYTES = 64 * 1024  # a peer that does not read is disconnected


@dataclass(slots=True, eq=False)
class _Untaken:
    """An answer, and how much of it has gone.

    Attributes:
        stream: Stream of the call.
        fields: Sent first.
        rest: Bytes that were not sent yet.
        trailers: Sent last.
        until: Time at which it is given up, on the clock of ``time.monotonic``.
        has_begun: Whether its fields were sent.
    """

    stream: Http2Stream
    fields: Fields
    rest: memoryview
    trailers: Fields
    until: float
    has_begun: bool = False


class Answers:
    """Complete answers of one connection, the oldest first. Thread-safe.

    Args:
        state: The connection's state, whose lock guards this, too.

    Attributes:
        num_bytes: Memory of the answers that wait, about. Unit: bytes.
        taken_at: Time at which the peer took some of them last, on the clock of ``time.monotonic``.
    """

    def __init__(self, state: Http2Protocol) -> None:
        self.num_bytes = 0
        self.taken_at = time.monotonic()
        self._state = state
        self._waiting: deque[_Untaken] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(
        self,
        stream: Http2Stream,
        fields: Fields,
        message: Sequence[bytes],
        trailers: Fields,
        until: float,
    ) -> None:
        """Queue an answer."""
        data = memoryview(b"".join(message))
        with self._state.changed:
            self._forget_broken()
            if not self._waiting:
                self.taken_at = time.monotonic()
            self._waiting.append(_Untaken(stream, fields, data, trailers, until))
            self.num_bytes += len(data) + _FIELDS_BYTES

    def can_send(self) -> bool:
        """Return whether the windows allow some bytes now."""
        if not self._waiting:
            return False
        with self._state.changed:
            self._forget_broken()
            return any(map(self._is_allowed, self._waiting))

    def next_frames(self) -> bytes:
        """Make the next frames of the oldest answer that the windows allow; empty: there is
        none.
        """
        with self._state.changed:
            self._forget_broken()
            answer = next(filter(self._is_allowed, self._waiting), None)
            if answer is None:
                return b""
            # The others have their turn before its next frames.
            self._waiting.remove(answer)
            self.taken_at = time.monotonic()
            sent, has_ended = self._advance(answer)
            if has_ended:
                self.num_bytes -= _FIELDS_BYTES
            else:
                self._waiting.append(answer)
            return sent

    def give_up_late(self) -> list[Http2Stream]:
        """Forget answers that were not taken in time; returns their streams."""
        now = time.monotonic()
        with self._state.changed:
            late = [answer for answer in self._waiting if now > answer.until]
            self._keep(answer for answer in self._waiting if now <= answer.until)
        return [answer.stream for answer in late]

    def _is_allowed(self, answer: _Untaken) -> bool:
        return not answer.has_begun or not answer.rest or self._state.room_of(answer.stream) > 0

    def _advance(self, answer: _Untaken) -> tuple[bytes, bool]:
        """Make frames of an answer; returns also whether they are its last."""
        stream = answer.stream
        sent: list[Buffer] = []
        most = self._state.peer_frame
        if not answer.has_begun:
            answer.has_begun = True
            sent.append(fields_frames(stream.number, answer.fields, most, end=False))
        room = min(len(answer.rest), self._state.room_of(stream), _LARGEST_PIECE)
        if room:
            sent += [frames.head(room, Kind.DATA, 0, stream.number), answer.rest[:room]]
            answer.rest = answer.rest[room:]
            stream.window -= room
            self._state.window -= room
            self.num_bytes -= room
        if answer.rest:
            return b"".join(sent), False
        sent.append(fields_frames(stream.number, answer.trailers, most, end=True))
        if not stream.has_ended:  # a client that still sends is to stop
            stream.broken = "answered"
            sent.append(frames.reset(stream.number, Code.NO_ERROR))
        self._state.finished(stream)
        return b"".join(sent), True

    def _forget_broken(self) -> None:
        if any(answer.stream.broken for answer in self._waiting):
            self._keep(answer for answer in self._waiting if not answer.stream.broken)

    def _keep(self, answers: Iterable[_Untaken]) -> None:
        self._waiting = deque(answers)
        self.num_bytes = sum(len(answer.rest) + _FIELDS_BYTES for answer in self._waiting)


class Outlet:
    """The sending side of a connection.

    Args:
        stream: Carries it.
        answers: Sent whenever nothing else waits.
    """

    def __init__(self, stream: Transport, answers: Answers) -> None:
        self._stream = stream
        self._answers = answers
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
        """Send bytes that wait, and the backlog, as many as the socket takes.

        Raises:
            OSError: The connection is broken.
        """
        while self._has_more() and self._writing.acquire(blocking=False):
            # The thread that has the lock sends what waits; frames that are queued, or allowed,
            # just before it releases the lock are seen in the next round.
            try:
                self._unsent = self._unsent or self._take_waiting() or self._answers.next_frames()
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
        if self._waiting or self._answers.can_send():
            self.flush_now()

    def _has_more(self) -> bool:
        return self.is_blocked or self._answers.can_send()

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
