"""Memory of this process, and other processes: stopped ones, and orphans."""

import ctypes
import os
from pathlib import Path

# -- The memory that this process may use: of the machine, or less if its cgroup says so -------


_LIMITS = (  # of cgroups, version 2 and 1, as a container sees its own
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_KILLS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Find the memory that this process can have at most. Unit: bytes.

    Args:
        limits: Files that may say less than the machine has.
    """
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text):  # "max": no limit
            bounds.append(int(text))
    return min(bounds)


def out_of_memory_kills(files: tuple[Path, ...] = _KILLS) -> int | None:
    """Count the processes of this container that the kernel has killed for want of memory.

    Args:
        files: Files of cgroups that count them, of which the first that is there is read.

    Returns:
        The number so far; None: the system does not say.
    """
    for path in files:
        try:
            words = path.read_text().split()
        except OSError:
            continue
        counts = dict(zip(words[::2], words[1::2], strict=False))
        if counts.get("oom_kill", "").isdigit():
            return int(counts["oom_kill"])
    return None


# -- Processes that a signal keeps stopped: they neither work nor end --------------------------


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP, or one of its kind, keeps a process from running.

    One that a debugger holds does not count. False if there is no such
    process, or the system does not say.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # The name in parentheses may have any bytes; the state is the word behind it.
    return status.rpartition(b")")[2].split()[:1] == [b"T"]


class StoppedSince:
    """Times since which processes are stopped, as of each look. Used by one thread. Used by one
    thread.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def look(self, pid: int, *, now: float) -> float | None:
        """Look at a process; returns since when it has been found stopped, or None: it is not."""
        if not is_stopped(pid):
            self._since.pop(pid, None)
            return None
        return self._since.setdefault(pid, now)


# -- Processes whose parent has ended ----------------------------------------------------------

_PR_SET_CHILD_SUBREAPER = 36


def inherit_orphans() -> None:
    """Make this process the parent of its orphans from now on, also where it is not the first
    one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
