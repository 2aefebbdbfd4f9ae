"""A tunnel: the bytes of a connection as messages of one gRPC call, where only HTTP/2 passes.

The call is bidirectional and its messages are plain bytes, not protobuf; their boundaries mean
nothing. Both ends are alike; a client's outgoing messages are the requests of the call, a server's
its responses. Neither end has a thread or a queue for it: the thread that waits for bytes reads the
connection, and large payloads are read into their destination.
"""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from ..cluster.access import Principal
from ..core.errors import RefusedError
from .http2.call import ServedCall, check_answer, request_fields
from .http2.frames import LARGEST_FRAME_BYTES
from .http2.link import Http2Link
from .http2.protocol import Http2Stream, Limits
from .http2.reading import Transport, idle_links
from .stream import Buffer, SocketStream

METHOD = "/ropewalk.proto.v1.Tunnel/Open"
WINDOW_BYTES = 8 * 1024 * 1024  # that may wait to be read; a chunk is far smaller
_ROOM_BYTES = 4096  # in a message beside the chunk; more than enough
_PREFIX = struct.Struct(">BI")
_CLOSE_TIMEOUT_S = 5.0  # a peer that computes reads later

CheckAnswer = Callable[[Http2Stream], None]
"""Raises ConnectionError if the server's answer is not a tunnel, or with the reason of its end."""


class TunnelStream:
    """An end of a tunnel. See :class:`~ropewalk.net.stream.ByteStream`.

    Args:
        link: The connection.
        stream: The call's.
        chunk_bytes: Most bytes in one message.
        check: Checks what the other side has sent about the call.
        finish: Ends this side of the call in order; called once, by :meth:`close`.
        cancel: Ends the call at once; called once, unless it was finished.
        release: Frees what a cancelled call has left; called once, by :meth:`close`.
    """

    description = "grpc"
    is_local = False  # not known: it may go through a proxy
    passes_files = False

    def __init__(
        self,
        link: Http2Link,
        stream: Http2Stream,
        chunk_bytes: int,
        *,
        check: CheckAnswer = lambda _: None,
        finish: Callable[[float], object],
        cancel: Callable[[], object],
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self.principal: Principal | None = None
        self.peer_address = "a tunnel"
        self.on_silence: Callable[[], object] = lambda: None
        self._link = link
        self._stream = stream
        self._chunk_bytes = chunk_bytes
        self._check = check
        self._finish = finish
        self._end = cancel
        self._release = release
        self._piece = memoryview(b"")  # received, and not taken yet
        self._message_left = 0
        self._ahead = 0  # bytes that were sent and not yet reported to the caller
        self._cancelled = False
        self._is_checked = False

    # -- sending -----------------------------------------------------------------------------

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it, unless the other side has ended the call and wants no more."""
        self._raise_if_cancelled()
        view = memoryview(data)[self._ahead :]
        self._ahead = 0
        while view:
            chunk, view = view[: self._chunk_bytes], view[self._chunk_bytes :]
            prefix = _PREFIX.pack(0, len(chunk))
            try:
                with self._failing():
                    self._link.send_data(self._stream, [prefix, chunk], deadline, self._silence)
            except ConnectionError:
                if not self._has_last_words:
                    raise
                return

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as is taken at once, one message at most.

        A message that was begun cannot be taken back: if its end waits for the socket, one byte
        less is reported, so that the caller comes back with the rest.
        """
        self._raise_if_cancelled()
        whole = memoryview(b"".join(buffers))[self._ahead :][: self._chunk_bytes]
        if not whole:
            return 0 if self._link.is_blocked else self._no_longer_ahead()
        room = self._link.state.room_of(self._stream) - _PREFIX.size
        whole = whole[: max(0, room)]
        if not whole:
            return 0
        message = _PREFIX.pack(0, len(whole)) + whole
        try:
            with self._failing():
                if not self._link.send_data_now(self._stream, message):
                    return 0
        except ConnectionError:
            if not self._has_last_words:
                raise
        done = len(whole) + self._no_longer_ahead()
        if self._link.is_blocked:
            self._ahead = 1
        return done - self._ahead

    @property
    def _has_last_words(self) -> bool:
        """Whether the other side has ended the call in order and its last bytes are unread.

        It wants no more then (RFC 9113, 8.1), and these bytes may say why.
        """
        unread = self._piece or self._message_left or self._stream.pieces
        return self._stream.has_ended and bool(unread)

    def _no_longer_ahead(self) -> int:
        ahead, self._ahead = self._ahead, 0
        return ahead

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Refuse."""
        raise RefusedError("files are handed over on a Unix socket, not through a tunnel")

    def take_descriptor(self) -> int:
        """Refuse."""
        raise RefusedError("no file comes through a tunnel")

    # -- receiving ---------------------------------------------------------------------------

    def receive(self, deadline: float) -> bytes:
        """Receive some bytes, of one message."""
        if not self._next_message(deadline):
            return b""
        if not self._piece:
            self._piece = self._take(deadline)
            if not self._piece:
                raise ConnectionError("the call ended inside a message")
        count = min(len(self._piece), self._message_left)
        data, self._piece = bytes(self._piece[:count]), self._piece[count:]
        self._message_left -= count
        return data

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Receive bytes of one message; those that have not come yet are read into ``target``
        directly.
        """
        if not self._next_message(deadline):
            return 0
        target = target[: self._message_left]
        if self._piece:
            count = min(len(target), len(self._piece))
            target[:count] = self._piece[:count]
            self._piece = self._piece[count:]
        else:
            with self._failing():
                count = self._link.take_into(self._stream, target, deadline, self._silence)
            if not count:
                raise ConnectionError("the call ended inside a message")
        self._message_left -= count
        return count

    def _next_message(self, deadline: float) -> bool:
        """Go to the next message that has bytes; False: the call has ended."""
        while not self._message_left:
            while len(self._piece) < _PREFIX.size:
                more = self._take(deadline)
                if not more or not self._is_checked:
                    self._check(self._stream)
                    self._is_checked = True
                if not more:
                    if self._piece:
                        raise ConnectionError("the call ended inside a message")
                    return False
                self._piece = memoryview(b"".join([self._piece, more])) if self._piece else more
            compressed, self._message_left = _PREFIX.unpack_from(self._piece)
            if compressed:
                raise ConnectionError("a message of a tunnel is compressed")
            self._piece = self._piece[_PREFIX.size :]
        return True

    def _take(self, deadline: float) -> memoryview:
        self._raise_if_cancelled()
        with self._failing():
            return self._link.take(self._stream, deadline, self._silence)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Prefer the reason that the server has sent for an end to the socket's error."""
        try:
            yield
        except TimeoutError:
            raise
        except OSError:
            self._check(self._stream)
            raise

    def is_silent(self) -> bool:
        """Return False: it is not known."""
        return False

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def limit_messages(self, num_bytes: int) -> None:
        """Send no longer messages from now on."""
        self._chunk_bytes = min(self._chunk_bytes, max(1, num_bytes - _ROOM_BYTES))

    # -- ending ------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the call."""
        self._cancelled = True
        end, self._end = self._end, _nothing
        end()

    def close(self) -> None:
        """End the call in order; what was sent still arrives, unless it was cancelled."""
        was_cancelled, self._end = self._end is _nothing, _nothing
        finish, self._finish = self._finish, _nothing_until
        if was_cancelled:
            self._release()
            return
        with contextlib.suppress(OSError):
            finish(time.monotonic() + _CLOSE_TIMEOUT_S)

    def _silence(self) -> None:
        self.on_silence()

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise ConnectionError("cancelled")


def _nothing() -> None:
    pass


def _nothing_until(_: float) -> None:
    pass


def open_tunnel(
    stream: Transport,
    authority: str,
    authorization: str,
    chunk_bytes: int,
    deadline: float,
) -> TunnelStream:
    """Open a tunnel over a connection of its own. Whether the server has one shows the first
    receive.

    Args:
        stream: Connected, through TLS if the server requires it; owned from now on.
        authority: host:port that was dialled.
        authorization: Authenticates the caller; empty: nothing does.
        chunk_bytes: Most bytes in one message.
        deadline: Time limit, on the clock of ``time.monotonic``.

    Raises:
        OSError: The connection is broken.
    """
    scheme = "http" if isinstance(stream, SocketStream) else "https"
    link = Http2Link(stream, Limits(frame_bytes=LARGEST_FRAME_BYTES))
    try:
        link.begin()
        call = link.open(
            request_fields(METHOD, scheme, authority, authorization), deadline, WINDOW_BYTES
        )
    except OSError:
        link.close()
        raise
    idle_links.watch(link)

    def finish(until: float) -> None:
        try:
            link.finish(call, until)
        finally:
            idle_links.see_out(link, until)

    return TunnelStream(
        link,
        call,
        chunk_bytes,
        check=check_answer,
        finish=finish,
        cancel=lambda: link.fail("cancelled"),
        release=link.close,
    )


def serve_tunnel(
    call: ServedCall,
    principal: Principal | None,
    chunk_bytes: int,
    handle: Callable[[TunnelStream], None],
    left: Callable[[], None],
) -> None:
    """Serve a tunnel.

    Args:
        call: Admitted, and its answer has begun.
        principal: Principal that calls, if that is known.
        chunk_bytes: Most bytes in one message.
        handle: Called with the tunnel, and owns it; may go on with it when it has returned.
        left: Called once, when no thread reads the connection for this tunnel any more.

    Raises:
        OSError: The connection is broken.
    """
    link = call.link

    def cancel() -> None:
        call.cancel()
        if not link.streams:  # the thread that reads it for this tunnel notices at once
            link.fail("cancelled")
        left()

    def finish(deadline: float) -> None:
        try:
            call.finish_stream(deadline)
        finally:
            left()

    try:
        link.widen(call.stream, WINDOW_BYTES)
    except OSError:
        left()
        raise
    stream = TunnelStream(link, call.stream, chunk_bytes, finish=finish, cancel=cancel)
    stream.principal = principal
    handle(stream)
