"""The same all-reduce with PyTorch's gloo: two processes of this machine, in place.

.venv-peers/bin/python -m benchmarks.peers.torch_gloo
"""

import argparse
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from ..cases import RING_CASES, RingCase
from . import harness


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def times_ms(case: RingCase, budget_s: float, check: bool) -> list[float]:
    """What each all-reduce took on this process; both do equally many."""
    rank = dist.get_rank()
    values = torch.zeros(case.elements)
    times: list[float] = []
    began = time.perf_counter()
    go_on = torch.ones(1)
    while go_on:
        for _ in range(5):
            values.fill_(float(rank + 1))
            start = time.perf_counter()
            dist.all_reduce(values)
            times.append((time.perf_counter() - start) * 1000)
            if check and not bool((values == 3.0).all()):
                raise AssertionError(f"{case.id}: not the sum")
        if time.perf_counter() - began > budget_s:
            go_on.zero_()
        dist.broadcast(go_on, 0)
    return times[5:] or times


def work(rank: int, port: int, budget_s: float, check: bool, report: Connection | None) -> None:
    """One of the two."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        for case in RING_CASES:
            times = times_ms(case, budget_s, check)
            if report is not None:
                report.send(times)
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=4.0, help="time for one case")
    parser.add_argument("--check", action="store_true", help="compare every sum")
    arguments = parser.parse_args()
    harness.end_in_order()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    port = free_port()
    processes = [
        context.Process(
            target=work,
            args=(rank, port, arguments.budget_s, arguments.check, theirs if rank == 0 else None),
            daemon=True,
        )
        for rank in range(2)
    ]
    results: list[dict[str, Any]] = []
    try:
        for process in processes:
            process.start()
        theirs.close()
        results = [harness.summary(case.id, ours.recv()) for case in RING_CASES]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    harness.report(f"gloo (PyTorch {torch.__version__.partition('+')[0]})", results, None)


if __name__ == "__main__":
    main()
