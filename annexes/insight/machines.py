"""Conclusions about machines: memory that will not last, and other programs at work. Pure.

Memory is concluded from about three minutes: a task that loads its data grows, and stops. Growth
counts if it is as fast in the second half as in the first, within a factor of two. Others on a
machine are concluded from two moments in a row, since a compiler runs for some seconds, too; the
processors that the job's own tasks keep busy there are taken off.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...core.report import Finding, ProcessUsage
from ...core.task import TaskId

LEAST_S = 60.0
"""Time from which growth is concluded. Unit: seconds."""
_SOON_S = 3600.0
_LEAST_GROWTH = 2**20 / 60  # bytes a second: less is noise
_STEADY = 0.5  # of the growth in the other half
_STOLEN = 0.1
_WAITS = 0.25  # of a minute, for a processor
_WAITS_FOR_MEMORY = 0.1
_OTHERS = 0.25  # of the processors of a machine
_ALL_BUSY = 0.95  # where the system tells no pressure
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Used:
    """The use of machines by a job's tasks at one time.

    Attributes:
        at: Time on the job's clock. Unit: seconds.
        by: Use by each task that has told it.
    """

    at: float
    by: Mapping[TaskId, ProcessUsage]


# -- Memory that will not last -------------------------------------------------------------------


def memory_that_runs_out(moments: Sequence[Used]) -> Iterator[Finding]:
    """Find tasks whose memory grows steadily and will be full within an hour.

    Args:
        moments: Moments of a while, the oldest first.
    """
    if len(moments) < 3 or moments[-1].at - moments[0].at < LEAST_S:
        return
    first, middle, last = moments[0], moments[len(moments) // 2], moments[-1]
    growth = {task: _growth(task, first, middle, last) for task in last.by}
    for task, usage in last.by.items():
        together = sum(growth[each] for each in _beside(task, last))
        if growth[task] < _LEAST_GROWTH or not usage.memory_limit_bytes:
            continue
        full_s = usage.memory_left_bytes / together
        if full_s <= _SOON_S:
            yield _runs_out(task, usage, growth[task], full_s)


def _growth(task: TaskId, *moments: Used) -> float:
    """Return the growth of a task that is steady. Unit: bytes a second; 0: it is not."""
    if any(task not in each.by for each in moments):
        return 0.0
    first, middle, last = moments
    halves = [_rate(task, first, middle), _rate(task, middle, last)]
    if min(halves) <= 0 or min(halves) < _STEADY * max(halves):
        return 0.0
    return _rate(task, first, last)


def _rate(task: TaskId, before: Used, now: Used) -> float:
    grown = now.by[task].memory_bytes - before.by[task].memory_bytes
    return grown / max(now.at - before.at, 1e-9)


def _beside(task: TaskId, now: Used) -> Iterator[TaskId]:
    """Yield the tasks that share the memory of one: those of its machine with the same limit."""
    own = now.by[task]
    for other, usage in now.by.items():
        is_near = bool(own.machine) and usage.machine == own.machine
        if other == task or (is_near and usage.memory_limit_bytes == own.memory_limit_bytes):
            yield other


def _runs_out(task: TaskId, usage: ProcessUsage, growth: float, full_s: float) -> Finding:
    used, most = usage.memory_bytes, usage.memory_limit_bytes
    return Finding(
        "memory",
        task.short,
        f"{task.short}: {used / _GIB:.1f} of {most / _GIB:.1f} GiB, "
        f"+{growth * 60 / _MIB:.0f} MiB a minute: full in {_duration(full_s)}",
        {"memory_bytes": used, "bytes_per_s": growth, "full_in_s": full_s},
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# -- Machines that others use --------------------------------------------------------------------


def shared_machines(before: Used, now: Used) -> Iterator[Finding]:
    """Find machines on which something else takes processors or memory, in two moments.

    Args:
        before: The moment before.
        now: The last moment.
    """
    earlier = {machine: list(_of_others(tasks, before)) for machine, tasks in _machines(before)}
    for machine, tasks in _machines(now):
        kinds = {each.kind for each in earlier.get(machine, ())}
        yield from (each for each in _of_others(tasks, now) if each.kind in kinds)


def _machines(used: Used) -> Iterator[tuple[str, list[TaskId]]]:
    """Yield each machine with the job's tasks there; one that is not known is its task's own."""
    by_machine = sorted(used.by, key=lambda task: (used.by[task].machine or task.short, task))
    for machine, tasks in groupby(by_machine, key=lambda each: used.by[each].machine or each.short):
        yield machine, list(tasks)


def _of_others(tasks: Iterable[TaskId], used: Used) -> Iterator[Finding]:
    usages = {task: used.by[task] for task in tasks}
    first, usage = next(iter(usages.items()))
    named = ", ".join(task.short for task in list(usages)[:4]) + (", …" if len(usages) > 4 else "")
    if usage.steal >= _STOLEN:
        text = f"{usage.steal:.0%} of processor time goes to other virtual machines (steal)"
        yield Finding("steal", first.short, f"machine of {named}: {text}", {"steal": usage.steal})
    others = usage.machine_cores - sum(each.cores for each in usages.values())
    if others >= _OTHERS * max(1, usage.machine_cpus) and _is_short(usage):
        yield Finding(
            "shared_machine",
            first.short,
            f"machine of {named}: other programs keep {others:.1f} of its {usage.machine_cpus} "
            f"processors busy{_waiting(usage)}",
            {"others_cores": others, "cpu_pressure": usage.cpu_pressure},
        )
    if usage.memory_pressure >= _WAITS_FOR_MEMORY:
        yield Finding(
            "memory_pressure",
            first.short,
            f"machine of {named}: something waited for memory in {usage.memory_pressure:.0%} of "
            "the last minute",
            {"memory_pressure": usage.memory_pressure},
        )


def _is_short(usage: ProcessUsage) -> bool:
    """Return whether something has to wait for a processor."""
    return usage.cpu_pressure >= _WAITS or usage.machine_cores >= _ALL_BUSY * usage.machine_cpus


def _waiting(usage: ProcessUsage) -> str:
    share = usage.cpu_pressure
    return f", and something waited for one in {share:.0%} of the last minute" if share else ""
