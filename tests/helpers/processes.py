"""Processes that a test starts: how, which of them run, and which environment each was given."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .fork_server import FAMILY, SERVER, Forked, family
from .waiting import scaled

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_PROCESS_MARK"  # children inherit it, so that none of them can hide
REAL_START = "TEST_REAL_START"  # set: every process is started by executing python
ROPEWALK = [sys.executable, "-u", "-m", "ropewalk.launch.cli"]


def start(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, by a fork unless this test starts processes for real."""
    kind = subprocess.Popen if os.environ.get(REAL_START) else Forked
    return kind(command, **options)


def run(command: Sequence[str | Path], *, timeout_s: float, **options: Any) -> tuple[int, str, str]:
    """Run to the end; exit code, output and errors."""
    with start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return process.returncode, output, errors


def run_workers(
    program: Path, *, workers: int = 2, ps: int = 0, **environment: str
) -> tuple[int, str, str]:
    """Run a program in its folder as a job of workers without a chief, with a thread each."""
    roles = ["--no-chief", "--workers", str(workers), "--ps", str(ps)]
    return run(
        [*ROPEWALK, "local", "--plain", *roles, program],
        timeout_s=scaled(120),
        cwd=program.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Processes that inherited the mark, each with its environment. Zombies have none any more."""
    forked = SERVER.environments()
    found = {pid: each for pid, each in forked.items() if each.get(MARK) == mark}
    # Forks of forks show the server's environment, and are of this test: it is the only one here.
    wanted = {f"{MARK}={mark}".encode(), f"{FAMILY}={family()}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        if pid in forked or pid == SERVER.pid:
            continue
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # not ours, or gone
        if not wanted.isdisjoint(words):
            pairs = (word.decode(errors="replace").partition("=") for word in words if word)
            found[pid] = {name: value for name, _, value in pairs}
    return found


def command_line(pid: int) -> str:
    """For messages."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone"
