"""What working in sync costs: the ring of two processes, an empty step, splitting input.

    python -m benchmarks.sync                     # the table; half a minute
    python -m benchmarks.sync --json results.json
    python -m benchmarks.sync --check             # compares every sum instead of timing it

The two processes of the ring are processes of this machine, which share its memory, and then the
same over gRPC. Quote medians, compare ratios.
"""

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ropewalk as rw
from benchmarks.cases import INPUT_STEP_MS, RING_CASES, SYNC_TITLES, RingCase
from benchmarks.peers.harness import summary
from ropewalk.annexes.ring.group import CollectiveGroup
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.settings import GLIBC_TUNABLES, Settings
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

Json = dict[str, Any]

TRANSPORTS = ("shm", "tcp", "grpc")


# -- the ring --------------------------------------------------------------------------------


def ring_times_ms(
    group: CollectiveGroup, case: RingCase, budget_s: float, *, check: bool
) -> list[float]:
    """What each all-reduce took on this worker; both do equally many."""
    values = np.full(case.elements, group.rank + 1, np.float32)
    expected = np.full(case.elements, 3, np.float32)
    times: list[float] = []
    began = time.perf_counter()
    go_on = np.ones(1, np.int64)
    while go_on[0]:
        for _ in range(5):
            start = time.perf_counter()
            total = group.all_reduce(values)
            times.append((time.perf_counter() - start) * 1000)
            if check:
                np.testing.assert_array_equal(total, expected)
            del total
        go_on = group.broadcast(np.array([time.perf_counter() - began < budget_s], np.int64))
    return times[5:] or times


def work(
    rank: int, ports: list[int], transport: str, budget_s: float, check: bool, report: Connection
) -> None:
    """One of the two workers."""
    spec = ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
    task = ResolvedTask(
        TaskId("worker", rank), spec, TaskId("worker", 0), address=spec.task_address("worker", rank)
    )
    settings = Settings(shared_memory=transport == "shm", tcp_sessions=transport != "grpc")
    group = CollectiveGroup(task, settings, timeout_s=60)
    group.open()
    try:
        for case in RING_CASES:
            times = ring_times_ms(group, case, budget_s, check=check)
            if rank == 0:
                report.send(times)
    finally:
        group.close()


def ring(transport: str, budget_s: float, *, check: bool = False) -> list[Json]:
    """All cases of the ring over one transport."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    ports = free_ports(2)
    processes = [
        context.Process(target=work, args=(i, ports, transport, budget_s, check, theirs))
        for i in range(2)
    ]
    try:
        for process in processes:
            process.start()
        theirs.close()
        system = f"ropewalk {transport}"
        return [{"system": system, **summary(case.id, ours.recv())} for case in RING_CASES]
    finally:
        for process in processes:
            process.join(10)
            process.kill()


# -- strategies ------------------------------------------------------------------------------


def timed_ms(step: Any, budget_s: float) -> list[float]:
    """Each call's time, after a warm-up."""
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while time.perf_counter() < until:
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return times[len(times) // 10 :]


def empty_run(budget_s: float) -> Json:
    """``strategy.run`` of a function that does nothing, on two replicas."""
    strategy = rw.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    times = timed_ms(lambda: strategy.run(lambda: None), budget_s)
    return {"system": "ropewalk", **summary("empty-run", times)}


def input_splitting(budget_s: float) -> list[Json]:
    """A step of 5 ms with a batch that is at hand, and with one of a distributed dataset."""
    strategy = rw.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    images = np.zeros((8192, 28, 28), np.float32)
    labels = np.zeros(8192, np.int64)
    dataset = rw.data.from_arrays((images, labels), 64, epochs=None)
    batches = iter(strategy.experimental_distribute_dataset(dataset))
    one = next(batches)

    def busy(batch: Any) -> None:
        strategy.run(_compute, args=(batch,))

    # By turns, so that both see the same machine.
    without: list[float] = []
    fed: list[float] = []
    until = time.perf_counter() + 2 * budget_s
    while time.perf_counter() < until:
        start = time.perf_counter()
        busy(one)
        middle = time.perf_counter()
        busy(next(batches))
        end = time.perf_counter()
        without.append((middle - start) * 1000)
        fed.append((end - middle) * 1000)
    return [
        {"system": "ropewalk", **summary("step-without-input", without)},
        {"system": "ropewalk", **summary("step-with-input", fed)},
    ]


def _compute(batch: Any) -> None:
    """Half of the machine for the time of a step, in NumPy, which releases the GIL."""
    images, _ = batch
    until = time.perf_counter() + INPUT_STEP_MS / 1000
    while time.perf_counter() < until:
        np.square(images).sum()


# -- the command -----------------------------------------------------------------------------


def show(rows: list[Json]) -> None:
    """The table."""
    table = Table(title="in sync, 2 processes or 2 replicas", title_justify="left")
    for title in ("what", "system", "median ms", "p10", "p90", "times"):
        table.add_column(title, justify="left" if title in ("what", "system") else "right")
    for row in rows:
        figures = (f"{row[key]:.3f}" for key in ("median_ms", "p10_ms", "p90_ms"))
        table.add_row(SYNC_TITLES[row["case"]], row["system"], *figures, str(row["steps"]))
    Console(width=max(100, Console().width)).print(table)


def main() -> None:
    """Measure everything, print the table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--budget-s", type=float, default=3.0, help="time for one case")
    parser.add_argument("--check", action="store_true", help="compare every sum")
    arguments = parser.parse_args()
    os.environ.setdefault("GLIBC_TUNABLES", GLIBC_TUNABLES)
    os.environ.pop("TF_CONFIG", None)
    rw.config.set_logical_cpu_devices(2)
    rows: list[Json] = []
    for transport in TRANSPORTS:
        rows += ring(transport, arguments.budget_s, check=arguments.check)
    rows.append(empty_run(arguments.budget_s))
    rows += input_splitting(arguments.budget_s)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
