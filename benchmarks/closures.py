"""What a coordinator costs: an empty closure, a training step, and a large result.

    python -m benchmarks.closures        # half a minute

Starts ``ropewalk local --coordinator`` with one worker and with two, as a user does, and times in
its program. A step is compared with the same step in a loop on the worker; a result of 64 MB with
what a plain socket moves.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import limits
from ropewalk.core.terminal import counted

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120
RESULT_BYTES = 64 * 1024 * 1024

# Argument: the file for its figures. Unit of times: milliseconds.
PROGRAM = """\
import json, statistics, sys, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    weights = [rw.Variable(np.zeros((16, 16), np.float32), name=f"w{n}") for n in range(10)]
optimizer = rw.optimizers.SGD(0.1)
coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)


def empty():
    pass


def step():
    def replica():
        optimizer.apply_gradients([(w.read_value(), w) for w in weights])

    strategy.run(replica)


def loop(count):
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count * 1000


def large():
    return np.zeros(64 * 1024 * 1024, np.uint8)


def one_by_one(function, count):
    began = time.perf_counter()
    for _ in range(count):
        coordinator.schedule(function).fetch()
    return (time.perf_counter() - began) / count * 1000


def queued(function, count):
    began = time.perf_counter()
    for _ in range(count):
        coordinator.schedule(function)
    coordinator.join()
    return (time.perf_counter() - began) / count * 1000


for function in (empty, step, large):
    queued(function, 8)
rounds = [
    {
        "empty, one by one": one_by_one(empty, 500),
        "empty, queued": queued(empty, 2000),
        "step, in a loop on the worker": coordinator.schedule(loop, (300,)).fetch(),
        "step, one by one": one_by_one(step, 300),
        "step, queued": queued(step, 600),
        "64 MB fetched": one_by_one(large, 5),
    }
    for _ in range(5)
]
figures = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
open(sys.argv[1], "w").write(json.dumps(figures))
"""


def measure(workers: int) -> dict[str, float]:
    """Medians of five rounds. Unit: milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        subprocess.run(
            [
                sys.executable, "-m", "ropewalk.launch.cli", "local", "--coordinator", "--workers",
                str(workers), "--ps", "1", "--model-dir", str(folder / "model"), "--plain",
                str(folder / "program.py"), "--", str(folder / "figures"),
            ],
            cwd=name, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        figures: dict[str, float] = json.loads((folder / "figures").read_text())
        return figures


def main() -> None:
    """Measure, print the table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    socket_gb_per_s = limits.measure()["socket_gb_per_s"]
    counts = (1, 2)
    found = [measure(workers) for workers in track(counts, "measuring")]
    table = Table(title="closures, ms", title_justify="left")
    table.add_column("case")
    for workers in counts:
        table.add_column(counted(workers, "worker"), justify="right")
    for case in found[0]:
        table.add_row(case, *(f"{figures[case]:.3f}" for figures in found))
    table.add_row("64 MB through a bare socket", f"{RESULT_BYTES / socket_gb_per_s / 1e6:.3f}", "")
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    if arguments.json is not None:
        rows = [
            {"case": case, "workers": workers, "median_ms": median}
            for workers, figures in zip(counts, found, strict=True)
            for case, median in figures.items()
        ]
        document = {"results": rows}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
