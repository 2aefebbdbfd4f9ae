"""A tunnel: the bytes of a connection as messages of one gRPC call, where only HTTP/2 passes.

The call is bidirectional and its messages are plain bytes: nothing of protobuf is in them, and their
boundaries mean nothing. Both ends are alike; a client's outgoing messages are the requests of the
call, a server's its responses.
"""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from ..core.errors import RefusedError
from .stream import NEVER, Buffer

METHOD = "/windlass.proto.v1.Tunnel/Open"
_BACKLOG = 8  # messages that wait for gRPC
_LOOK_S = 0.1
_CLOSE_TIMEOUT_S = 1.0


class TunnelStream:
    """One end of a tunnel. See :class:`~windlass.net.stream.ByteStream`.

    Args:
        chunk_bytes: Most bytes in one message; may be lowered.
    """

    description = "grpc"
    is_local = False  # not known: it may go through a proxy
    passes_files = False

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(_BACKLOG)
        self._incoming: Iterator[bytes] = iter(())
        self._end_call: Callable[[], object] = lambda: None
        self._rest = memoryview(b"")
        self._over = threading.Event()
        self._expired = False
        self.deadline = NEVER
        _watch(self)

    def attach(self, incoming: Iterator[bytes], end_call: Callable[[], object]) -> None:
        """The call has begun.

        Args:
            incoming: The other end's messages.
            end_call: Cancels the call.
        """
        self._incoming, self._end_call = incoming, end_call

    def outgoing(self) -> Iterator[bytes]:
        """This end's messages, for gRPC; in its own thread, which so copies while ours goes on."""
        while True:
            try:
                message = self._outgoing.get(timeout=1.0)
            except queue.Empty:
                if self._over.is_set():
                    return
                continue
            if message is None:
                return
            yield message

    def call_over(self) -> None:
        """The call has ended."""
        self._over.set()

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        view = memoryview(data)
        for start in range(0, len(view), self.chunk_bytes):
            self._put(bytes(view[start : start + self.chunk_bytes]), deadline)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the queue takes, a message as large as it may be."""
        whole = b"".join(buffers)[: self.chunk_bytes]
        if self._over.is_set():
            raise ConnectionError("the call has ended")
        try:
            self._outgoing.put_nowait(whole)
        except queue.Full:
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
        return self._next(deadline)

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Bytes of the next message, or of what is left of the last one."""
        if not self._rest:
            self._rest = memoryview(self._next(deadline))
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

    def cancel(self) -> None:
        """End the call."""
        self._over.set()
        self._end_call()

    def close(self) -> None:
        """Send what waits, and end the call."""
        with contextlib.suppress(queue.Full):
            self._outgoing.put(None, timeout=0 if self._over.is_set() else _CLOSE_TIMEOUT_S)
            self._over.wait(_CLOSE_TIMEOUT_S)
        self.cancel()

    def expire(self, now: float) -> None:
        """End a call that is past its deadline."""
        if now > self.deadline:
            self._expired = True
            self.cancel()

    def _put(self, message: bytes, deadline: float) -> None:
        while not self._over.is_set():
            try:
                self._outgoing.put(message, timeout=_LOOK_S)
            except queue.Full:
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out") from None
                continue
            return
        raise ConnectionError("the call has ended")

    def _next(self, deadline: float) -> bytes:
        self.deadline = deadline
        try:
            return next(self._incoming, b"")
        except grpc.RpcError as error:
            if self._expired:
                raise TimeoutError("timed out") from error
            raise ConnectionError(_reason(error)) from error
        finally:
            self.deadline = NEVER


def open_tunnel(channel: grpc.Channel, chunk_bytes: int) -> TunnelStream:
    """A tunnel to the server of a channel. Whether it is there shows at the first receive."""
    stream = TunnelStream(chunk_bytes)
    call: Any = _stream_stream(channel)(stream.outgoing())
    stream.attach(call, call.cancel)
    if not call.add_callback(stream.call_over):
        stream.call_over()
    return stream


def _stream_stream(channel: grpc.Channel) -> Any:
    return channel.stream_stream(METHOD)  # without serializers: messages are bytes


def serve_tunnels(
    server: grpc.Server, handle: Callable[[TunnelStream], None], chunk_bytes: int
) -> None:
    """Accept tunnels.

    Args:
        server: Not started yet.
        handle: Called with every tunnel, in a thread of its own; owns it.
        chunk_bytes: Most bytes in one message.
    """

    def accept(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = TunnelStream(chunk_bytes)
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
    return str(text or error)


# gRPC's iterators wait for ever: one thread ends calls that are past their deadline.

_WATCH_S = 0.25
_lock = threading.Lock()
_watched: "weakref.WeakSet[TunnelStream]" = weakref.WeakSet()
_watcher: list[threading.Thread] = []


def _watch(stream: TunnelStream) -> None:
    with _lock:
        _watched.add(stream)
        if not _watcher or not _watcher[0].is_alive():
            _watcher[:] = [threading.Thread(target=_look, name="tunnel-deadlines", daemon=True)]
            _watcher[0].start()


def _look() -> None:
    pause = threading.Event()
    while True:
        pause.wait(_WATCH_S)
        now = time.monotonic()
        with _lock:
            if not _watched:
                _watcher.clear()
                return
            streams = list(_watched)
        for stream in streams:
            stream.expire(now)
        del streams
