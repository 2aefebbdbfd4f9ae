"""Times of steps that are compared: they take turns, so that what disturbs one disturbs all."""

import statistics
import time
from collections.abc import Callable, Sequence

Step = Callable[[], object]
_ROUND_S = 0.2


def medians(
    steps: Sequence[Step], wait: Step = lambda: None, *, warm_ups: int = 3, rounds: int = 7
) -> list[float]:
    """Median time of each step, of rounds in which they take turns. Unit: seconds.

    Args:
        steps: Steps to compare.
        wait: Waits until the GPU has done what steps began.
        warm_ups: Steps of each before the first round.
        rounds: Number of rounds, each of some steps.
    """
    counts = []
    for step in steps:
        _time(step, wait, warm_ups)
        counts.append(max(1, min(100, int(_ROUND_S / _time(step, wait, 1)))))
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, count, found in zip(steps, counts, times, strict=True):
            found.append(_time(step, wait, count))
    return [statistics.median(found) for found in times]


def _time(step: Step, wait: Step, count: int) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - start) / count
