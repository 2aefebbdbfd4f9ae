"""Processes of tasks on this machine, looked at from outside: also one that holds its
interpreter.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ...core.outside_text import read_json
from ...core.settings import environment_variables
from .stacks import ThreadStack, parse_dump
from .task_process import SHEET, SIGNAL, STACKS

_PROC = Path("/proc")
_OWN = Path(sys.executable).parent
_MOST_BYTES = 4 * 1024 * 1024
_QUIET_S = 0.05
_PY_SPY_S = 20.0


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """The process of a task.

    Attributes:
        pid: Id of the process.
        task: The task: ``worker:1``.
        chief: Address of the chief, as far as the task was given one.
        threads: Names of threads by identifier.
    """

    pid: int
    task: str
    chief: str
    threads: dict[int, str]


def task_processes() -> list[SeenProcess]:
    """Find the processes of tasks of this user on this machine."""
    numbers = sorted(int(entry) for entry in os.listdir(_PROC) if entry.isdigit())
    found = (task_process(pid) for pid in numbers)
    return [process for process in found if process is not None]


def task_process(pid: int) -> SeenProcess | None:
    """Look at one process; None: it is no task, or not of this user."""
    sheet = _file_of(pid, SHEET)
    if sheet is None or _file_of(pid, STACKS) is None:
        return None
    try:
        about = read_json(sheet.read_bytes()[:_MOST_BYTES])
        names = {int(ident): str(name) for ident, name in about["threads"].items()}
        return SeenProcess(pid, str(about["task"]), str(about["chief"]), names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def stacks_of(process: SeenProcess, wait_s: float = 5.0) -> list[ThreadStack] | None:
    """Have a process write its stacks, and read them; None: it did not within ``wait_s``."""
    text = _dump(process, wait_s)
    return parse_dump(text, process.threads) if text else None


def _dump(process: SeenProcess, wait_s: float) -> str:
    file = _file_of(process.pid, STACKS)
    if file is None or not _catches(process.pid, SIGNAL):
        return ""
    main = [ident for ident, name in process.threads.items() if name == "MainThread"]
    last = f"{main[0]:#018x}" if main else ""  # the oldest thread, which is written last
    with contextlib.suppress(OSError), file.open("r+b") as stream:
        stream.truncate(0)
        os.kill(process.pid, SIGNAL)
        return _read_all(stream.fileno(), last.encode(), wait_s).decode(errors="replace")
    return ""


def _read_all(descriptor: int, last: bytes, wait_s: float) -> bytes:
    """Read what is written from now on, until ``last`` is there and nothing more comes."""
    until, text, since = time.monotonic() + wait_s, b"", time.monotonic()
    while (now := time.monotonic()) < until:
        if text and last in text and now - since > _QUIET_S:
            break
        time.sleep(0.01)
        if (current := os.pread(descriptor, _MOST_BYTES, 0)) != text:
            text, since = current, now
    return text


def _file_of(pid: int, name: str) -> Path | None:
    """Find a file without a name that a process has open."""
    with contextlib.suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            if os.readlink(descriptor).startswith(f"/memfd:{name} "):
                return descriptor
    return None


def _catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal: any other would be ended by it."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _places() -> str:
    """List the folders of programs, and the one of this interpreter, which may not be in PATH."""
    return os.pathsep.join((environment_variables().get("PATH", os.defpath), str(_OWN)))


def native_stacks(pid: int) -> str:
    """Have py-spy write the stacks of a process, those of C as well; or say why there are none."""
    command = shutil.which("py-spy", path=_places())
    if command is None:
        return f"native stacks: install py-spy; `py-spy dump --pid {pid} --native` shows them"
    try:
        done = subprocess.run(
            [command, "dump", "--pid", str(pid), "--native"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"native stacks: {error}"
    return (done.stdout if done.returncode == 0 else f"native stacks: {done.stderr}")[:_MOST_BYTES]
