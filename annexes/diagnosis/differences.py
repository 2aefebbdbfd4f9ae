"""Surroundings of tasks: where they differ, and what is amiss in them. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...launch.screen.status_table import human_bytes, human_time

_CLOCK_S = 1.0
_FILES_SHARE = 0.8
_MEMORY_SHARE = 0.9
_SHM_BYTES = 64 * 1024 * 1024
_DISK_BYTES = 256 * 1024 * 1024
_SLOWER = 4  # times the median of the job's ways
_LATE_S = 0.005  # more than that: less is what a busy machine takes
_FAST_BYTES_PER_S = 100e6
_MOST_REFUSED = 3
_THROTTLED_SHARE = 0.25

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
    return _each(tasks, (_files, _memory, _locked, _shm, _processors, _processes))


def full_disks(tasks: Surroundings) -> str:
    """Name tasks whose model directory has little room; empty: none.

    Args:
        tasks: Surroundings of tasks.
    """
    return _each(tasks, (_disk,))


def refused_callers(events: Iterable[str]) -> str:
    """Name whom a chief has refused last, and why; empty: nobody.

    Args:
        events: Events of the chief, as lines of JSON.
    """
    lines = [json.loads(line) for text in events for line in text.splitlines()]
    refused = [str(each.get("why", "")) for each in lines if each.get("event") == "caller.refused"]
    return "; ".join(dict.fromkeys(refused[-_MOST_REFUSED:]))


# -- Ways between tasks ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """A way from a task to a peer, as the task has measured it."""

    task: str
    peer: str
    round_trip_s: float
    bytes_per_s: float
    error: str

    def __str__(self) -> str:
        return f"{self.task} to {self.peer}"


def slow_links(tasks: Surroundings) -> str:
    """Name ways that are much slower than the others of the job, and those that failed; empty: none
    is.

    Args:
        tasks: Ways of each task, by its short name.
    """
    ways = list(_ways(tasks))
    usual_s = median(each.round_trip_s for each in ways) if ways else 0.0
    usual_bytes = median([each.bytes_per_s for each in ways if each.bytes_per_s] or [0])
    parts = [f"{way}: {way.error}" for way in ways if way.error]
    parts += [
        f"{way}: {human_time(way.round_trip_s)} there and back, usual here {human_time(usual_s)}"
        for way in ways
        if way.round_trip_s > usual_s * _SLOWER + _LATE_S
    ]
    parts += [
        f"{way}: {human_bytes(way.bytes_per_s)}/s, usual here {human_bytes(usual_bytes)}/s"
        for way in ways
        if way.bytes_per_s and way.bytes_per_s * _SLOWER < min(usual_bytes, _FAST_BYTES_PER_S)
    ]
    return "; ".join(parts)


def fine_links(tasks: Surroundings) -> str:
    """Say how good the ways are.

    Args:
        tasks: Ways of each task, by its short name.
    """
    ways = [way for way in _ways(tasks) if not way.error]
    if not ways:
        return "nothing was measured"
    times = [way.round_trip_s for way in ways]
    text = f"{human_time(min(times))} to {human_time(max(times))} there and back"
    rates = [way.bytes_per_s for way in ways if way.bytes_per_s]
    return f"{text}, {human_bytes(min(rates))}/s and more" if rates else text


def _ways(tasks: Surroundings) -> Iterator[_Way]:
    for task, links in tasks.items():
        for peer, link in links.items():
            if isinstance(link, Mapping):  # beside who answers
                round_trip_s = float(link.get("round_trip_s", 0))
                rate, error = float(link.get("bytes_per_s", 0)), str(link.get("error", ""))
                yield _Way(task, peer, round_trip_s, rate, error)


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


def _locked(each: Mapping[str, Any]) -> str:
    used, most = each.get("locked_bytes", 0), each.get("most_locked_bytes", -1)
    if most <= 0 or used <= _MEMORY_SHARE * most:
        return ""
    return f"has locked {human_bytes(used)} of {human_bytes(most)} of memory (ulimit -l)"


def _processors(each: Mapping[str, Any]) -> str:
    counts = each.get("cgroup", {})
    periods, throttled = counts.get("nr_periods", 0), counts.get("nr_throttled", 0)
    if not periods or throttled < _THROTTLED_SHARE * periods:
        return ""
    return (
        f"had to wait for its share of the processors in {throttled / periods:.0%} of the time "
        "(cpu.max of its cgroup)"
    )


def _processes(each: Mapping[str, Any]) -> str:
    counts = each.get("cgroup", {})
    now, most = counts.get("pids.current", 0), counts.get("pids.max", 0)
    if not most or now <= _FILES_SHARE * most:
        return ""
    return f"has {now} of {most} processes and threads (pids.max of its cgroup)"


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
