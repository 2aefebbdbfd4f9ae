"""The step of ropewalk beside the same step of TensorFlow and Ray, measured in one run.

Then what works in sync, beside PyTorch's gloo and TensorFlow's MirroredStrategy, and closures of a
coordinator, beside TensorFlow's.

    python -m benchmarks.compare                     # ours and the peers; a few minutes
    python -m benchmarks.compare --json results.json

Every system runs in processes of its own, one system after the other. The peers run from
``.venv-peers`` (`make bench-peers` creates it). One that fails is shown with its last words, not
left out. Quote medians, compare ratios: a ratio is a peer's time over ours, so 2× means that ours
takes half as long.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .cases import CASES, SPARSE, SPARSE_TITLES, SYNC_TITLES

Json = dict[str, Any]

OURS = ("ropewalk shm", "ropewalk tcp", "ropewalk grpc")
COMPARED = OURS[:2]  # gRPC carries steps only where nothing better can
ROOT = Path(__file__).parent.parent
PEERS_PYTHON = Path(".venv-peers/bin/python")
PEERS = {
    "tensorflow": "benchmarks.peers.tensorflow_ps",
    "ray": "benchmarks.peers.ray_ps",
}
COORDINATOR = "benchmarks.peers.tensorflow_coordinator"
IN_SYNC_PEERS = {
    "gloo": "benchmarks.peers.torch_gloo",
    "tensorflow": "benchmarks.peers.tensorflow_mirrored",
}
# A hung system must end: about thirty times what a case is given, for all cases and their set-up.
TIMEOUT_PER_BUDGET = 30
SET_UP_S = 120
GRACE_S = 15


@dataclass(frozen=True)
class Outcome:
    """What a script printed, or why there is nothing."""

    document: Json
    failure: str = ""


def run_script(command: list[str], timeout_s: float) -> Outcome:
    """Run a script that prints one JSON object; a failure is an outcome, not an exception."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        except OSError as error:
            return Outcome({}, f"{command[0]}: {error.strerror}; see `make bench-peers`")
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome({}, f"not finished in {timeout_s:g} s")
        finally:
            end(process)
        errors.seek(0)
        return read_outcome(process.returncode, printed, errors.read())


def end(process: subprocess.Popen[str]) -> None:
    """End a script and, by giving it the time to unwind, what it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def read_outcome(code: int, printed: str, errors: str) -> Outcome:
    """The object on the last line of standard output, or the last line of standard error."""
    lines = printed.strip().splitlines()
    if code == 0 and lines:
        try:
            document = json.loads(lines[-1])
        except ValueError:
            return Outcome({}, f"printed no JSON: {lines[-1][:80]}")
        if isinstance(document, dict) and document.keys() & {"results", "start_s"}:
            return Outcome(document)
        return Outcome({}, "printed JSON without results")
    words = errors.strip().splitlines() or ["it said nothing"]
    return Outcome({}, f"exit code {code}: {words[-1][:160]}")


def limit_s(budget_s: float, systems: int, *, load: float, cores: int) -> float:
    """How long a script is waited for: ours and the peers' alike, longer on a busy machine.

    Args:
        budget_s: Time for one case. Unit: seconds.
        systems: How many the script measures, one after the other.
        load: Processes that want to run now.
        cores: How many can.
    """
    return (SET_UP_S + TIMEOUT_PER_BUDGET * budget_s) * systems * max(1.0, load / cores)


def ours(wait_s: Callable[[int], float]) -> Outcome:
    """Our own figures, by ``python -m benchmarks.step`` and ``python -m benchmarks.start``.

    Args:
        wait_s: Limit for a script that measures so many systems.
    """
    steps = measured("benchmarks.step", wait_s(len(OURS)))
    if steps.failure:
        return steps
    start = measured("benchmarks.start", wait_s(1))
    document = {**steps.document, "start_s": start.document.get("start_s")}
    if start.failure:
        document["start_reason"] = start.failure
    return Outcome(document)


def measured(module: str, timeout_s: float) -> Outcome:
    """What a benchmark of ours writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.json"
        command = [sys.executable, "-m", module, "--json", str(file)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            _, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome({}, f"not finished in {timeout_s:g} s")
        finally:
            end(process)
        printed = " ".join(file.read_text().splitlines()) if file.exists() else ""
        return read_outcome(process.returncode, printed, errors)


def peer(name: str, python: Path, budget_s: float, cases: str, timeout_s: float) -> Outcome:
    """A peer's steps and, in a second run, its start-up."""
    command = [str(python), "-m", PEERS[name]]
    steps = run_script(
        [*command, "--budget-s", str(budget_s), "--cases", cases], timeout_s=timeout_s
    )
    if steps.failure:
        return steps
    start = run_script([*command, "--start"], timeout_s=timeout_s)
    document = {**steps.document, "start_s": start.document.get("start_s")}
    if start.failure:
        document["start_reason"] = start.failure
    return Outcome(document)


def in_sync(python: Path, budget_s: float, timeout_s: float) -> Json:
    """Ours and the peers' figures of :mod:`benchmarks.sync`, and who gave none."""
    outcomes = {"ropewalk": measured("benchmarks.sync", timeout_s)}
    for name, module in IN_SYNC_PEERS.items():
        command = [str(python), "-m", module, "--budget-s", str(budget_s)]
        outcomes[name] = run_script(command, timeout_s)
    rows: list[Json] = []
    failures: Json = {}
    for name, outcome in outcomes.items():
        if outcome.failure:
            failures[f"{name}, in sync"] = outcome.failure
            continue
        system = outcome.document.get("system")
        rows += [{"system": system, **row} for row in outcome.document["results"]]
    return {"results": rows, "failures": failures}


def closures(python: Path, timeout_s: float) -> Json:
    """Closures of our coordinator and of TensorFlow's, with one worker and with two."""
    rows: list[Json] = []
    failures: Json = {}
    mine = measured("benchmarks.closures", timeout_s)
    if mine.failure:
        failures["ropewalk, closures"] = mine.failure
    rows += [{"system": "ropewalk", **row} for row in mine.document.get("results", [])]
    for workers in (1, 2):
        command = [str(python), "-m", COORDINATOR, "--workers", str(workers)]
        outcome = run_script(command, timeout_s)
        if outcome.failure:
            failures[f"tensorflow, closures, {workers} workers"] = outcome.failure
            continue
        system = outcome.document["system"]
        rows += [{"system": system, **row} for row in outcome.document["results"]]
    return {"results": rows, "failures": failures}


def merge(mine: Outcome, peers: dict[str, Outcome]) -> Json:
    """One document of everything: our own, with the peers' rows after ours.

    Every row names its system. ``failures`` has one entry per system that gave no figures,
    ``start_s`` one per system that gave a time.
    """
    document = dict(mine.document)
    rows = [dict(row) for row in mine.document.get("results", [])]
    started: Json = {}
    failures: Json = {}
    if mine.failure:
        failures["ropewalk"] = mine.failure
    if document.get("start_s") is not None:
        started["ropewalk"] = document["start_s"]
    elif reason := document.pop("start_reason", None):
        failures["ropewalk, start"] = reason
    for name, outcome in peers.items():
        if outcome.failure:
            failures[name] = outcome.failure
            continue
        system = outcome.document["system"]
        rows += [{"system": system, **row} for row in outcome.document["results"]]
        if outcome.document.get("start_s") is not None:
            started[system] = outcome.document["start_s"]
        elif reason := outcome.document.get("start_reason"):
            failures[f"{system}, start"] = reason
    return {**document, "results": rows, "start_s": started, "failures": failures}


def systems(document: Json) -> list[str]:
    """The systems that have rows, ours first, the others in the order of their rows.

    Where ours gave no figures its columns are there all the same, and empty.
    """
    seen = dict.fromkeys(row["system"] for row in document["results"])
    if "ropewalk" in document.get("failures", {}):
        seen = dict.fromkeys(COMPARED) | seen
    return [name for name in OURS if name in seen] + [name for name in seen if name not in OURS]


def ratio(theirs: float | None, mine: float | None) -> str:
    """``theirs / mine`` with two digits that count, or a dash where one is missing."""
    if not theirs or not mine:
        return "–"
    value = theirs / mine
    return (
        f"{value:.0f}×" if value >= 9.95 else f"{value:.1f}×" if value >= 0.995 else f"{value:.2f}×"
    )


def milliseconds(value: float | None) -> str:
    """Three digits that count, or a dash."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def table_rows(document: Json) -> tuple[list[str], list[list[str]]]:
    """The column titles and the cells of the comparison.

    A system of ours has one column (ms). A peer's has ms and its ratio to each of ours.
    """
    names = systems(document)
    mine = [name for name in names if name in COMPARED]
    found = {(row["case"], row["system"]): row.get("median_ms") for row in document["results"]}
    short = " / ".join(each.removeprefix("ropewalk ") for each in mine)
    peers = f"ms (to {short})" if mine else "ms"
    titles = ["case", *(f"{name}\n{'ms' if name in OURS else peers}" for name in names)]
    rows = []
    titled = {case.id: case.title for case in CASES}
    titled |= {part: f"{SPARSE.id}: {title}" for part, title in SPARSE_TITLES.items()}
    for case, title in titled.items():
        if not any(case == measured for measured, _ in found):
            continue
        cells = [title]
        for name in names:
            median = found.get((case, name))
            cell = milliseconds(median)
            if name not in OURS and median and mine:
                ratios = " / ".join(ratio(median, found.get((case, each))) for each in mine)
                cell += f" ({ratios})"
            cells.append(cell)
        rows.append(cells)
    return titles, rows


def in_sync_rows(document: Json) -> list[list[str]]:
    """The cells of the second table: what, system, ms, and how often our best time fits in."""
    rows = document.get("in_sync", [])
    best: dict[str, float] = {}
    for row in rows:
        if row["system"].startswith("ropewalk"):
            best[row["case"]] = min(row["median_ms"], best.get(row["case"], float("inf")))
    return [
        [
            title,
            row["system"],
            f"{row['median_ms']:.3f}",
            "" if row["system"].startswith("ropewalk") else ratio(row["median_ms"], best.get(case)),
        ]
        for case, title in SYNC_TITLES.items()
        for row in rows
        if row["case"] == case
    ]


def closure_rows(document: Json) -> list[list[str]]:
    """The cells of the third table: what, workers, ours, theirs, ratio; what both measure."""
    rows = document.get("closures", [])
    mine = {(r["case"], r["workers"]): r["median_ms"] for r in rows if r["system"] == "ropewalk"}
    return [
        [
            row["case"],
            str(row["workers"]),
            f"{mine[key]:.3f}",
            f"{row['median_ms']:.3f}",
            ratio(row["median_ms"], mine[key]),
        ]
        for row in rows
        if row["system"] != "ropewalk" and (key := (row["case"], row["workers"])) in mine
    ]


def remarks(document: Json) -> list[str]:
    """What the table cannot say: limits, start-up times, and what is missing and why."""
    lines = []
    limits = document.get("limits") or {}
    if limits:
        named = (f"{key.removesuffix('_gb_per_s').replace('_', ' ')} {value:.1f}"
                 for key, value in limits.items())  # fmt: skip
        lines.append(f"limits of this machine, GB/s: {', '.join(named)}")
    if started := document.get("start_s"):
        named = (f"{system} {seconds:.1f}" for system, seconds in started.items())
        lines.append(f"from start to the first step, s: {', '.join(named)}")
    lines += [
        f"{row['system']}, {row['case']}: {row['reason']}"
        for row in document["results"]
        if row.get("reason")
    ]
    lines += [f"{name}: no figures: {why}" for name, why in document.get("failures", {}).items()]
    return lines


def show(document: Json, console: Console) -> None:
    """Print the table and what belongs under it."""
    titles, rows = table_rows(document)
    table = Table(title="one step, median; ratio = theirs / ours", title_justify="left")
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index == 0 else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    if cells_in_sync := in_sync_rows(document):
        table = Table(title="in sync, median; ratio = theirs / our best", title_justify="left")
        for title in ("what", "system", "ms", "ratio"):
            table.add_column(title, justify="left" if title in ("what", "system") else "right")
        for cells in cells_in_sync:
            table.add_row(*cells)
        console.print(table)
    if cells_of_closures := closure_rows(document):
        table = Table(title="closures, median ms; ratio = theirs / ours", title_justify="left")
        for title in ("what", "workers", "ropewalk", "tensorflow", "ratio"):
            table.add_column(title, justify="left" if title == "what" else "right")
        for cells in cells_of_closures:
            table.add_row(*cells)
        console.print(table)
    for line in remarks(document):
        console.print(line, markup=False, highlight=False)


def main(words: Sequence[str] | None = None) -> None:
    """Measure everything, print the table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--ours", type=Path, help="figures of an earlier `benchmarks.step --json`")
    parser.add_argument("--show", type=Path, help="measure nothing, show this file of figures")
    parser.add_argument("--cases", default="", help="the peers' cases, with commas; default: all")
    parser.add_argument("--budget-s", type=float, default=4.0, help="the peers' time for one case")
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    arguments = parser.parse_args(words)
    console = Console(width=max(110, Console().width))
    if arguments.show:
        show(json.loads(arguments.show.read_text()), console)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def wait_s(systems: int = 1) -> float:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        return limit_s(arguments.budget_s, systems, load=load, cores=cores)

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    outcomes: dict[str, Outcome] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("ropewalk", total=3 + len(PEERS))
        earlier = arguments.ours
        mine = Outcome(json.loads(earlier.read_text())) if earlier else ours(wait_s)
        for name in PEERS:
            progress.update(task, advance=1, description=name)
            outcomes[name] = peer(
                name, arguments.peers_python, arguments.budget_s, arguments.cases, wait_s()
            )
        progress.update(task, advance=1, description="in sync")
        together = in_sync(arguments.peers_python, arguments.budget_s, wait_s())
        progress.update(task, advance=1, description="closures")
        scheduled = closures(arguments.peers_python, wait_s())
        progress.update(task, advance=1, description="done")
    document = merge(mine, outcomes)
    document["in_sync"] = together["results"]
    document["closures"] = scheduled["results"]
    document["failures"].update(together["failures"] | scheduled["failures"])
    show(document, console)
    if mine.failure:
        sys.exit(f"ropewalk gave no figures, so nothing is written: {mine.failure}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if document["failures"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
