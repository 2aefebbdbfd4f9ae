"""Use of its machine by this process, and what is left there: memory, processors, GPUs.

Read from ``/proc`` and the files of its cgroups; what a system does not say is 0. Rates are of the
time between two readings.

Sources: proc(5), ``Documentation/accounting/psi.rst`` and ``admin-guide/cgroup-v2.rst`` of Linux.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..report import GpuUsage, ProcessUsage
from .gpu_usage import own_gpus
from .processes import memory_bytes

_ANEW_S = 1.0
_LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class _Times:
    """Times that grow. Unit: seconds, but of the machine: ticks."""

    at: float
    own_s: float
    total: int = 0
    busy: int = 0
    steal: int = 0


class UsageReader:
    """Reads what this process uses. Thread-safe.

    Args:
        proc: Folder of the system's files of processes.
        cgroups: Folder of its control groups.
        clock: Monotonic clock. Unit: seconds.
        own_s: Returns the processor time of this process. Unit: seconds.
        gpus: Reads the GPUs of this process.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
        own_s: Callable[[], float] = time.process_time,
        gpus: Callable[[], tuple[GpuUsage, ...]] = own_gpus,
    ) -> None:
        self._proc = proc
        self._groups = list(_own_groups(proc, cgroups))
        self._clock = clock
        self._own_s = own_s
        self._gpus = gpus
        self._machine = _machine(proc)
        self._lock = threading.Lock()
        self._before = self._times()
        self._last: ProcessUsage | None = None

    def read(self) -> ProcessUsage:
        """Read it; an answer that is less than a second old is given again."""
        with self._lock:
            if self._last is None or self._clock() - self._before.at >= _ANEW_S:
                self._last = self._read()
            return self._last

    def _read(self) -> ProcessUsage:
        before, now = self._before, self._times()
        self._before = now
        seconds, ticks = now.at - before.at, now.total - before.total
        cpus = os.cpu_count() or 1
        return ProcessUsage(
            memory_bytes=self._resident(),
            memory_limit_bytes=memory_bytes(tuple(self._limit_files())),
            memory_left_bytes=self._left(),
            cpu_s=now.own_s,
            cores=max(0.0, now.own_s - before.own_s) / seconds if seconds > 0 else 0.0,
            machine_cpus=cpus,
            machine_cores=cpus * (now.busy - before.busy) / ticks if ticks > 0 else 0.0,
            steal=(now.steal - before.steal) / ticks if ticks > 0 else 0.0,
            cpu_pressure=self._pressure("cpu"),
            memory_pressure=self._pressure("memory"),
            gpus=self._gpus(),
            machine=self._machine,
        )

    def _times(self) -> _Times:
        first = _text(self._proc / "stat").partition("\n")[0].split()[1:9]
        if len(first) < 8:
            return _Times(self._clock(), self._own_s())
        ticks = [int(each) for each in first]
        idle, wait, steal = ticks[3], ticks[4], ticks[7]
        total = sum(ticks)
        return _Times(self._clock(), self._own_s(), total, total - idle - wait - steal, steal)

    def _resident(self) -> int:
        words = _text(self._proc / "self" / "statm").split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0

    def _pressure(self, of: str) -> float:
        """Return the share of the last minute in which some task of the machine waited for it."""
        words = dict(
            part.split("=", 1)
            for part in _text(self._proc / "pressure" / of).partition("\n")[0].split()[1:]
        )
        return float(words.get("avg60", 0)) / 100

    def _limit_files(self) -> Iterator[Path]:
        return (group / name for group in self._groups for name in _LIMIT_FILES)

    def _left(self) -> int:
        """Return what the machine has free, or a cgroup with a limit, if that is less."""
        left = _counts(self._proc / "meminfo").get("MemAvailable:", 0) * 1024
        for group in self._groups:
            limit, used = (_text(group / f"memory.{name}").strip() for name in ("max", "current"))
            if limit.isdigit() and used.isdigit():
                # Pages of files that were read go before the limit is felt.
                files = _counts(group / "memory.stat").get("inactive_file", 0)
                left = min(left, max(0, int(limit) - int(used) + files))
        return left


def _own_groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of the cgroup of this process and of those that it is in."""
    own = [line[3:] for line in _text(proc / "self" / "cgroup").splitlines() if line[:3] == "0::"]
    path = Path((own or ["/"])[0].lstrip("/"))
    if ".." not in path.parts:
        yield from (cgroups / each for each in (path, *path.parents) if each != Path())
    yield cgroups  # in a container, its own


def _machine(proc: Path) -> str:
    boot = _text(proc / "sys" / "kernel" / "random" / "boot_id")
    return hashlib.sha256(boot.encode()).hexdigest()[:12] if boot else ""


def _counts(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    words = [line.split() for line in _text(path).splitlines()]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
