"""What the peers' scripts share: arguments, timing, the NumPy reference, and the JSON they print.

Timed is the step alone. With ``--check`` every pulled value is compared with a reference between
the steps, outside the time that counts.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cases import LEARNING_RATE, Case, pick, wants_sparse

Values = Sequence[NDArray[np.float32]]
Step = Callable[[], Values]

MAX_STEPS = 2000
MIN_STEPS = 5
WARM_UP = 3
# Adam's reference is float64, a peer's arithmetic float32: a step moves a value by about 1e-3 and
# rounds it to 2.4e-7 where values reach 4, so that a hundred steps stay under 3e-5.
ADAM_TOLERANCE = 3e-5


def parse(description: str | None) -> argparse.Namespace:
    """The arguments every peer takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cases", default="", help="case ids with commas between; default: all")
    parser.add_argument("--budget-s", type=float, default=4.0, help="time for one case")
    parser.add_argument("--check", action="store_true", help="compare every value with NumPy")
    parser.add_argument("--start", action="store_true", help="only the time to the first step")
    arguments = parser.parse_args()
    arguments.named = bool(arguments.cases)
    names = [each for each in arguments.cases.split(",") if each]
    arguments.cases, arguments.sparse = pick(names), wants_sparse(names)
    return arguments


def end_in_order() -> None:
    """Let SIGTERM unwind the stack, so that what was started is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def starting_values(case: Case) -> list[NDArray[np.float32]]:
    """Random values, the same in every process."""
    return _random(case, seed=1)


def gradients(case: Case) -> list[NDArray[np.float32]]:
    """Random gradients, the same in every process and step."""
    return _random(case, seed=2)


def _random(case: Case, seed: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(case.shape, np.float32) for _ in range(case.count)]


class Reference:
    """What NumPy makes of the same steps: SGD in float32, bit for bit; Adam in float64."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.checked = 0
        self._gradients = gradients(case)
        self._values: list[NDArray[Any]] = list(starting_values(case))
        self._steps = 0
        if case.optimizer == "adam":
            self._values = [value.astype(np.float64) for value in self._values]
            self._momentum = [np.zeros_like(value) for value in self._values]
            self._velocity = [np.zeros_like(value) for value in self._values]

    def advance(self) -> None:
        """Apply the gradients once."""
        self._steps += 1
        if self.case.optimizer == "sgd":
            rate = np.float32(LEARNING_RATE["sgd"])
            for value, gradient in zip(self._values, self._gradients, strict=True):
                np.subtract(value, rate * gradient, out=value)
            return
        t = self._steps
        rate_t = LEARNING_RATE["adam"] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for value, gradient, m, v in zip(
            self._values, self._gradients, self._momentum, self._velocity, strict=True
        ):
            np.add(m, 0.1 * (gradient - m), out=m)
            np.add(v, 0.001 * (np.square(gradient, dtype=np.float64) - v), out=v)
            np.subtract(value, rate_t * m / (np.sqrt(v) + 1e-7), out=value)

    def compare(self, pulled: Values) -> None:
        """Raises AssertionError where a pulled value is not the reference's."""
        assert len(pulled) == self.case.count
        for value, expected in zip(pulled, self._values, strict=True):
            if self.case.optimizer == "sgd":
                np.testing.assert_array_equal(value, expected)
            else:
                np.testing.assert_allclose(value, expected, rtol=0, atol=ADAM_TOLERANCE)
            self.checked += 1


def measure(
    case: Case,
    step: Step,
    *,
    budget_s: float,
    check: bool = False,
    pulls_first: bool = False,
    warm_up: int = WARM_UP,
) -> dict[str, Any]:
    """Time steps for ``budget_s``, at least ``MIN_STEPS``.

    Args:
        case: What the step does.
        step: Does one step on variables that no step has touched; returns every value.
        budget_s: How long to go on, the warm-up not counted.
        check: Compare every value after every step.
        pulls_first: The values returned are those before the step's push.
        warm_up: Steps that are not timed, but checked.
    """
    reference = Reference(case) if check else None
    times: list[float] = []
    until = float("inf")
    while len(times) < MIN_STEPS or (time.perf_counter() < until and len(times) < MAX_STEPS):
        began = time.perf_counter()
        values = step()
        took = time.perf_counter() - began
        if reference:
            if not pulls_first:
                reference.advance()
            reference.compare(values)
            if pulls_first:
                reference.advance()
        del values
        if warm_up:
            warm_up -= 1
            continue
        if not times:
            until = time.perf_counter() + budget_s
        times.append(took)
    milliseconds = [each * 1000 for each in times]
    result = {**summary(case.id, milliseconds), "bytes_both_ways": case.bytes_both_ways}
    if reference:
        result["checked"] = reference.checked
    return result


def summary(case: str, milliseconds: Sequence[float]) -> dict[str, Any]:
    """The figures of a case: median and spread."""
    p10, median, p90 = (float(each) for each in np.percentile(milliseconds, [10, 50, 90]))
    return {
        "case": case,
        "median_ms": median,
        "p10_ms": p10,
        "p90_ms": p90,
        "steps": len(milliseconds),
    }


def not_measured(case: Case, reason: str) -> dict[str, Any]:
    """The result of a case that was left out, and why."""
    empty = dict.fromkeys(("median_ms", "p10_ms", "p90_ms"))
    return {
        "case": case.id,
        "bytes_both_ways": case.bytes_both_ways,
        **empty,
        "steps": 0,
        "reason": reason,
    }


def report(system: str, results: list[dict[str, Any]], start_s: float | None) -> None:
    """Print the one JSON object that a script's standard output is."""
    print(json.dumps({"system": system, "results": results, "start_s": start_s}))
