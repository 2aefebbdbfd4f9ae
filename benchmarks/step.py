"""How long a step takes: pull + push of every variable, SGD applied, one ps, one worker, loopback.

    python -m benchmarks.step            # about a minute
    python -m benchmarks.step --json results.json

The ps is a process of its own; the worker is this one. Beside each time stand the bytes moved per second and
the machine's own limit for them, a raw TCP socket measured in the same run. Quote medians, compare ratios.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from windlass.client.plans import PushItem
from windlass.client.session import ParameterSession
from windlass.client.transports import open_transport
from windlass.core.arrays import Array
from windlass.core.definitions import VariableDefinition
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD, Adam, UpdateRule
from windlass.distribute.local_ps import LocalTransport
from windlass.server.ps.server import PsServer

CASES: list[tuple[str, int, tuple[int, ...], UpdateRule]] = [
    ("10 × (16, 16), SGD", 10, (16, 16), SGD(learning_rate=0.1)),
    ("4 × (512, 512), SGD", 4, (512, 512), SGD(learning_rate=0.1)),
    ("4 × (4096, 1024), SGD", 4, (4096, 1024), SGD(learning_rate=0.1)),
    ("4 × (4096, 1024), Adam", 4, (4096, 1024), Adam()),
    ("10000 × (64,), SGD", 10000, (64,), SGD(learning_rate=0.1)),
    ("1 × (10000, 64), SGD", 1, (10000, 64), SGD(learning_rate=0.1)),
]
BUDGET_S = 4.0  # per case


def serve(ready: Connection) -> None:
    """A ps in a process of its own."""
    server = PsServer(TaskId("ps", 0), Settings())
    server.start("127.0.0.1:0")
    ready.send(server.port)
    server.wait()
    server.stop()


def step_of(
    session: ParameterSession, count: int, shape: tuple[int, ...], rule: UpdateRule
) -> Callable[[], None]:
    """A function that does one step, checked once against NumPy."""
    names = [f"v{i}" for i in range(count)]
    start = np.ones(shape, np.float32)
    definitions = [VariableDefinition(name, shape, np.dtype(np.float32)) for name in names]
    session.define(definitions, dict.fromkeys(names, start), create=True)
    session.bind(names, rule)
    gradient = np.full(shape, 0.5, np.float32)
    pushes = [PushItem(name, Operation.APPLY, gradient) for name in names]
    first = session.step(pushes, names, step_increment=1).values[names[-1]]
    if isinstance(rule, SGD):
        expected: Array = start - np.float32(0.1) * gradient
        np.testing.assert_array_equal(first, expected)

    def step() -> None:
        session.step(pushes, names, step_increment=1)

    return step


def median_ms(step: Callable[[], None]) -> float:
    """Median over as many steps as fit in the budget, at least five, after a warm-up."""
    for _ in range(3):
        step()
    times = []
    until = time.perf_counter() + BUDGET_S
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 2000):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def served_ms(transport: str, count: int, shape: tuple[int, ...], rule: UpdateRule) -> float:
    """Median over a transport to a ps in a process of its own."""
    who = Incarnation(TaskId("worker", 0), 1)
    settings = Settings(shared_memory=transport == "shm")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()
    try:
        opened = open_transport(TaskId("ps", 0), f"127.0.0.1:{ours.recv()}", who, settings)
        session = ParameterSession([opened], who, settings)
        session.connect()
        result = median_ms(step_of(session, count, shape, rule))
        session.close()
        return result
    finally:
        process.terminate()
        process.join(10)


def socket_gb_per_s(num_bytes: int = 256 * 1024**2) -> float:
    """What a plain TCP connection over loopback moves, one way."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def receive() -> None:
            connection, _ = server.accept()
            with connection:
                buffer = bytearray(1 << 20)
                while connection.recv_into(buffer):
                    pass

        thread = threading.Thread(target=receive)
        thread.start()
        chunk = bytes(1 << 20)
        began = time.perf_counter()
        with socket.create_connection(server.getsockname()) as client:
            for _ in range(num_bytes // len(chunk)):
                client.sendall(chunk)
        thread.join()
        return num_bytes / (time.perf_counter() - began) / 1e9


def main() -> None:
    """Measure, print a table, optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    who = Incarnation(TaskId("worker", 0), 1)
    settings = Settings()
    rows = []
    limit = statistics.median(socket_gb_per_s() for _ in range(3))
    for name, count, shape, rule in track(CASES, description="measuring"):
        num_bytes = 2 * 4 * count * int(np.prod(shape))
        local = ParameterSession([LocalTransport(TaskId("ps", 0), who, settings)], who, settings)
        local_ms = median_ms(step_of(local, count, shape, rule))
        times = {
            transport: served_ms(transport, count, shape, rule) for transport in ("shm", "grpc")
        }
        rows.append(
            {
                "case": name,
                "bytes_both_ways": num_bytes,
                "local_ms": local_ms,
                "shm_ms": times["shm"],
                "grpc_ms": times["grpc"],
                "grpc_gb_per_s": num_bytes / times["grpc"] / 1e6,
            }
        )
    table = Table(
        title=f"one step; a raw TCP socket moves {limit:.2f} GB/s one way", title_justify="left"
    )
    for column in ("case", "bytes", "in process", "shm", "gRPC", "gRPC GB/s", "share of socket"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        speed = float(row["grpc_gb_per_s"])
        table.add_row(
            str(row["case"]),
            f"{row['bytes_both_ways']:,}",
            f"{row['local_ms']:.2f} ms",
            f"{row['shm_ms']:.2f} ms",
            f"{row['grpc_ms']:.2f} ms",
            f"{speed:.2f}",
            f"{speed / limit:.0%}",
        )
    Console().print(table)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"socket_gb_per_s": limit, "cases": rows}, file, indent=1)


if __name__ == "__main__":
    main()
