"""What assignments in a step cost: one, and a hundred of them, which travel together.

    python -m benchmarks.writes

The step is a program's, through ``strategy.run``; the ps is a process of its own. "read too": each
variable is read before it is assigned, as moving averages are.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.table import Table

import ropewalk as rw
from benchmarks.running import (
    TRANSPORTS,
    Figure,
    connected,
    measure,
    parameter_servers,
    settings_of,
)
from ropewalk.distribute.runtime import ClusterRuntime

COUNTS = (1, 100)
SHAPE = (64,)


@contextmanager
def program(transport: str, ps: int) -> Iterator[rw.distribute.ParameterServerStrategy]:
    """A strategy whose variables are on ps of other processes."""
    task = rw.distribute.ParameterServerStrategy().extended.runtime.task
    with parameter_servers(ps) as addresses, connected(addresses, transport) as session:
        runtime = ClusterRuntime(task, settings_of(transport), session)
        yield rw.distribute.ParameterServerStrategy(runtime=runtime)


def time_writes(transport: str, *, count: int, reads: bool, ps: int, budget_s: float) -> Figure:
    """A step of so many assignments."""
    with program(transport, ps) as strategy:
        with strategy.scope():
            start = np.zeros(SHAPE, np.float32)
            variables = [rw.Variable(start, name=f"v{i}") for i in range(count)]
        values = [np.full(SHAPE, i, np.float32) for i in range(count)]

        def step() -> None:
            for variable, value in zip(variables, values, strict=True):
                if reads:
                    variable.read_value()
                variable.assign(value)

        return measure(lambda: strategy.run(step), budget_s)


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget-s", type=float, default=1.5, help="per case")
    parser.add_argument("--ps", type=int, default=1, help="parameter servers")
    arguments = parser.parse_args()
    console = Console(width=max(100, Console().width))
    table = Table(title="Assignments of (64,) float32 in a step: ms", title_justify="left")
    for column in ("session", "what", *map(str, COUNTS), "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for transport in TRANSPORTS:
        for reads in (False, True):
            one, many = (
                time_writes(
                    transport,
                    count=count,
                    reads=reads,
                    ps=arguments.ps,
                    budget_s=arguments.budget_s,
                ).median_ms
                for count in COUNTS
            )
            what = "read too" if reads else "assigned"
            table.add_row(transport, what, f"{one:.2f}", f"{many:.2f}", f"{many / one:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
