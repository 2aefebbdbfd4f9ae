"""Keras' ``fit`` with two workers: ours beside TensorFlow's strategies.

    python -m benchmarks.fits                        # after `make bridges-setup` and bench-peers
    python -m benchmarks.fits --json fits.json --rounds 3

Ours runs in ``.venv-bridges``, under ``ropewalk local``; TensorFlow in ``.venv-peers``. The same
model, batch size, batches and optimizer; real processes on loopback; systems take turns, a round
each, and a figure is the median of the rounds. :mod:`benchmarks.fit_model` says what a step is.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .compare import PEERS_PYTHON, ROOT, Outcome, end, milliseconds, ratio, read_outcome, run_script

Json = dict[str, Any]

OURS_PYTHON = Path(".venv-bridges/bin/python")
PEER = "benchmarks.peers.tensorflow_fit"
TIMEOUT_S = 600.0
# name -> (strategy, backend, servers); of peers (strategy, argument of the script)
OURS = {
    "ropewalk, JAX, in sync": ("in sync", "jax", 0),
    "ropewalk, TensorFlow, in sync": ("in sync", "tensorflow", 0),
    "ropewalk, JAX, 2 ps": ("2 ps", "jax", 2),
    "ropewalk, TensorFlow, 2 ps": ("2 ps", "tensorflow", 2),
}
PEERS = {
    "MultiWorkerMirrored, Keras 3": ("in sync", "mirrored-keras"),
    "MultiWorkerMirrored, tf_keras": ("in sync", "mirrored-tf_keras"),
    "ParameterServer, tf_keras": ("2 ps", "ps-tf_keras"),
}
TITLES = {"fit-small": "64 × 64 → 64 → 10", "fit-5ms": "512 × 256 → 768 → 10"}


def ours(python: Path, backend: str, servers: int) -> Outcome:
    """A round of ours: for each case the mean of what the two workers saw."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONPATH": str(ROOT),
        }
        command = [
            str((ROOT / python).absolute()), "-m", "ropewalk", "local", "--plain", "--no-chief",
            "--workers", "2", "--ps", str(servers), "-m", "benchmarks.fit_program",
            f"{folder}/worker",
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except OSError as error:
            return Outcome({}, f"{command[0]}: {error.strerror}; see `make bridges-setup`")
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Outcome({}, f"not finished in {TIMEOUT_S:g} s")
        finally:
            end(process)
        workers = [json.loads(each.read_text()) for each in Path(folder).glob("worker*.json")]
        if process.returncode or len(workers) != 2:
            return read_outcome(process.returncode or 1, "", errors)
        rows = [
            {**first, "median_ms": statistics.mean((first["median_ms"], second["median_ms"]))}
            for first, second in zip(*workers, strict=True)
        ]
        return Outcome({"results": rows})


def rounds(count: int, ours_python: Path, peers_python: Path) -> Iterator[Json]:
    """Every system, by turns; what there is after each of them.

    One that fails is left out of the next rounds, and named.
    """
    taken: dict[tuple[str, str], list[Json]] = {}
    failures: Json = {}
    for _ in range(count):
        for name in [*OURS, *PEERS]:
            if name in failures:
                continue
            if name in OURS:
                _, backend, servers = OURS[name]
                outcome = ours(ours_python, backend, servers)
            else:
                command = [str(peers_python), "-m", PEER, PEERS[name][1]]
                outcome = run_script(command, TIMEOUT_S)
            if outcome.failure:
                failures[name] = outcome.failure
            for row in outcome.document.get("results", []):
                taken.setdefault((name, row["case"]), []).append(row)
            yield {"results": _medians(taken), "failures": failures}


def _medians(taken: dict[tuple[str, str], list[Json]]) -> list[Json]:
    results = []
    for (name, case), rows in taken.items():
        times = [row["median_ms"] for row in rows]
        results.append(
            {
                "system": name,
                "strategy": (OURS | PEERS)[name][0],
                "case": case,
                "median_ms": statistics.median(times),
                "rounds_ms": times,
                "loss": rows[0]["loss"],
            }
        )
    return results


def table_rows(document: Json) -> list[list[str]]:
    """Strategy, case, system, ms, and of peers the ratios to ours on TensorFlow and on JAX."""
    found = {(r["system"], r["case"]): r["median_ms"] for r in document["results"]}
    cells = []
    for strategy in ("in sync", "2 ps"):
        for case, title in TITLES.items():
            for row in document["results"]:
                if (row["strategy"], row["case"]) != (strategy, case):
                    continue
                ratios = (
                    ratio(row["median_ms"], found.get((f"ropewalk, {backend}, {strategy}", case)))
                    for backend in ("TensorFlow", "JAX")
                )
                beside = "" if row["system"] in OURS else " / ".join(ratios)
                cells.append([title, row["system"], milliseconds(row["median_ms"]), beside])
    return cells


def show(document: Json, console: Console) -> None:
    """Print the table, and who gave no figures."""
    table = Table(title="fit, 2 workers: ms of a step; ratio = theirs / ours", title_justify="left")
    for title in ("model", "system", "ms", "ratio (to TensorFlow / JAX)"):
        table.add_column(title, justify="left" if title in ("model", "system") else "right")
    for cells in table_rows(document):
        table.add_row(*cells)
    console.print(table)
    for name, reason in document["failures"].items():
        console.print(f"{name}: no figures: {reason}", markup=False, highlight=False)


def main() -> None:
    """Measure, print, and optionally write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours-python", type=Path, default=OURS_PYTHON)
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    document: Json = {"results": [], "failures": {}}
    for document in rounds(arguments.rounds, arguments.ours_python, arguments.peers_python):
        if arguments.json:
            arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(document, Console(width=max(100, Console().width)))


if __name__ == "__main__":
    main()
