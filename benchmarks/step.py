"""How long a step takes: pull + push of every variable, the update applied, one ps, loopback.

    python -m benchmarks.step                     # the table; a minute
    python -m benchmarks.step --json results.json # and the series behind the plots
    python -m benchmarks.step --check             # compares every step with NumPy, times none

The ps is a process of its own, the worker is this one. Beside the times stand the machine's own
limits, measured in the same run. Quote medians, compare ratios.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import limits, sparse
from benchmarks.cases import CASES, LEARNING_RATE, SPARSE, SPARSE_TITLES, Case, pick, wants_sparse
from benchmarks.running import TRANSPORTS, Figure, connected, measure, parameter_server
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.settings import GLIBC_TUNABLES
from ropewalk.core.wire.steps import Operation

SERIES_TRANSPORTS = ("shm", "tcp")
SERIES_BYTES = [2**n for n in range(10, 27, 2)]
SERIES_VARIABLES = [1, 10, 100, 1000, 10000]
SERIES_WORKERS = [1, 2, 4, 8, 16, 32, 64]
VARIABLES_BYTES = 10000 * 64 * 4
F32 = np.dtype(np.float32)


def rule_of(case: Case) -> UpdateRule:
    """The update rule of a case."""
    rate = LEARNING_RATE[case.optimizer]
    return Adam(learning_rate=rate) if case.optimizer == "adam" else SGD(learning_rate=rate)


def define(session: ParameterSession, case: Case) -> list[str]:
    """Create a case's variables, all ones; returns their names."""
    names = [f"v{i}" for i in range(case.count)]
    definitions = [VariableDefinition(name, case.shape, F32) for name in names]
    start = np.ones(case.shape, np.float32)
    session.define(definitions, dict.fromkeys(names, start), create=True)
    session.bind(names, rule_of(case))
    return names


def gradients_of(case: Case, names: list[str]) -> dict[str, Array]:
    """A gradient in memory of its own for each variable."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(case.shape, np.float32) for name in names}


def time_case(case: Case, transport: str, budget_s: float) -> Figure:
    """A case over one transport."""
    with parameter_server() as address, connected([address], transport) as session:
        names = define(session, case)
        gradients = gradients_of(case, names)
        return measure(
            lambda: session.step(Step([Write(Operation.APPLY, gradients)], names, increment=1)),
            budget_s,
        )


def check_case(case: Case, transport: str, steps: int = 5) -> int:
    """Compare every value of every step with NumPy: exactly for SGD, to 1e-6 for Adam.

    Returns:
        How many arrays were compared.
    """
    compared = 0
    with parameter_server() as address, connected([address], transport) as session:
        names = define(session, case)
        gradients = gradients_of(case, names)
        expected = {name: np.ones(case.shape, np.float32) for name in names}
        first = {name: np.zeros(case.shape) for name in names}
        second = {name: np.zeros(case.shape) for name in names}
        rate = LEARNING_RATE[case.optimizer]
        for step in range(1, steps + 1):
            values = session.step(
                Step([Write(Operation.APPLY, gradients)], names, increment=1)
            ).values
            for name in names:
                g = gradients[name]
                if case.optimizer == "sgd":
                    expected[name] -= np.float32(rate) * g
                    np.testing.assert_array_equal(values[name], expected[name])
                else:
                    first[name] = 0.9 * first[name] + 0.1 * g
                    second[name] = 0.999 * second[name] + 0.001 * g.astype(np.float64) ** 2
                    alpha = rate * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                    update = alpha * first[name] / (np.sqrt(second[name]) + 1e-7)
                    expected[name] = (expected[name] - update).astype(np.float32)
                    np.testing.assert_allclose(values[name], expected[name], rtol=0, atol=1e-6)
                compared += 1
    return compared


# -- many workers ----------------------------------------------------------------------------


def work(address: str, transport: str, first: int, count: int, seconds: float) -> None:
    """Some workers, a thread each, in one process; prints their steps and how long it took."""
    from concurrent.futures import ThreadPoolExecutor

    case = CASES[0]
    names = [f"v{i}" for i in range(case.count)]
    gradients = gradients_of(case, names)

    def one(index: int) -> int:
        with connected([address], transport, index) as session:
            definitions = [VariableDefinition(name, case.shape, F32) for name in names]
            session.define(definitions, {}, create=False)
            session.bind(names, rule_of(case))
            steps, until = 0, time.perf_counter() + seconds
            while time.perf_counter() < until:
                session.step(Step([Write(Operation.APPLY, gradients)], names, increment=1))
                steps += 1
            return steps

    with ThreadPoolExecutor(count) as pool:
        print(sum(pool.map(one, range(first, first + count))))


def steps_per_s(transport: str, workers: int, seconds: float = 2.0) -> float:
    """Small steps of all workers together; they share two processes."""
    with parameter_server() as address, connected([address], transport) as session:
        define(session, CASES[0])
        shares = [workers // 2, workers - workers // 2]
        command = "import sys; from benchmarks.step import work; work(*eval(sys.argv[1]))"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", command, repr((address, transport, 100 * i, n, seconds))],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i, n in enumerate(shares, 1)
            if n
        ]
        try:
            done = [int(process.communicate(timeout=seconds + 60)[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return sum(done) / seconds


# -- the report ------------------------------------------------------------------------------


def series(progress: Progress, budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """Step time against bytes, variables and workers."""
    by_bytes, by_variables, by_workers = [], [], []
    total = len(SERIES_TRANSPORTS) * (
        len(SERIES_BYTES) + len(SERIES_VARIABLES) + len(SERIES_WORKERS)
    )
    task = progress.add_task("series", total=total)
    for transport in SERIES_TRANSPORTS:
        system = f"ropewalk {transport}"
        for size in SERIES_BYTES:
            case = Case("", "", 1, (size // 4,), "sgd")
            figure = time_case(case, transport, budget_s)
            row = {"bytes_both_ways": case.bytes_both_ways, "median_ms": figure.median_ms}
            by_bytes.append({"system": system} | row)
            progress.advance(task)
        for count in SERIES_VARIABLES:
            case = Case("", "", count, (VARIABLES_BYTES // 4 // count,), "sgd")
            figure = time_case(case, transport, budget_s)
            row = {"variables": count, "median_ms": figure.median_ms}
            by_variables.append({"system": system} | row)
            progress.advance(task)
        for workers in SERIES_WORKERS:
            rate = steps_per_s(transport, workers)
            by_workers.append({"system": system, "workers": workers, "steps_per_s": rate})
            progress.advance(task)
    return {"by_bytes": by_bytes, "by_variables": by_variables, "by_workers": by_workers}


def row_of(case: str, transport: str, bytes_both_ways: int, figure: Figure) -> dict[str, Any]:
    """A figure as it stands in JSON."""
    return {
        "system": f"ropewalk {transport}",
        "case": case,
        "bytes_both_ways": bytes_both_ways,
        **asdict(figure),
    }


def show(console: Console, found: dict[str, Any]) -> None:
    """The tables."""
    measured = found["limits"]
    console.print(
        f"This machine: TCP socket {measured['socket_gb_per_s']:.2f} GB/s, Unix socket "
        f"{measured['unix_socket_gb_per_s']:.2f} GB/s, memory copy "
        f"{measured['memory_copy_gb_per_s']:.1f} GB/s"
    )
    table = Table(title="One step: push and pull of every variable", title_justify="left")
    for column in ("case", "shm", "of copy", "TCP", "of socket", "gRPC"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    by_case = {(row["case"], row["system"]): row for row in found["results"]}
    for case in CASES:
        rows = [by_case.get((case.id, f"ropewalk {transport}")) for transport in TRANSPORTS]
        if None in rows:
            continue
        shm, tcp, grpc = (row["median_ms"] for row in rows if row is not None)
        gigabytes = case.bytes_both_ways / 1e6
        table.add_row(
            case.title,
            f"{shm:.2f} ms",
            f"{gigabytes / shm / measured['memory_copy_gb_per_s']:.0%}",
            f"{tcp:.2f} ms",
            f"{gigabytes / tcp / measured['socket_gb_per_s']:.0%}",
            f"{grpc:.2f} ms",
        )
    if table.row_count:
        console.print(table)
    table = Table(title=f"{SPARSE.title}: ms (M rows/s)", title_justify="left")
    for column in ("what", "shm", "TCP", "gRPC"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for part, title in SPARSE_TITLES.items():
        rows = [by_case.get((part, f"ropewalk {transport}")) for transport in TRANSPORTS]
        if None in rows:
            continue
        times = [row["median_ms"] for row in rows if row is not None]
        table.add_row(title, *(f"{each:.2f} ({SPARSE.ids / each / 1e3:.1f})" for each in times))
    if table.row_count:
        console.print(table)


def as_launched() -> None:
    """Begin anew with the environment that ``ropewalk local`` gives its tasks."""
    if "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = GLIBC_TUNABLES
        command = [sys.executable, "-m", "benchmarks.step", *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606


def main() -> None:
    """Measure, print a table, optionally write JSON."""
    as_launched()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the figures, and the series, to this file")
    parser.add_argument("--cases", default="", help="some cases, separated by commas")
    parser.add_argument("--budget-s", type=float, default=2.5, help="per case and transport")
    parser.add_argument("--check", action="store_true", help="compare with NumPy, time nothing")
    arguments = parser.parse_args()
    names = [name for name in arguments.cases.split(",") if name]
    cases, with_sparse = pick(names), wants_sparse(names)
    console = Console(width=max(100, Console().width))
    if arguments.check:
        for case in cases:
            for transport in TRANSPORTS:
                compared = check_case(case, transport)
                console.print(f"{case.title}, {transport}: {compared} arrays as NumPy has them")
        for transport in TRANSPORTS if with_sparse else ():
            compared = sparse.check(SPARSE, transport)
            console.print(f"{SPARSE.title}, {transport}: {compared} arrays as NumPy has them")
        return
    found: dict[str, Any] = {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "limits": limits.measure(),
        "results": [],
    }
    with Progress(console=console, transient=True) as progress:
        total = (len(cases) + with_sparse) * len(TRANSPORTS)
        task = progress.add_task("cases", total=total)
        for case in cases:
            for transport in TRANSPORTS:
                figure = time_case(case, transport, arguments.budget_s)
                found["results"].append(row_of(case.id, transport, case.bytes_both_ways, figure))
                progress.advance(task)
        for transport in TRANSPORTS if with_sparse else ():
            for part, figure in sparse.times(SPARSE, transport, arguments.budget_s).items():
                found["results"].append(row_of(part, transport, SPARSE.bytes_of(part), figure))
            progress.advance(task)
        if arguments.json:
            found |= series(progress, budget_s=1.0)
    show(console, found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
