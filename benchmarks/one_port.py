"""What a gRPC call costs at a task's one port, beside a server of the library grpcio.

    python -m benchmarks.one_port        # ten seconds

Both servers are in one process, this one calls them by turns, with grpcio's client. A unary call
echoes 64 bytes. (What a tunnel costs is a column of ``benchmarks.step``.)
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc

from benchmarks.pairs import Pair, compare, measure_pair
from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.net.channel import open_channel
from ropewalk.net.http2.peer import Accepted
from ropewalk.net.http2.server import Http2Server
from ropewalk.net.http2.shares import CallPool
from ropewalk.net.listener import Listener
from ropewalk.net.sockets import listen_tcp, tcp_stream

SERVICE = "benchmark.Echo"
PATH = f"/{SERVICE}/Echo"
MESSAGES = {"64 bytes": bytes(64), "1 MB": bytes(1024 * 1024)}
_MOST_BYTES = 2 * 1024 * 1024


def add(server: grpc.Server) -> None:
    """The service that is measured; its messages are bytes."""
    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def serve(ports: Connection) -> None:
    """Both servers; they end with the process."""
    calls = Http2Server(
        {PATH: lambda _: Accepted(lambda request: request)},
        CallPool("calls", 4, 0),
        limit=8,
        most_bytes=_MOST_BYTES,
        idle_s=60.0,
    )
    calls.start()
    listener = Listener(lambda stream, _: stream.close(), calls, 0)
    listening = listen_tcp("127.0.0.1", 0, 8)
    listener.add(listening, tcp_stream)
    listener.start()
    direct = grpc.server(futures.ThreadPoolExecutor(4))
    add(direct)
    port = direct.add_insecure_port("127.0.0.1:0")
    direct.start()
    ports.send((port, listening.getsockname()[1]))
    direct.wait_for_termination()


@contextmanager
def servers() -> Iterator[tuple[int, int]]:
    """The ports: of grpcio's server, and the one of a task."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def calls(channel: grpc.Channel) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    echo: Any = channel.unary_unary(PATH)

    def call(message: bytes) -> Callable[[], object]:
        return lambda: echo(message)

    return {f"call with {name}": call(message) for name, message in MESSAGES.items()}


def measure(budget_s: float) -> list[Pair]:
    """Each call to grpcio's server and to the one port."""
    with servers() as ports:
        settings, who = Settings(insecure=True), Principal("worker", index=0)
        channels = [open_channel(f"127.0.0.1:{port}", settings, who) for port in ports]
        direct, through = (calls(channel) for channel in channels)
        pairs = [measure_pair(name, direct[name], through[name], budget_s) for name in direct]
        for channel in channels:
            channel.close()
    return pairs


if __name__ == "__main__":
    compare(measure, "gRPC at the one port, ms", "grpcio", "one port", __doc__)
