"""Two ways of the same work, timed by turns: a session through TLS and without, gRPC through the
one port and directly.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

WARM_UP = 5


@dataclass(frozen=True)
class Pair:
    """A case, both ways. Unit: milliseconds.

    Attributes:
        case: What was done.
        plain_ms: The median of the way that is the measure.
        other_ms: The median of the other.
        ratio_of_minima: Ratio of the fastest of each, which a busy machine disturbs least.
        times: How often each was done.
    """

    case: str
    plain_ms: float
    other_ms: float
    ratio_of_minima: float
    times: int

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.other_ms / self.plain_ms


def measure_pair(
    case: str,
    plain: Callable[[], object],
    other: Callable[[], object],
    budget_s: float,
    in_a_row: int = 1,
) -> Pair:
    """Both ways by turns, at least ten times each, as often as the budget allows.

    Args:
        case: What is done.
        plain: The way that is the measure.
        other: The other way.
        budget_s: For both. Unit: seconds.
        in_a_row: How often one way is done before the other: processes that wait for longer than
            a small step takes go to sleep, and a step that wakes them takes longer.
    """
    taken_ms: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + budget_s
    while len(taken_ms[0]) < 2 * WARM_UP or time.perf_counter() < until:
        for call, found in zip((plain, other), taken_ms, strict=True):
            began = time.perf_counter()
            for _ in range(in_a_row):
                call()
            found.append((time.perf_counter() - began) * 1000 / in_a_row)
    one, two = (each[WARM_UP:] for each in taken_ms)
    return Pair(
        case, statistics.median(one), statistics.median(two), min(two) / min(one), len(taken_ms[0])
    )


def compare(
    measure: Callable[[float], Sequence[Pair]],
    title: str,
    plain: str,
    other: str,
    help_text: str | None,
    arguments: Sequence[str] | None = None,
) -> None:
    """The command of a benchmark of pairs: measure, print the table, optionally write the figures.

    Args:
        measure: The cases, with the budget of each. Unit: seconds.
        title: The table's title.
        plain: The way that is the measure.
        other: The other way.
        help_text: The command's help.
        arguments: What the command was given, but for options of its own; None: all of it.
    """
    parser = argparse.ArgumentParser(description=help_text)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--budget-s", type=float, default=4.0, help="for each case")
    chosen = parser.parse_args(arguments)
    pairs = measure(chosen.budget_s)
    table = Table(title=title, title_justify="left")
    for column in ("case", plain, other, "ratio", "of minima", "later by", "times"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for pair in pairs:
        later_ms = pair.other_ms - pair.plain_ms
        figures = (pair.plain_ms, pair.other_ms, pair.ratio, pair.ratio_of_minima, later_ms)
        table.add_row(pair.case, *(f"{figure:.3f}" for figure in figures), str(pair.times))
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    if chosen.json is not None:
        rows = [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
