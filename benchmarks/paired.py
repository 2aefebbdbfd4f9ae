"""Two checkouts by turns on one machine: what a change makes of every case.

    python -m benchmarks.paired ../before                       # steps and ring; five minutes
    python -m benchmarks.paired ../before --cases 64mb sparse ring --transports shm --rounds 9

Each round runs the same cases in both, one after the other, the other one first every other time;
so both see the same machine. A ratio is new over old, of the medians of one round; quoted is the
median of all. The other checkout needs no installation, only the dependencies of this one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.cases import CASES, SPARSE, SPARSE_TITLES, SYNC_TITLES
from benchmarks.running import TRANSPORTS
from ropewalk.core.settings import GLIBC_TUNABLES

ROOT = Path(__file__).resolve().parent.parent
RING = "ring"
TITLES = {**{case.id: case.title for case in CASES}, **SPARSE_TITLES, **SYNC_TITLES}
TIMEOUT_S = 120
# The part of the benchmarks that every checkout has. One that knows no sparse case gives no figures
# of it.
INNER = """
import json, sys
from benchmarks import step, sync
from benchmarks.cases import pick
case, transport, budget_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
if case == "ring":
    found = {row["case"]: row["median_ms"] for row in sync.ring(transport, budget_s)}
elif case == "sparse":
    try:
        from benchmarks import sparse
        from benchmarks.cases import SPARSE
    except ImportError:
        found = {}
    else:
        found = {k: v.median_ms for k, v in sparse.times(SPARSE, transport, budget_s).items()}
else:
    found = {case: step.time_case(pick([case])[0], transport, budget_s).median_ms}
print(json.dumps(found))
"""

Times = dict[tuple[str, str], list[float]]


def run(checkout: Path, case: str, transport: str, budget_s: float) -> dict[str, float]:
    """Medians of a case in a checkout. Unit: milliseconds."""
    path = os.pathsep.join([str(checkout), str(checkout / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "GLIBC_TUNABLES": GLIBC_TUNABLES}
    environment.pop("TF_CONFIG", None)
    command = [sys.executable, "-c", INNER, case, transport, str(budget_s)]
    done = subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(console: Console, old: Times, new: Times, note: str) -> None:
    """The table."""
    table = Table(title="medians, ms; ratio = new / old", title_justify="left")
    for column in ("case", "", "old", "new", "ratio", "of minima", "least to largest"):
        table.add_column(
            column, justify="left" if column in ("case", "") else "right", no_wrap=True
        )
    for key, times in new.items():
        case, transport = key
        cells = ["–"] * 4
        before = old.get(key, [])
        if before:
            ratios = sorted(mine / theirs for mine, theirs in zip(times, before, strict=True))
            cells = [
                f"{statistics.median(before):.3g}",
                f"{statistics.median(ratios):.2f}",
                f"{min(times) / min(before):.2f}",
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
            ]
        now = f"{statistics.median(times):.3g}"
        table.add_row(TITLES[case], transport, cells[0], now, *cells[1:])
    console.print(table)
    console.print(note)


def main() -> None:
    """Measure by turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="the other checkout")
    names = [*(case.id for case in CASES), SPARSE.id, RING]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=0.5, help="for one case and round")
    arguments = parser.parse_args()
    console = Console(width=max(110, Console().width))
    old: Times = defaultdict(list)
    new: Times = defaultdict(list)
    sides = [(arguments.base.resolve(), old), (ROOT, new)]
    runs = [(case, each) for case in arguments.cases for each in arguments.transports]
    loads = [os.getloadavg()[0]]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rounds", total=arguments.rounds * len(runs) * 2)
        for number in range(arguments.rounds):
            for case, transport in runs:
                for checkout, times in sides if number % 2 else sides[::-1]:
                    for name, ms in run(checkout, case, transport, arguments.budget_s).items():
                        times[name, transport].append(ms)
                    progress.advance(task)
            loads.append(os.getloadavg()[0])
    load = f"load {min(loads):.1f} to {max(loads):.1f} on {len(os.sched_getaffinity(0))} cores"
    show(console, old, new, f"{arguments.rounds} rounds, {load}")


if __name__ == "__main__":
    main()
