"""What our own benchmarks share: ps in processes of their own, a session with them, and timing."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId

TRANSPORTS = ("shm", "tcp", "grpc")


@dataclass(frozen=True)
class Figure:
    """Times of one case. Unit: milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    steps: int


def serve(index: int, ready: Connection, settings: Settings) -> None:
    """A ps in a process of its own."""
    from ropewalk.server.ps.server import PsServer

    server = PsServer(TaskId("ps", index), settings)
    server.start("127.0.0.1:0")
    ready.send(server.port)
    server.wait()
    server.stop()


@contextmanager
def parameter_server(index: int = 0, settings: Settings | None = None) -> Iterator[str]:
    """A ps process; yields its address, ends it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(index, theirs, settings or Settings())
    )
    process.start()
    try:
        yield f"127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join(10)
        process.kill()


@contextmanager
def parameter_servers(count: int) -> Iterator[list[str]]:
    """Some ps processes; yields their addresses, ends them."""
    with ExitStack() as stack:
        yield [stack.enter_context(parameter_server(index)) for index in range(count)]


def settings_of(transport: str) -> Settings:
    """Settings with which a session goes that way."""
    return Settings(shared_memory=transport == "shm", tcp_sessions=transport != "grpc")


@contextmanager
def connected(
    addresses: Sequence[str], transport: str, index: int = 0, settings: Settings | None = None
) -> Iterator[ParameterSession]:
    """A session with the ps at ``addresses``."""
    who = Incarnation(TaskId("worker", index), 1)
    settings = settings or settings_of(transport)
    opened = [
        RemotePs(TaskId("ps", number), address, who, settings)
        for number, address in enumerate(addresses)
    ]
    session = ParameterSession(opened, who, settings)
    session.connect()
    for each in opened:
        assert each.description.split()[0] == transport, each.description
    try:
        yield session
    finally:
        session.close()


def figure_of(times_ms: Sequence[float]) -> Figure:
    """Median and spread of at least two times."""
    p10, *_, p90 = statistics.quantiles(times_ms, n=10)
    return Figure(statistics.median(times_ms), p10, p90, len(times_ms))


def measure(step: Callable[[], object], budget_s: float) -> Figure:
    """As many steps as fit in the budget, at least five, after a warm-up."""
    for _ in range(3):
        step()
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while len(times) < 5 or time.perf_counter() < until:
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1000)
    return figure_of(times)
