"""A tunnel: the bytes of a connection as messages of one gRPC call, where only HTTP/2 passes.

The call is bidirectional and its messages are plain bytes: nothing of protobuf is in them, and
their boundaries mean nothing. Both ends are alike; a client's outgoing messages are the requests of
the call, a server's its responses.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from ..cluster.principal import Principal
from ..core import error_table
from ..core.errors import RefusedError, WindlassError
from .stream import LONGEST_WAIT_S, NEVER, Buffer

METHOD = "/windlass.proto.v1.Tunnel/Open"
_ROOM_BYTES = 4096  # of a message beside the chunk, and more than enough
_BACKLOG = 8  # messages that wait for gRPC, or for us
_CLOSE_TIMEOUT_S = 5.0  # a neighbour that computes reads what was sent to it later


_Call = Callable[[], object]


def _nothing() -> None:
    pass


class TunnelStream:
    """One end of a tunnel. See :class:`~windlass.net.stream.ByteStream`.

    gRPC's iterator of messages cannot be waited at for a time, so a thread reads it ahead.

    Args:
        chunk_bytes: Most bytes in one message.
    """

    description = "grpc"
    is_local = False  # not known: it may go through a proxy
    passes_files = False

    def __init__(self, chunk_bytes: int) -> None:
        self.principal: Principal | None = None
        self.peer_address = "a tunnel"
        self._chunk_bytes = chunk_bytes
        self._outgoing = _Messages()
        self._incoming = _Messages()
        self._end_call: Callable[[], object] = _nothing
        self._rest = memoryview(b"")
        self._over = threading.Event()
        self.on_silence: Callable[[], object] = lambda: None

    def attach(self, incoming: Iterator[bytes], end_call: Callable[[], object]) -> None:
        """The call has begun.

        Args:
            incoming: The other end's messages.
            end_call: Cancels the call.
        """
        self._end_call = end_call
        threading.Thread(target=self._pump, args=(incoming,), name="tunnel", daemon=True).start()

    def outgoing(self) -> Iterator[bytes]:
        """This end's messages, for gRPC; in its own thread, which so copies while ours goes on."""
        try:
            while message := self._outgoing.take(NEVER):
                yield message
        except ConnectionError:  # cancelled
            return

    def call_over(self, why: str = "") -> None:
        """The call has ended."""
        self._over.set()
        self._outgoing.cut(why or "the call has ended")

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        view = memoryview(data)
        for start in range(0, len(view), self._chunk_bytes):
            message = bytes(view[start : start + self._chunk_bytes])
            self._outgoing.put(message, deadline, self.on_silence)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the queue takes, a message as large as it may be."""
        whole = b"".join(buffers)[: self._chunk_bytes]
        try:
            self._outgoing.put(whole, 0.0)
        except TimeoutError:
            return 0
        return len(whole)

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Refuse."""
        raise RefusedError("files are handed over on a Unix socket, not through a tunnel")

    def take_descriptor(self) -> int:
        """Refuse."""
        raise RefusedError("no file comes through a tunnel")

    def receive(self, deadline: float) -> bytes:
        """The next message, or what is left of the last one."""
        if self._rest:
            data, self._rest = bytes(self._rest), memoryview(b"")
            return data
        return self._incoming.take(deadline, self.on_silence)

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Bytes of the next message, or of what is left of the last one."""
        if not self._rest:
            self._rest = memoryview(self._incoming.take(deadline, self.on_silence))
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def is_silent(self) -> bool:
        """Not known."""
        return False

    def fileno(self) -> int:
        """There is none."""
        return -1

    def limit_messages(self, num_bytes: int) -> None:
        """Send no longer ones from now on."""
        self._chunk_bytes = min(self._chunk_bytes, max(1, num_bytes - _ROOM_BYTES))

    def cancel(self) -> None:
        """End the call."""
        # First: at the end of its messages gRPC would tell the other end of an orderly close.
        # It knows this stream: without a circle it is freed now, not at some collection of garbage,
        # until which gRPC's server counts it among the calls of its connection.
        end_call, self._end_call = self._end_call, _nothing
        end_call()
        self._incoming.drop("cancelled")
        self._outgoing.drop("cancelled")

    def close(self) -> None:
        """Send what waits, and end the call."""
        self._outgoing.end()
        self._over.wait(_CLOSE_TIMEOUT_S)
        self.cancel()

    def _pump(self, incoming: Iterator[bytes]) -> None:
        try:
            for message in incoming:
                if message:
                    self._incoming.put(message, NEVER)
            self._incoming.end()
        except grpc.RpcError as error:
            self._incoming.cut(_reason(error))
            error.__traceback__ = None  # its call keeps it; see cancel
        except ConnectionError:  # cancelled here
            return
        # Its other end is closed, and takes nothing either.
        self._outgoing.end()


class _Messages:
    """A bounded queue of messages, with an end. Both sides may wait; a cut wakes them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._broken = ""  # why nothing more comes

    def put(self, message: bytes, deadline: float, on_silence: _Call = _nothing) -> None:
        """Add a message.

        Raises:
            TimeoutError: There was no room until the deadline.
            ConnectionError: It has ended, or was cut.
        """
        with self._changed:
            has_room = self._wait_for(
                lambda: len(self._waiting) < _BACKLOG or self._ended or bool(self._broken),
                deadline,
                on_silence,
            )
            if self._broken or self._ended:
                raise ConnectionError(self._broken or "the connection is closed")
            if not has_room:
                raise TimeoutError("timed out")
            self._waiting.append(message)
            self._changed.notify_all()

    def take(self, deadline: float, on_silence: _Call = _nothing) -> bytes:
        """The next message; empty at the end.

        Raises:
            TimeoutError: None came until the deadline.
            ConnectionError: It was cut, and all that came before was taken.
        """
        with self._changed:
            if not self._wait_for(
                lambda: bool(self._waiting or self._ended or self._broken), deadline, on_silence
            ):
                raise TimeoutError("timed out")
            if self._waiting:
                message = self._waiting.popleft()
                self._changed.notify_all()
                return message
            if self._ended:
                return b""
            raise ConnectionError(self._broken)

    def end(self) -> None:
        """No more messages."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def cut(self, why: str) -> None:
        """No more messages, and that was not meant to be."""
        with self._changed:
            self._broken = self._broken or why
            self._changed.notify_all()

    def drop(self, why: str) -> None:
        """The same, and those that wait are not wanted either."""
        with self._changed:
            self._broken, self._ended = self._broken or why, False
            self._waiting.clear()
            self._changed.notify_all()

    def _wait_for(self, there: Callable[[], bool], deadline: float, on_silence: _Call) -> bool:
        """Wait until something is ``there``; False: it was not until the deadline."""
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if self._changed.wait_for(there, min(left_s, LONGEST_WAIT_S)):
                return True
            if left_s <= LONGEST_WAIT_S:
                return False
            on_silence()


def open_tunnel(channel: grpc.Channel, chunk_bytes: int) -> TunnelStream:
    """A tunnel to the server of a channel. Whether it is there shows at the first receive."""
    stream = TunnelStream(chunk_bytes)
    call: Any = _stream_stream(channel)(stream.outgoing())
    stream.attach(call, call.cancel)
    if not call.add_callback(lambda: stream.call_over(call.details())):
        stream.call_over(call.details())
    return stream


def _stream_stream(channel: grpc.Channel) -> Any:
    return channel.stream_stream(METHOD)  # without serializers: messages are bytes


def serve_tunnels(
    server: grpc.Server,
    handle: Callable[[TunnelStream], None],
    chunk_bytes: int,
    admit: Callable[[grpc.ServicerContext], Principal | None] = lambda context: None,  # noqa: ARG005
) -> None:
    """Accept tunnels.

    Args:
        server: Not started yet.
        handle: Called with every tunnel, in a thread of its own; owns it.
        chunk_bytes: Most bytes in one message.
        admit: Lets the caller in, and says who it is if its connection showed that; raises
            WindlassError.
    """

    def accept(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = TunnelStream(chunk_bytes)
        try:
            stream.principal = admit(context)
        except WindlassError as error:
            error_table.abort(context, error)
        stream.attach(requests, context.cancel)
        context.add_callback(stream.call_over)
        threading.Thread(target=handle, args=(stream,), name="tunnel", daemon=True).start()
        yield from stream.outgoing()

    service, _, method = METHOD.strip("/").partition("/")
    handlers: dict[str, Any] = {method: grpc.stream_stream_rpc_method_handler(accept)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _reason(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    text = details() if callable(details) else None
    return str(text or error) or "the call was cancelled"
