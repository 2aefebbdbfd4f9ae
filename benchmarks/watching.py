"""What it costs that a job is measured, with nobody looking: `python benchmarks/watching.py`.

By processor time, of which other programs take nothing: the clock of a step, in turn with the same
step without it; a full ring of events with the longest texts; and what the chief of 64 tasks does
with their reports, in a second.
"""

import statistics
import sys
import tracemalloc
from time import process_time_ns

from ropewalk.annexes.insight.window import Window
from ropewalk.cluster.job.members import Member
from ropewalk.core.process import events
from ropewalk.core.report import TaskReport
from ropewalk.core.step_times import DATA, PUSH, StepClock
from ropewalk.core.task import State, TaskId

_STEPS, _TURNS, _TASKS, _LOOKS = 2000, 60, 64, 60
_HEARTBEATS = 2  # in a second


def _measured(clock: StepClock) -> None:
    for _ in range(_STEPS):
        for part in (DATA, PUSH, PUSH):
            began = clock.begin()
            clock.end(part, began)
        clock.step_ended()


def _bare() -> None:
    for _ in range(_STEPS):
        for _part in (DATA, PUSH, PUSH):
            pass


def step_us(clock: StepClock) -> list[float]:
    """Processor time of a step's measuring, of each turn. Unit: microseconds."""
    costs = []
    for _ in range(_TURNS):
        begun = process_time_ns()
        _measured(clock)
        between = process_time_ns()
        _bare()
        costs.append((between - begun - (process_time_ns() - between)) / _STEPS / 1e3)
    return costs


def task_bytes() -> int:
    """Memory of a clock that has measured, and of a ring that is full of the longest texts."""
    tracemalloc.start()
    clock = StepClock()
    _measured(clock)
    for number in range(events.MOST):
        events.record("ps.broken", peer=f"{number:300}", error=f"{number:300}", why=f"{number:300}")
    return tracemalloc.get_traced_memory()[0]


def chief_share(clock: StepClock) -> float:
    """Share of a core that findings about 64 tasks take: a look for every heartbeat, and findings
    once in a second.
    """
    report = TaskReport(steps=_STEPS, step_parts=clock.times().parts)
    members = [
        Member(TaskId("worker", index), 0.0, State.ALIVE, report=report) for index in range(_TASKS)
    ]
    window, begun = Window(), process_time_ns()
    for second in range(_LOOKS):
        for half in range(_HEARTBEATS):
            window.look(members, second + half / _HEARTBEATS)
        window.findings(members, second + 1.0)
    return (process_time_ns() - begun) / 1e9 / _LOOKS


def main() -> None:
    """Print all of it."""
    clock = StepClock()
    costs = step_us(clock)
    median_us = statistics.median(costs)
    print(f"a step: {median_us:.2f} µs, {min(costs):.2f} at best: {median_us / 10:.2f} % of 1 ms")
    print(f"the chief of {_TASKS} tasks: {100 * chief_share(clock):.2f} % of a core")
    print(f"a task: {task_bytes() / 1e6:.1f} MB at most, with {events.MOST} events")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
