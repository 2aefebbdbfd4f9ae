"""What a standing cluster costs: from ``ropewalk submit`` to the first line, and a large result.

    python -m benchmarks.standalone        # a minute

Starts ``ropewalk local --standalone`` and uses it as a driver does. A result of 64 MB comes through
the gateway; over TCP alone too, as from another machine, and beside it is what a bare socket moves.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import limits

ROOT = Path(__file__).resolve().parent.parent
ROPEWALK = [sys.executable, "-m", "ropewalk.launch.cli"]
TIMEOUT_S = 120
RESULT_BYTES = 64 * 1024 * 1024
SUBMISSIONS = 7
_SPARE_S = 6.0  # until each node has a spare process again

FIRST_LINE = "import time\nprint('at', time.time(), flush=True)\n"

# Arguments: the cluster, and the file for its figures. Unit of times: milliseconds.
CONNECTED = """\
import json, statistics, sys, time
import numpy as np
import ropewalk as rw

began = time.perf_counter()
with rw.connect(sys.argv[1], workers=1) as cluster:
    strategy = rw.distribute.ParameterServerStrategy(cluster.resolver)
    coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)
    figures = {"connected": (time.perf_counter() - began) * 1000}

    def large():
        return np.zeros(64 * 1024 * 1024, np.uint8)

    def timed(function, count):
        began = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(function).fetch()
        return (time.perf_counter() - began) / count * 1000

    def empty():
        pass

    for function, count in ((empty, 500), (large, 5)):
        timed(function, 5)
        times = [timed(function, count) for _ in range(5)]
        figures[f"{function.__name__} closure"] = statistics.median(times)
open(sys.argv[2], "w").write(json.dumps(figures))
"""


@contextmanager
def standing(folder: Path) -> Iterator[str]:
    """The address of a standing cluster with one ps and one worker."""
    log = folder / "cluster.txt"
    with log.open("w") as output:
        cluster = subprocess.Popen(
            [*ROPEWALK, "local", "--standalone", "--ps", "1", "--workers", "1"],
            cwd=folder, env=environment(), stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(r"cluster is at (\S+);", log.read_text())):
            if time.monotonic() > deadline or cluster.poll() is not None:
                raise RuntimeError(f"the cluster did not start: {log.read_text()}")
            time.sleep(0.05)
        time.sleep(_SPARE_S)
        yield found[1]
    finally:
        cluster.terminate()
        cluster.wait(TIMEOUT_S)


def environment(**changes: str) -> dict[str, str]:
    """Of everything that is started."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **changes}


def first_line_ms(address: str, folder: Path) -> float:
    """From the start of ``ropewalk submit`` to the first line of the program. Unit: ms."""
    (folder / "program.py").write_text(FIRST_LINE)
    began = time.time()
    done = subprocess.run(
        [*ROPEWALK, "submit", "program.py", "--cluster", address, "--workers", "0"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=True,
    )  # fmt: skip
    found = re.search(r"at ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"the program printed nothing: {done.stdout}{done.stderr}")
    time.sleep(_SPARE_S)
    return (float(found[1]) - began) * 1000


def connected(address: str, folder: Path, **changes: str) -> dict[str, float]:
    """Figures of a program that is connected. Unit: ms."""
    (folder / "connected.py").write_text(CONNECTED)
    subprocess.run(
        [sys.executable, "connected.py", address, "figures"],
        cwd=folder, env=environment(**changes), capture_output=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads((folder / "figures").read_text())
    return figures


def main() -> None:
    """Measure, print the table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with standing(folder) as address:
            lines = [
                first_line_ms(address, folder)
                for _ in track(range(SUBMISSIONS), "submitting", console=Console(stderr=True))
            ]
            here = connected(address, folder)
            time.sleep(_SPARE_S)
            # Without Unix sockets of one machine: all of it goes through the gateway.
            away = connected(address, folder, ROPEWALK_SHARED_MEMORY="0")
    figures = {
        "submit to the first line": statistics.median(lines),
        "slowest of them": max(lines),
        **{f"{case}, on one machine": ms for case, ms in here.items()},
        **{f"{case}, through the gateway": ms for case, ms in away.items()},
        "64 MB through a bare socket": RESULT_BYTES / limits.measure()["socket_gb_per_s"] / 1e6,
    }
    table = Table(title="a standing cluster, ms", title_justify="left")
    table.add_column("case")
    table.add_column("median", justify="right")
    for case, ms in figures.items():
        table.add_row(case, f"{ms:.3f}")
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
