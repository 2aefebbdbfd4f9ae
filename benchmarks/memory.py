"""How much memory a ps takes beyond its variables and their slots.

    python -m benchmarks.memory                        # a minute
    python -m benchmarks.memory --sizes 64 1024 --json results.json

Starts ``ropewalk ps``, a process of its own, defines and initializes variables of 16 MB on it,
binds Adam, takes a few steps with all of them, saves, and after each stage reads what the kernel
says: VmRSS, and VmHWM as the peak of the stage. Shared memory counts in full, also pages that a
worker maps as well. The bound is 1.15 times the bytes of variables and slots, plus 180 MB: Numba
and its first kernel take 100 of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.access import Principal
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.net.this_machine import free_ports

ROOT = Path(__file__).resolve().parent.parent
MB = 1e6
SHAPE = (4096, 1024)  # 16.8 MB of float32
PS = TaskId("ps", 0)
INITIALIZERS = ("random_normal", "truncated_normal", "glorot_uniform", "zeros")


class Watch:
    """The memory of a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.stages: list[dict[str, float | str]] = []

    def wait_until_still(self) -> None:
        """Wait until it has used no processor for two seconds, for a minute at most."""
        quiet, before = 0, -1
        for _ in range(120):
            fields = (self._folder / "stat").read_text().rpartition(") ")[2].split()
            used = int(fields[11]) + int(fields[12])
            quiet = quiet + 1 if used == before else 0
            if quiet == 4:
                return
            before = used
            time.sleep(0.5)

    def stage(self, name: str, held_bytes: int) -> None:
        """Note what it takes now, and the most it took since the last stage."""
        status = dict(
            line.split(":", 1) for line in (self._folder / "status").read_text().splitlines()
        )
        now, peak, shared = (
            int(status[key].split()[0]) * 1024 / MB for key in ("VmRSS", "VmHWM", "RssShmem")
        )
        bound = 1.15 * held_bytes / MB + 180
        self.stages.append(
            {
                "stage": name,
                "held_mb": held_bytes / MB,
                "rss_mb": now,
                "peak_mb": peak,
                "shared_mb": shared,
                "bound_mb": bound,
                "over_held_mb": peak - held_bytes / MB,
            }
        )
        (self._folder / "clear_refs").write_text("5")  # the peak begins anew


def measure(size_mb: int, transport: str) -> list[dict[str, float | str]]:
    """The stages of one ps with about ``size_mb`` of variables."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    cluster = json.dumps({"ps": [address], "chief": ["127.0.0.1:1"]})
    command = [
        sys.executable,
        "-m",
        "ropewalk.launch.cli",
        "ps",
        "--index",
        "0",
        "--cluster",
        cluster,
    ]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*command, "--log-level", "ERROR", "--model-dir", folder],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        try:
            return _stages(process.pid, address, size_mb, transport)
        finally:
            process.kill()
            process.wait(10)


def _stages(pid: int, address: str, size_mb: int, transport: str) -> list[dict[str, float | str]]:
    who = Incarnation(TaskId("worker", 0), 1)
    settings = Settings(
        shared_memory=transport == "shm", tcp_sessions=transport != "grpc", join_timeout_s=30
    )
    session = ParameterSession([RemotePs(PS, address, who, settings)], who, settings)
    session.connect()
    watch = Watch(pid)
    watch.stage("answers", 0)
    count = round(size_mb * MB / 4 / np.prod(SHAPE))
    shapes = [SHAPE] * count or [(16, 16)]
    definitions = [
        VariableDefinition(
            f"v{i}", shape, np.dtype(np.float32), Initializer(INITIALIZERS[i % len(INITIALIZERS)])
        )
        for i, shape in enumerate(shapes)
    ]
    names = [definition.name for definition in definitions]
    values = sum(definition.num_bytes for definition in definitions)
    session.define(definitions, {}, create=True)
    watch.stage("initialized", values)
    session.bind(names, Adam())
    watch.wait_until_still()  # its kernel is loaded meanwhile
    watch.stage("Adam bound", 3 * values)
    gradients = {
        name: np.full(shape, 0.5, np.float32) for name, shape in zip(names, shapes, strict=True)
    }
    for _ in range(3):
        session.step(Step([Write(Operation.APPLY, gradients)], names, increment=1))
    watch.stage("three steps", 3 * values)
    control = PsControl(PS, address, settings, Principal("chief", index=0))
    control.save_shards("ckpt-0000000003", timeout_s=120)
    watch.stage("saved", 3 * values)
    control.close()
    session.close()
    return watch.stages


def main() -> None:
    """Measure, print a table, optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[0, 64, 256], help="MB of variables"
    )
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    table = Table(title="memory of a ps, MB", title_justify="left")
    for column in (
        "variables",
        "transport",
        "stage",
        "held",
        "after",
        "peak",
        "shared",
        "bound",
        "",
    ):
        table.add_column(
            column,
            justify="right" if column in ("held", "after", "peak", "shared", "bound") else "left",
        )
    results = []
    for size in arguments.sizes:
        for transport in ("shm", "tcp"):
            stages = measure(size, transport)
            results.append({"variables_mb": size, "transport": transport, "stages": stages})
            for stage in stages:
                within = float(stage["peak_mb"]) <= float(stage["bound_mb"])
                figures = [
                    f"{float(stage[f'{key}_mb']):.0f}"
                    for key in ("held", "rss", "peak", "shared", "bound")
                ]
                table.add_row(
                    str(size), transport, str(stage["stage"]), *figures, "" if within else "over"
                )
    Console().print(table)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
