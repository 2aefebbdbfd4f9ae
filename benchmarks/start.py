"""How long a local cluster takes from the command to the first training step.

    python -m benchmarks.start             # ten starts, half a minute
    python -m benchmarks.start --runs 20 --json results.json

Starts ``ropewalk local`` with a chief, two workers and two ps as real processes, as a user does,
and takes the time until the first of the chief and the workers has finished its first step.
Bytecode and kernel caches are warm: one start comes first and is not counted. Quote medians.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 60.0  # for a start, and then for an end

# Argument: a folder, in which every task leaves the time of each of its stages.
PROGRAM = """\
import sys
import time
from pathlib import Path

import numpy as np

import ropewalk as rw

times = [time.time()]
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros((16, 16), np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)


def step():
    optimizer.apply_gradients([(np.ones((16, 16), np.float32) - w.read_value(), w)])


strategy.run(step)
times.append(time.time())
path = Path(sys.argv[1]) / f"{rw.training.task_type()}-{strategy.task_index}"
path.with_suffix(".part").write_text(" ".join(map(str, times)))
path.with_suffix(".part").rename(path.with_suffix(".times"))
"""

STAGES = ("first task said something", "every ps ready", "first program begins", "first step done")


def start_once() -> dict[str, float]:
    """Seconds from the command's start to each stage, of one cluster."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.py").write_text(PROGRAM)
        command = [
            sys.executable, "-m", "ropewalk.launch.cli", "local", "--chief", "--workers", "2",
            "--ps", "2", "--model-dir", str(folder / "model"), "--plain", str(folder / "tiny.py"),
            "--", name,
        ]  # fmt: skip
        said: list[tuple[float, str]] = []
        began = time.time()
        process = subprocess.Popen(
            command,
            cwd=name,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        reader = threading.Thread(target=_read, args=(process, said), daemon=True)
        reader.start()
        try:
            _wait(
                lambda: list(folder.glob("*.times")) or process.poll() is not None, "a first step"
            )
            _wait(lambda: process.poll() is not None, "the job's end")
            reader.join(5)
        finally:
            _end(process)
        story = "".join(line for _, line in said)
        if process.returncode != 0:
            raise SystemExit(f"the cluster ended with {process.returncode}:\n{story}")
        times = [
            [float(word) for word in path.read_text().split()] for path in folder.glob("*.times")
        ]
        ready = [at for at, line in said if "ready at port" in line]
        stages = (
            said[0][0],
            max(ready),
            min(program for program, _ in times),
            min(step for _, step in times),
        )
        return {stage: at - began for stage, at in zip(STAGES, stages, strict=True)}


def _read(process: subprocess.Popen[str], said: list[tuple[float, str]]) -> None:
    assert process.stdout is not None
    said.extend((time.time(), line) for line in process.stdout)


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {WAIT_S:g} s for {what}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[str]) -> None:
    """End the launcher if it still runs; its tasks notice and leave."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def main() -> None:
    """Measure, print a table, optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="starts that count")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    start_once()
    runs = [start_once() for _ in track(range(arguments.runs), description="starting")]
    table = Table(title="from the command's start to …", title_justify="left")
    for column in ("stage", "median", "least", "most"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in STAGES:
        times = [run[stage] for run in runs]
        figures = (statistics.median(times), min(times), max(times))
        table.add_row(stage, *[f"{figure:.2f} s" for figure in figures])
    Console().print(table)
    if arguments.json:
        steps = [run[STAGES[-1]] for run in runs]
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(
                {"start_s": statistics.median(steps), "runs": steps, "stages": runs}, file, indent=1
            )


if __name__ == "__main__":
    main()
