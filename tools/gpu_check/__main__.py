"""``make gpu``: run the rows, show the table, exit with 1 if one failed, 2 if none could look."""

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ropewalk.launch.local.gpus import machines_gpus

from . import __doc__ as about
from .rows import Machine, all_rows, chosen, exit_code
from .running import ROOT, Runner
from .showing import console as showing_console
from .showing import listed, summary, table_of, writer

_MODULES = (
    "cupy", "hypothesis", "jax", "keras", "optax", "pytest", "pytest_timeout", "torch",
)  # fmt: skip
_CARD = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]


def machine_here(played: int) -> Machine:
    """Look what rows have here; ``played`` GPUs of the stand-in, 0: the machine's own."""
    found = {name for name in _MODULES if importlib.util.find_spec(name) is not None}
    if played:
        numbers = tuple(str(number) for number in range(played))
        return Machine(numbers, frozenset(found | {"cupy"}), is_played=True)
    names = machines_gpus()
    # A process has one part of a GPU (MIG) at most.
    divided = any(name.startswith("MIG-") for name in names)
    return Machine(tuple(names[:1] if divided else names), frozenset(found))


def environment_of(played: int) -> dict[str, str]:
    """Collect the variables of the rows' processes."""
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    common = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "KERAS_BACKEND": "jax"}
    own: Mapping[str, str] = {}
    if played:
        paths.append(str(ROOT / "tests" / "helpers" / "strict_cupy"))
        own = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={played}",
        }
    return {**common, **own, "PYTHONPATH": os.pathsep.join(paths)}


def cards() -> list[str]:
    """List names, drivers and memory of the machine's cards; none without ``nvidia-smi``."""
    try:
        said = subprocess.run(_CARD, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return said.splitlines()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAMES", default="", help="sections and rows, a,b")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON lines, as they come")
    parser.add_argument("--list", action="store_true", help="show the rows, and run none")
    parser.add_argument("--stand-in", type=int, default=0, metavar="N", help="play N GPUs")
    parser.add_argument("--beside", type=int, default=0, help="rows at once; 0: by processors")
    parser.add_argument("--budget-s", type=float, default=480.0, help="time for all rows")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows that are asked for; None: by the arguments of the process."""
    options, console = _arguments(words), showing_console()
    try:
        rows = chosen(all_rows(), [name for name in options.rows.split(",") if name])
    except ValueError as error:
        console.print(f"gpu_check: {error}", style="red")
        return 2
    if options.list:
        console.print(listed(rows))
        return 0
    return _run(rows, options, console)


def _run(rows: Any, options: argparse.Namespace, console: Console) -> int:
    machine = machine_here(options.stand_in)
    title = f"the stand-in, {len(machine.gpus)} GPUs" if machine.is_played else "; ".join(cards())
    header = {
        "cards": title,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "gpus": list(machine.gpus),
    }
    runner = Runner(machine, environment_of(options.stand_in), options.budget_s)
    beside = options.beside or min(4, max(1, (os.cpu_count() or 2) // 2))
    results = runner.run(rows, beside, writer(options.json, console, header))
    console.print(table_of(results, title or "no card"))
    console.print(summary(results))
    return exit_code(results)


if __name__ == "__main__":
    # An exception: rows that run are ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
