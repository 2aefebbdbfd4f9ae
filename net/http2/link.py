"""An HTTP/2 connection over a byte stream, for clients and servers.

Any thread may send, and any thread may wait for something: see :mod:`~ropewalk.net.http2.reading`.
"""

import contextlib
from collections.abc import Callable, Sequence

from . import frames
from .frames import (
    DEFAULT_WINDOW,
    END_STREAM,
    MAX_WINDOW,
    Buffer,
    Code,
    Fields,
    Kind,
    fields_frames,
)
from .outlet import Answers, Outlet
from .protocol import CONNECTION_WINDOW, Handler, Http2Protocol, Http2Stream, Limits
from .reading import CLOSED, Reading, Silences, Transport, nothing


class Http2Link:
    """An HTTP/2 connection.

    Args:
        stream: Owned from now on.
        limits: Limits that the peer must keep to.
        handler: Serves the peer's streams; None: this is the client's side.

    Attributes:
        state: The state of the protocol.
        reading: Takes turns at reading.
        is_closed: Whether the stream below was closed.
        silences: Callbacks of threads that wait.
        answers: Answers that the peer has not taken yet.
    """

    def __init__(self, stream: Transport, limits: Limits, handler: Handler | None = None) -> None:
        self.stream = stream
        self.is_closed = False
        self._limits = limits
        self._is_client = handler is None
        self.silences = Silences()
        stream.on_silence = self.silences
        self._broken = ""
        self.state = Http2Protocol(limits, handler, self._note)
        self.answers = Answers(self.state)
        self._outlet = Outlet(stream, self.answers)
        self.reading = Reading(self)

    # -- beginning and ending ----------------------------------------------------------------

    def begin(self) -> None:
        """Send the preface and this side's settings, before anything else.

        Raises:
            OSError: The connection is broken.
        """
        opening = self._limits.as_settings(is_client=self._is_client)
        opening += frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        self._outlet.put_soon((frames.PREFACE if self._is_client else b"") + opening)

    @property
    def streams(self) -> dict[int, Http2Stream]:
        """Streams that are not over, by number."""
        return self.state.streams

    @property
    def broken(self) -> str:
        """Why the connection is broken; empty: it is not."""
        return self._broken

    def is_open(self) -> bool:
        """Return whether the connection has not ended, as far as is known here."""
        return not self._broken

    def ping(self) -> None:
        """Ask the peer whether its process runs. A client's gRPC answers in a thread of its own,
        whatever holds up its program.
        """
        with contextlib.suppress(OSError):
            self.put_soon(frames.frame(Kind.PING, 0, 0, bytes(8)))

    @property
    def pings_answered(self) -> int:
        """Number of pings that the peer has answered."""
        return self.state.pings_answered

    def go_away(self, code: Code = Code.NO_ERROR) -> None:
        """Take no more streams; open ones continue. Idempotent."""
        with self.state.changed:
            if self.state.refuses:
                return
            self.state.refuses = True
            last = max(0, self.state.last)
        self.put_soon(frames.go_away(last, code))

    def fail(self, why: str) -> None:
        """End everything, and wake all threads that wait. From any thread."""
        with self.state.changed:
            self._broken = self._broken or why
            live = list(self.streams.values())
            self.streams.clear()
            for stream in live:
                stream.broken = stream.broken or self._broken
            self.state.changed.notify_all()
        self.stream.cancel()
        for stream in live:
            self.state.tell(stream)

    def close(self) -> None:
        """Close the connection; what was sent still arrives."""
        with contextlib.suppress(OSError):
            self._outlet.flush_now()
        with self.state.changed:
            self._broken = self._broken or CLOSED
            self.is_closed = True
        self.stream.close()
        self.fail(CLOSED)
        self.state.forget()

    def wake(self) -> None:
        """Have threads that wait check again."""
        with self.state.changed:
            self.state.changed.notify_all()

    # -- sending -----------------------------------------------------------------------------

    def open(self, fields: Fields, deadline: float, window_bytes: int = 0) -> Http2Stream:
        """Open a stream, as the client.

        Args:
            fields: First fields of the stream.
            deadline: Time limit, on the clock of ``time.monotonic``.
            window_bytes: Number of bytes that may wait to be taken, if that is more than the limits
                say.

        Raises:
            OSError: The connection is broken.
        """
        with self.state.changed:
            self.raise_if_broken()
            self.state.last += 2
            stream = Http2Stream(self.state.last, self.state.peer_window, self._limits.window_bytes)
            self.streams[stream.number] = stream
        self.send_fields(stream, fields, deadline)
        self.widen(stream, window_bytes)
        return stream

    def widen(self, stream: Http2Stream, window_bytes: int) -> None:
        """Let the peer send more of a stream before it is taken: up to ``window_bytes``.

        Raises:
            OSError: The connection is broken.
        """
        more = window_bytes - self._limits.window_bytes
        if more > 0:
            with self.state.changed:
                stream.inbound += more
            self.put_soon(frames.window_update(stream.number, more))

    def send_fields(
        self, stream: Http2Stream, fields: Fields, deadline: float, *, end: bool = False
    ) -> None:
        """Send fields of a stream; trailers end this side of it.

        Raises:
            OSError: The stream or the connection is over.
        """
        self._raise_if_over(stream)
        block = self._fields_frames(stream, fields, end=end)
        self._put([block], deadline)
        if end:
            self.state.finished(stream)

    def send_last_fields_soon(self, stream: Http2Stream, fields: Fields) -> None:
        """Send trailers without waiting: for the thread that reads.

        Raises:
            OSError: The connection is over.
        """
        self.put_soon(self._fields_frames(stream, fields, end=True))
        self.state.finished(stream)

    def send_answer_soon(
        self,
        stream: Http2Stream,
        fields: Fields,
        message: Sequence[bytes],
        trailers: Fields,
        until: float,
    ) -> None:
        """Send a complete answer as the peer takes it, without waiting.

        Args:
            stream: Stream of the call; reset after the answer if the peer still sends.
            fields: Sent first.
            message: Bytes of the message.
            trailers: Sent last.
            until: Time at which the answer is given up, on the clock of ``time.monotonic``.

        Raises:
            OSError: The stream or the connection is over.
        """
        self._raise_if_over(stream)
        self.answers.add(stream, fields, message, trailers, until)
        self.put_soon()

    def give_up_late_answers(self) -> None:
        """Reset the calls whose answers the peer did not take in time."""
        for stream in self.answers.give_up_late():
            self.reset(stream, Code.CANCEL, "the answer was not taken in time")

    def send_data(
        self,
        stream: Http2Stream,
        data: Sequence[Buffer],
        deadline: float,
        on_silence: Callable[[], object] = nothing,
    ) -> None:
        """Send bytes of a stream, as many as the windows allow at a time.

        Raises:
            TimeoutError: The peer takes nothing.
            OSError: The stream or the connection is over.
        """
        views = [memoryview(part) for part in data if len(part)]
        while views:
            room = self._await_window(stream, sum(map(len, views)), deadline, on_silence)
            piece, views = _split(views, room)
            head = frames.head(room, Kind.DATA, 0, stream.number)
            self._put([head, *piece], deadline, on_silence)

    def send_data_now(self, stream: Http2Stream, data: Buffer) -> bool:
        """Send bytes of a stream in one frame if the windows and the socket allow it now.

        The socket may have taken only a part: see :attr:`is_blocked`.

        Raises:
            OSError: The stream or the connection is over.
        """
        size = len(data)
        with self.state.changed:
            self._raise_if_over(stream)
            if min(stream.window, self.state.window, self.state.peer_frame) < size:
                return False
            stream.window -= size
            self.state.window -= size
        try:
            taken = self._outlet.put_now([frames.head(size, Kind.DATA, 0, stream.number), data])
        except OSError as error:
            self.fail(str(error))
            raise
        if not taken:
            with self.state.changed:
                stream.window += size
                self.state.window += size
        return taken

    @property
    def is_blocked(self) -> bool:
        """Whether bytes wait until the socket takes them."""
        return self._outlet.is_blocked

    def finish(self, stream: Http2Stream, deadline: float) -> None:
        """End this side of a stream with an empty frame.

        Raises:
            OSError: The connection is broken.
        """
        if not stream.has_finished and not stream.broken:
            self._put([frames.frame(Kind.DATA, END_STREAM, stream.number)], deadline)
            self.state.finished(stream)

    def reset(self, stream: Http2Stream, code: Code, why: str) -> None:
        """End a stream at once, in both directions. From any thread; idempotent."""
        with self.state.changed:
            if stream.is_over:
                return
            stream.broken = why
            self.streams.pop(stream.number, None)
            self.state.changed.notify_all()
        with contextlib.suppress(OSError):
            self.put_soon(frames.reset(stream.number, code))

    def put_soon(self, *data: bytes) -> None:
        """Send frames without waiting.

        Raises:
            OSError: The connection is broken, or the peer does not read.
        """
        try:
            self._outlet.put_soon(*data)
        except OSError as error:
            self.fail(str(error))
            raise

    def _note(self, data: bytes) -> None:
        self._outlet.note(data)

    def _put(
        self,
        buffers: Sequence[Buffer],
        deadline: float,
        on_silence: Callable[[], object] = nothing,
    ) -> None:
        try:
            with self.silences.of_this_thread(on_silence):
                self._outlet.put(buffers, deadline)
        except OSError as error:  # a part of a frame is out: nothing can follow it
            self.fail(str(error))
            raise

    def _fields_frames(self, stream: Http2Stream, fields: Fields, *, end: bool) -> bytes:
        return fields_frames(stream.number, fields, self.state.peer_frame, end=end)

    def _await_window(
        self, stream: Http2Stream, wanted: int, deadline: float, on_silence: Callable[[], object]
    ) -> int:
        """Wait until bytes may be sent; returns how many, at least one, and subtracts them from the
        windows.
        """
        room = self._take_window(stream, wanted)
        while not room:
            self.reading.wait(
                lambda: bool(stream.broken) or min(stream.window, self.state.window) > 0,
                deadline,
                on_silence,
            )
            room = self._take_window(stream, wanted)
        return room

    def _take_window(self, stream: Http2Stream, wanted: int) -> int:
        with self.state.changed:
            self._raise_if_over(stream)
            room = min(wanted, self.state.room_of(stream))
            stream.window -= room
            self.state.window -= room
        return room

    # -- receiving ---------------------------------------------------------------------------

    def take(
        self, stream: Http2Stream, deadline: float, on_silence: Callable[[], object] = nothing
    ) -> memoryview:
        """Take the next bytes of a stream; empty at its end.

        Raises:
            TimeoutError: None came.
            OSError: The stream or the connection is over.
        """
        if not stream.pieces:
            self.reading.wait(lambda: stream.has_news, deadline, on_silence)
        return self._take_piece(stream)

    def take_into(
        self,
        stream: Http2Stream,
        target: memoryview,
        deadline: float,
        on_silence: Callable[[], object] = nothing,
    ) -> int:
        """Take the next bytes of a stream into ``target``; 0 at its end.

        Raises:
            TimeoutError: None came.
            OSError: The stream or the connection is over.
        """
        if not stream.pieces:
            count = self.reading.wait(
                lambda: stream.has_news, deadline, on_silence, (stream, target)
            )
            if count:
                self._consumed(stream, count)
                return count
        piece = self._take_piece(stream, len(target))
        target[: len(piece)] = piece
        return len(piece)

    def _take_piece(self, stream: Http2Stream, most: int = MAX_WINDOW) -> memoryview:
        with self.state.changed:
            if not stream.pieces:
                if stream.has_ended:
                    return memoryview(b"")
                self._raise_if_over(stream)
            piece = stream.pieces.popleft()
            if len(piece) > most:
                stream.pieces.appendleft(piece[most:])
                piece = piece[:most]
        self._consumed(stream, len(piece))
        return piece

    def _consumed(self, stream: Http2Stream, count: int) -> None:
        """Let the peer send as many more, once that is worth a frame."""
        with self.state.changed:
            stream.credit += count
            if stream.has_ended or stream.broken or stream.credit < self._limits.window_bytes // 2:
                return
            credit, stream.credit = stream.credit, 0
            stream.inbound += credit
        with contextlib.suppress(OSError):  # the next call raises it
            self.put_soon(frames.window_update(stream.number, credit))

    def flush_now(self) -> None:
        """Send bytes that wait, as many as the socket takes.

        Raises:
            OSError: The connection is broken.
        """
        self._outlet.flush_now()

    # -- state -------------------------------------------------------------------------------

    def raise_if_broken(self) -> None:
        """Check that the connection is not broken.

        Raises:
            ConnectionError: It is.
        """
        if self._broken:
            raise ConnectionError(self._broken)

    def _raise_if_over(self, stream: Http2Stream) -> None:
        if stream.broken or stream.has_finished:
            raise ConnectionError(stream.broken or "this side of the stream has ended")
        self.raise_if_broken()


def _split(views: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """Split off the first ``count`` bytes of some buffers."""
    first: list[memoryview] = []
    while count:
        view = views[0]
        if len(view) > count:
            first.append(view[:count])
            return first, [view[count:], *views[1:]]
        first.append(view)
        views, count = views[1:], count - len(view)
    return first, views
