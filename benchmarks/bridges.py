"""What a bridge costs: a step of a framework alone, and the same step with shared parameters.

    python -m benchmarks.bridges --cases torch

"here": the servers are in the program's process, as where a program runs alone. "ps": in a process
of its own, over shared memory. "prefetch": the same, by a strategy that does not wait for its push.
Times are processor time of the program's process, which other programs of the machine disturb
least; beside "ps" and "prefetch" that of the ps, and how much longer a step takes by the clock.
Cases take turns in short rounds, of which medians are shown, and minima with ``--minima``. "store"
is what the store below takes of a step, given arrays: pushing, Adam on the server, and pulling;
"empty" a round trip of the session that moves nothing, below which no step with a ps of its own can
be. Frameworks that are not installed are left out; `make bridges-setup` installs them, into
.venv-bridges.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import ropewalk as rw
from benchmarks.bridge_cases import MODELS, Step, arrays, cases
from benchmarks.running import connected, parameter_servers, settings_of
from ropewalk.client.ps import step as steps
from ropewalk.distribute.runtime import ClusterRuntime

_CHUNK_S = 0.01
_Strategies = dict[str, rw.distribute.ParameterServerStrategy | None]


class Cost(NamedTuple):
    """What a step takes. Unit: milliseconds.

    Attributes:
        cpu_ms: Processor time of this process.
        ps_ms: Processor time of the ps.
        wall_ms: By the clock.
    """

    cpu_ms: float
    ps_ms: float
    wall_ms: float


@contextmanager
def strategies() -> Iterator[_Strategies]:
    """None, one with its ps here, one whose ps is a process, one that does not wait for that."""
    here = rw.distribute.ParameterServerStrategy()
    task, settings = here.extended.runtime.task, settings_of("shm")
    with (
        parameter_servers(1) as addresses,
        connected(addresses, "shm") as waiting,
        connected(addresses, "shm", index=1) as fetching,
    ):
        yield {
            "alone": None,
            "here": here,
            "ps": rw.distribute.ParameterServerStrategy(
                runtime=ClusterRuntime(task, settings, waiting)
            ),
            "prefetch": rw.distribute.ParameterServerStrategy(
                runtime=ClusterRuntime(task, settings, fetching), prefetch=True
            ),
        }


def exchange(model: str, strategy: Any) -> Step:
    """The store alone."""
    first, _, _ = arrays(model)
    tree = {str(i): value for i, value in enumerate(first)}
    adam = rw.optimizers.Adam(1e-3, corrected_epsilon=True)
    store = rw.training.ArrayStore(tree, adam, strategy, name=f"store {model}")
    gradients = {name: np.asarray(value) for name, value in store.pull().items()}
    return lambda: store.exchange(gradients)


def empty(strategy: Any) -> Step:
    """A round trip of the session below all of it."""
    session = strategy.extended.runtime.session
    return lambda: session.step(steps.Step(increment=1))


def _clocks() -> Cost:
    """The clocks of this process, of its children and of the wall."""
    # The processor-time clock of a process, as clock_getcpuclockid of the C library makes it.
    of_ps = sum(
        time.clock_gettime_ns((~child.pid << 3) | 2)
        for child in multiprocessing.active_children()
        if child.pid is not None
    )
    return Cost(time.process_time_ns() / 1e6, of_ps / 1e6, time.perf_counter_ns() / 1e6)


def _cost_of(step: Step, count: int) -> Cost:
    before = _clocks()
    for _ in range(count):
        step()
    return Cost(*((b - a) / count for a, b in zip(before, _clocks(), strict=True)))


def costs_of(
    steps: Sequence[Step], budget_s: float, summary: Callable[[Sequence[float]], float]
) -> list[Cost]:
    """Costs of several steps, which take turns in short rounds.

    Args:
        steps: At least one.
        budget_s: For each of them.
        summary: What is shown of the rounds, such as their median.
    """
    counts = []
    for step in steps:
        _cost_of(step, 30)
        counts.append(max(3, int(_CHUNK_S * 1000 / _cost_of(step, 5).wall_ms)))
    rounds: list[list[Cost]] = []
    until = time.perf_counter() + budget_s * len(steps)
    while len(rounds) < 5 or time.perf_counter() < until:
        rounds.append([_cost_of(step, n) for step, n in zip(steps, counts, strict=True)])
    return [
        Cost(*(summary(column) for column in zip(*row, strict=True)))
        for row in zip(*rounds, strict=True)
    ]


def _row(costs: Sequence[Cost]) -> list[str]:
    """What a table shows of a step alone, and of others beside it."""
    alone, here, *with_ps = costs
    more = [f"{each.cpu_ms - alone.cpu_ms:+.3f}" for each in (here, *with_ps)]
    share = [f"{each.cpu_ms / alone.cpu_ms - 1:+.0%}" for each in (here, *with_ps)]
    cells = [f"{alone.cpu_ms:.3f}", more[0], share[0]]
    for each, added, part in zip(with_ps, more[1:], share[1:], strict=True):
        cells += [added, part, f"{each.ps_ms:.3f}", f"{each.wall_ms - alone.wall_ms:+.3f}"]
    return cells


_WITH_PS = ("", "of the ps", "wall")
_COLUMNS = ("case", "alone", "here", "", "ps", *_WITH_PS, "prefetch", *_WITH_PS)


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget-s", type=float, default=2, help="per step")
    parser.add_argument("--cases", default="", help='part of "framework: case"')
    parser.add_argument("--minima", action="store_true", help="of the rounds, not medians")
    arguments = parser.parse_args()
    summary = min if arguments.minima else statistics.median
    table = Table(title="A training step: ms of processor time", title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    with strategies() as places:
        for name, case in cases(arguments.cases):
            steps = [case(strategy) for strategy in places.values()]
            table.add_row(name, *_row(costs_of(steps, arguments.budget_s, summary)))
        floor = {f"store, {model}": exchange(model, places["ps"]) for model in MODELS}
        floor["empty"] = empty(places["ps"])
        costs = costs_of(list(floor.values()), arguments.budget_s, summary)
    for name, cost in zip(floor, costs, strict=True):
        own = (f"{cost.cpu_ms:.3f}", "", f"{cost.ps_ms:.3f}", f"{cost.wall_ms:.3f}")
        table.add_row(name, "", "", "", *own)
    Console(width=max(150, Console().width)).print(table)


if __name__ == "__main__":
    main()
