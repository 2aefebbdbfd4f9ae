"""What traces cost a step: `python benchmarks/traces.py`. Needs ropewalk[otel].

A worker and a ps in this process, over a real connection on loopback. The same steps without a
sampler, with one that samples nothing, and with one that samples all of them, in turn, by processor
time of both sides, the least of all turns; spans go through OpenTelemetry's queue to an exporter
that drops them. A share of the steps costs that share of a sampled one.
"""

import itertools
from collections.abc import Sequence
from time import process_time_ns
from typing import Any

import numpy as np
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import ropewalk as rw
from ropewalk.annexes.traces.export import SpanExport
from ropewalk.annexes.traces.sampling import Sampler
from ropewalk.core import spans

_STEPS, _TURNS = 20, 150
_CASES = {"off": None, "share 0": 0.0, "off again": None, "share 1": 1.0}


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[Any]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def measure() -> None:
    """Print the processor time of a step in each case."""
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros((64, 64), np.float32), name="w")
    optimizer = rw.optimizers.SGD(1e-3)
    if rw.training.task_type() == "chief":
        return  # it has made the variable, and would compute beside the worker
    gradient = np.ones((64, 64), np.float32)
    clock = strategy.extended.runtime.progress.clock

    def step() -> None:
        optimizer.apply_gradients([(gradient, w)])
        w.read_value()

    best = dict.fromkeys(_CASES, float("inf"))
    samplers = {
        name: None if share is None else Sampler("worker:0", share)
        for name, share in _CASES.items()
    }
    for _, (name, sampler) in itertools.product(range(_TURNS), samplers.items()):
        strategy.run(step)  # ends a trace of the last case
        clock.sampler = sampler
        strategy.run(step)
        begun = process_time_ns()
        for _ in range(_STEPS):
            strategy.run(step)
        best[name] = min(best[name], (process_time_ns() - begun) / _STEPS / 1e3)
        if clock.trace is not None:
            clock.sampler = Sampler("worker:0", 0.0)
            strategy.run(step)
    for name, cost in best.items():
        print(f"{name:12} {cost:8.1f} µs of a step, {cost - best['off']:+.1f}")
    print(f"share 0.01: {(best['share 1'] - best['off']) / 100:+.2f} µs of a step")


def main() -> None:
    """Start the cluster."""
    export = SpanExport(_Nowhere(), "worker:0")
    spans.listeners.append(export.take)
    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        cluster.run(measure)
    export.close()


if __name__ == "__main__":
    main()
