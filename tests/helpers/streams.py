"""Two ends of a byte stream of every kind, in one process."""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import TypeVar

from helpers.tls_files import tls_settings
from helpers.waiting import scaled
from ropewalk.core.settings import Settings
from ropewalk.net.auth.tls_files import credential_files
from ropewalk.net.auth.tls_stream import shake_hands
from ropewalk.net.http2.call import ServedCall
from ropewalk.net.http2.peer import Accepted
from ropewalk.net.http2.server import Http2Server
from ropewalk.net.http2.shares import CallPool
from ropewalk.net.sockets import UnixStream, tcp_stream
from ropewalk.net.stream import ByteStream, SocketStream
from ropewalk.net.tunnel import METHOD, TunnelStream, open_tunnel, serve_tunnel

T = TypeVar("T")
StreamPair = tuple[ByteStream, ByteStream]
KINDS = ["unix", "tcp", "tls", "tunnel"]
_CHUNK_BYTES = 64 * 1024


@contextmanager
def stream_pairs(kind: str) -> Iterator[Callable[[], StreamPair]]:
    """Make pairs of connected streams: one who dialled, one who was called."""
    if kind == "unix":
        yield _unix_pair
    elif kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield lambda: _tcp_pair(listener)
    elif kind == "tls":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield lambda: _tls_pair(*_tcp_pair(listener))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener, _tunnels() as make:
            yield lambda: make(*_tcp_pair(listener))


@contextmanager
def _tunnels() -> Iterator[Callable[[SocketStream, SocketStream], StreamPair]]:
    arrived: queue.SimpleQueue[TunnelStream] = queue.SimpleQueue()

    def accept(call: ServedCall) -> Accepted:
        def serve(left: Callable[[], None]) -> None:
            call.begin_stream([])
            serve_tunnel(call, None, _CHUNK_BYTES, arrived.put, left)

        return Accepted(serve=serve)

    methods = {METHOD: accept}
    server = Http2Server(
        methods, CallPool("test", 1, 0), limit=1000, tunnels=1000, most_bytes=1, idle_s=60.0
    )
    server.start()

    def make(calling: SocketStream, called: SocketStream) -> StreamPair:
        server.accept(called, b"")
        until = time.monotonic() + scaled(10)
        dialled = open_tunnel(calling, "127.0.0.1:1", "", _CHUNK_BYTES, until)
        return dialled, arrived.get(timeout=scaled(10))

    try:
        yield make
    finally:
        server.stop(0)


def _unix_pair() -> StreamPair:
    left, right = socket.socketpair()
    return UnixStream(left), UnixStream(right)


def _tls_pair(calling: SocketStream, called: SocketStream) -> StreamPair:
    files = credential_files(Settings(**tls_settings()), mutual=True)
    now = files.current()
    assert now.client is not None
    assert now.server is not None
    server, client, until = now.server, now.client, time.monotonic() + scaled(10)
    accepted = start(
        lambda: shake_hands(called, server, host=None, peer="the client", deadline=until)
    )
    dialled = shake_hands(calling, client, host="127.0.0.1", peer="the server", deadline=until)
    return dialled, result(accepted)


def _tcp_pair(listener: socket.socket) -> tuple[SocketStream, SocketStream]:
    with closing(socket.socket()) as calling:
        calling.connect(listener.getsockname())
        accepted, _ = listener.accept()
        return tcp_stream(calling.dup()), tcp_stream(accepted)


def start(work: Callable[[], T]) -> "Future[T]":
    """Call something in a thread; the end of the tests does not wait for it."""
    running: Future[T] = Future()

    def run() -> None:
        try:
            running.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the result raises it
            running.set_exception(error)

    threading.Thread(target=run, name="test", daemon=True).start()
    return running


def result(running: "Future[T]", timeout_s: float = 10.0) -> T:
    """What it came to, in time."""
    return running.result(scaled(timeout_s))


def open_descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def own_threads() -> list[str]:
    """Threads that this program started, not gRPC's and not the tests'."""
    names = {"outbox", "tunnel", "grpc", "listen", "session"}
    return [thread.name for thread in threading.enumerate() if thread.name in names]
