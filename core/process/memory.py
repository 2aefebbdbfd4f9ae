"""The memory that this process may use: of the machine, or less if its cgroup says so."""

import os
from pathlib import Path

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
