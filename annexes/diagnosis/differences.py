"""Surroundings of tasks: where they differ, and what is amiss in them. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from ...launch.screen.status_table import human_bytes

_CLOCK_S = 1.0
_FILES_SHARE = 0.8
_MEMORY_SHARE = 0.9
_SHM_BYTES = 64 * 1024 * 1024
_DISK_BYTES = 256 * 1024 * 1024

Surroundings = Mapping[str, Mapping[str, Any]]
"""Surroundings of tasks, as they have answered, by short name."""


def other_versions(tasks: Surroundings) -> str:
    """Name versions that are not the same everywhere; empty: they are.

    Args:
        tasks: Surroundings of tasks.
    """
    names = {"python"} | {name for each in tasks.values() for name in each.get("packages", {})}
    parts = list[str]()
    for name in sorted(names):
        of = dict[str, list[str]]()
        for task, each in tasks.items():
            found = each.get("python") if name == "python" else each.get("packages", {}).get(name)
            if found is not None:  # a task loads what it uses
                of.setdefault(str(found), []).append(task)
        if len(of) > 1:
            listed = ", ".join(f"{found} on {' '.join(who)}" for found, who in sorted(of.items()))
            parts.append(f"{name}: {listed}")
    return "; ".join(parts)


def wrong_clocks(tasks: Surroundings, asked: float, heard: float) -> str:
    """Name clocks that are not as here; empty: none is off by more than a second.

    Args:
        tasks: Surroundings of tasks.
        asked: Time here when they were asked. Unit: seconds.
        heard: Time here when all had answered. Unit: seconds.
    """
    parts = list[str]()
    for task, each in tasks.items():
        off_s = max(asked - each["clock"], 0.0) or -max(each["clock"] - heard, 0.0)
        if abs(off_s) > _CLOCK_S:
            parts.append(f"{task} is {abs(off_s):.0f} s {'behind' if off_s > 0 else 'ahead'}")
    return ", ".join(parts)


def reached_limits(tasks: Surroundings) -> str:
    """Name limits that tasks have almost reached; empty: none.

    Args:
        tasks: Surroundings of tasks.
    """
    return _each(tasks, (_files, _memory, _shm))


def full_disks(tasks: Surroundings) -> str:
    """Name tasks whose model directory has little room; empty: none.

    Args:
        tasks: Surroundings of tasks.
    """
    return _each(tasks, (_disk,))


def _each(tasks: Surroundings, judges: tuple[Callable[[Mapping[str, Any]], str], ...]) -> str:
    parts = (f"{task} {text}" for task, each in tasks.items() for judge in judges
             if (text := judge(each)))  # fmt: skip
    return "; ".join(parts)


def _files(each: Mapping[str, Any]) -> str:
    if each["most_files"] < 0 or each["open_files"] <= _FILES_SHARE * each["most_files"]:
        return ""
    return f"has {each['open_files']} of {each['most_files']} files open (ulimit -n)"


def _memory(each: Mapping[str, Any]) -> str:
    if each["peak_memory_bytes"] <= _MEMORY_SHARE * each["memory_bytes"]:
        return ""
    used, most = human_bytes(each["peak_memory_bytes"]), human_bytes(each["memory_bytes"])
    return f"has used {used} of {most} of memory"


def _shm(each: Mapping[str, Any]) -> str:
    free = each.get("shm_free_bytes")
    if free is None or free >= _SHM_BYTES:
        return ""
    return f"has {human_bytes(free)} free in /dev/shm, so that arrays may go through sockets"


def _disk(each: Mapping[str, Any]) -> str:
    free = each.get("model_dir_free_bytes")
    if free is None or free >= _DISK_BYTES:
        return ""
    return f"has {human_bytes(free)} free where the model directory is"
