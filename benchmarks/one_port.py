"""What a gRPC call costs through a task's one port, beside a gRPC server's own port.

    python -m benchmarks.one_port        # ten seconds

Both servers are in one process, this one calls them by turns. A unary call echoes 64 bytes; a
stream takes 64 MB in messages of 512 KiB, as a tunnel does. The bar for the unary call is a ratio
of 1.25.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc

from benchmarks.pairs import Pair, compare, measure_pair
from windlass.cluster.principal import Principal
from windlass.core.settings import Settings
from windlass.net.channel import open_channel
from windlass.net.listener import Listener
from windlass.net.pass_through import PassThrough
from windlass.net.tcp import listen_tcp, tcp_stream

SERVICE = "benchmark.Echo"
MESSAGE = bytes(64)
CHUNK = bytes(512 * 1024)
CHUNKS = 128


def add(server: grpc.Server) -> None:
    """The service that is measured; its messages are bytes."""

    def count(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        return str(sum(map(len, requests))).encode()

    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        "Count": grpc.stream_unary_rpc_method_handler(count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def serve(ports: Connection) -> None:
    """Both servers; they end with the process."""
    inner = grpc.server(futures.ThreadPoolExecutor(4))
    add(inner)
    pass_through = PassThrough(8)
    pass_through.listen(inner.add_insecure_port)
    inner.start()
    listener = Listener(lambda stream, _: stream.close(), pass_through.accept, 0)
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
    """The ports: gRPC's own, and the one of a task."""
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
    echo: Any = channel.unary_unary(f"/{SERVICE}/Echo")
    count: Any = channel.stream_unary(f"/{SERVICE}/Count")

    def stream() -> None:
        assert int(count(iter([CHUNK] * CHUNKS))) == CHUNKS * len(CHUNK)

    return {"unary call": lambda: echo(MESSAGE), "64 MB in a stream": stream}


def measure(budget_s: float) -> list[Pair]:
    """Each call directly and through the one port."""
    with servers() as ports:
        settings, who = Settings(insecure=True), Principal("worker", index=0)
        channels = [open_channel(f"127.0.0.1:{port}", settings, who) for port in ports]
        direct, through = (calls(channel) for channel in channels)
        pairs = [measure_pair(name, direct[name], through[name], budget_s) for name in direct]
        for channel in channels:
            channel.close()
    return pairs


if __name__ == "__main__":
    compare(measure, "gRPC through the one port, ms", "direct", "one port", __doc__)
