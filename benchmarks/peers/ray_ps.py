"""The same step with Ray: an actor as parameter server, NumPy in place, Ray's object store between.

    .venv-peers/bin/python -m benchmarks.peers.ray_ps

The driver is the worker: it hands the gradients to the actor's method and gets the new values. Two
ways are tried in every case, and the faster is measured and named in the result: the gradients as a
list argument (which Ray inlines or stores by itself) and as one object of ``ray.put``. One argument
and one returned object per variable was tried too: slower for small values (2.7 against 1.9 ms) and
no faster at 64 MB.

Loopback only, no dashboard, no usage statistics; Ray is shut down whatever happens.
"""

import os

# Read when ray is imported. The second, despite its name, keeps every port of a local Ray on
# loopback.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from ..cases import LEARNING_RATE, Case, pick
from . import harness

Arrays = list[NDArray[np.float32]]


class ParameterServer:
    """Variables, and SGD or Adam applied to them in place, without an allocation per step."""

    def __init__(self, case: Case) -> None:
        self.values = harness.starting_values(case)
        self.optimizer = case.optimizer
        self.scratch = np.empty(case.shape, np.float32)
        self.steps = 0
        if self.optimizer == "adam":
            self.momentum = [np.zeros_like(value) for value in self.values]
            self.velocity = [np.zeros_like(value) for value in self.values]

    def step(self, gradients: Arrays) -> Arrays:
        """Apply the gradients; the new values."""
        self.steps += 1
        apply = self._sgd if self.optimizer == "sgd" else self._adam
        for index, gradient in enumerate(gradients):
            apply(index, gradient)
        return self.values

    def _sgd(self, index: int, gradient: NDArray[np.float32]) -> None:
        np.multiply(gradient, np.float32(LEARNING_RATE["sgd"]), out=self.scratch)
        self.values[index] -= self.scratch

    def _adam(self, index: int, gradient: NDArray[np.float32]) -> None:
        scratch, m, v = self.scratch, self.momentum[index], self.velocity[index]
        t = self.steps
        rate = LEARNING_RATE["adam"] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        np.subtract(gradient, m, out=scratch)
        scratch *= np.float32(0.1)
        m += scratch
        np.square(gradient, out=scratch)
        scratch -= v
        scratch *= np.float32(0.001)
        v += scratch
        np.sqrt(v, out=scratch)
        scratch += np.float32(1e-7)
        np.divide(m, scratch, out=scratch)
        scratch *= np.float32(rate)
        self.values[index] -= scratch


class Worker:
    """A worker of the start-up measurement: an actor that pushes to every ps."""

    def step(self, servers: list[Any], gradients: Arrays) -> int:
        """One step with every server; how many arrays came back."""
        return sum(len(each) for each in ray.get([s.step.remote(gradients) for s in servers]))


def _as_argument(server: Any, gradients: Arrays) -> Arrays:
    values: Arrays = ray.get(server.step.remote(gradients))
    return values


def _as_object(server: Any, gradients: Arrays) -> Arrays:
    values: Arrays = ray.get(server.step.remote(ray.put(gradients)))
    return values


WAYS: dict[str, Callable[[Any, Arrays], Arrays]] = {
    "list argument": _as_argument,
    "ray.put": _as_object,
}


def measured(case: Case, budget_s: float, check: bool) -> dict[str, Any]:
    """The faster of the ways: each is tried for an eighth of the budget first."""
    gradients = harness.gradients(case)

    def run(way: str, seconds: float, checked: bool) -> dict[str, Any]:
        server = ray.remote(ParameterServer).remote(case)
        try:
            return harness.measure(
                case, lambda: WAYS[way](server, gradients), budget_s=seconds, check=checked
            )
        finally:
            ray.kill(server)

    tried = {way: run(way, budget_s / 8, False)["median_ms"] for way in WAYS}
    fastest = min(WAYS, key=lambda way: float(tried[way]))
    return {**run(fastest, budget_s, check), "way": fastest}


def init() -> None:
    ray.init(
        num_cpus=max(4, os.cpu_count() or 1),  # one per actor; they share what there is
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=2 * 1024**3,
    )


def start_s() -> float:
    """Seconds from nothing to the first step of two workers with two servers."""
    case = pick(["small"])[0]
    began = time.perf_counter()
    init()
    servers = [ray.remote(ParameterServer).remote(case) for _ in range(2)]
    workers = [ray.remote(Worker).remote() for _ in range(2)]
    gradients = harness.gradients(case)
    ray.get([worker.step.remote(servers, gradients) for worker in workers])
    return time.perf_counter() - began


def main() -> None:
    arguments = harness.parse(__doc__)
    harness.end_in_order()
    results: list[dict[str, Any]] = []
    started: float | None = None
    try:
        if arguments.start:
            started = start_s()
        else:
            init()
            results = [
                measured(case, arguments.budget_s, arguments.check) for case in arguments.cases
            ]
    finally:
        ray.shutdown()
    harness.report(f"ray {ray.__version__}", results, started)


if __name__ == "__main__":
    main()
