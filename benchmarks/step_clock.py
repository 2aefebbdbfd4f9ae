"""What it costs to measure a step: `python benchmarks/step_clock.py`.

The same step of three parts, with the clock and without it, in turn, by processor time.
"""

import statistics
from time import process_time_ns

from ropewalk.core.step_times import DATA, PUSH, StepClock

_STEPS, _TURNS = 2000, 60


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


def main() -> None:
    """Print the processor time of a step's measuring."""
    clock = StepClock()
    costs = []
    for _ in range(_TURNS):
        begun = process_time_ns()
        _measured(clock)
        between = process_time_ns()
        _bare()
        costs.append((between - begun - (process_time_ns() - between)) / _STEPS / 1e3)
    print(f"{statistics.median(costs):.2f} µs of a step, {min(costs):.2f} at best")


if __name__ == "__main__":
    main()
