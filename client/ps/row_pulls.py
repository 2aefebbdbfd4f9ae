"""Requests for rows of variables and tables: the ps to ask, and the place of each row."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.arrays.dtypes import Array, as_bytes, total_bytes
from ...core.wire.steps import PullTarget, StepRequest, WireLayout
from .definer import PlacedVariable
from .distinct_rows import DistinctRows

Rows = tuple[Array, Array | None]
"""(the distinct rows, shape ``(count, elements of a row)``; int64, shape ``(n,)``: which of them
belongs to each id. None: one after the other)
"""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows of one variable that a pull asks for.

    Attributes:
        placed: The variable, or table.
        distinct: Numbers of the rows, each once.
        out: Array of shape ``(distinct rows, elements of a row)``, to be filled.
        with_state: Whether each row comes with its slots and count, of a table.
    """

    placed: PlacedVariable
    distinct: DistinctRows
    out: Array
    with_state: bool = False

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.placed.definition.name


@dataclass(slots=True)
class _Pull:
    numbers: list[Array]
    into: list[memoryview]


def row_pulls(
    wanted: tuple[WantedRows, ...], layouts: Mapping[int, WireLayout], global_step: int
) -> tuple[dict[int, StepRequest], dict[int, PullTarget]]:
    """Make one request per ps, for the rows of all variables; a ps without any of them is not
    asked.

    Args:
        wanted: Rows to pull, in the order of the layouts.
        layouts: Layouts of a pull of rows of these variables, by ps.
        global_step: Last global step seen.
    """
    pulls: dict[int, _Pull] = {ps: _Pull([], []) for ps in layouts}
    for table in wanted:
        for ps, shard in table.placed.shards:
            low, high, numbers = table.distinct.of_shard(shard)
            pulls[ps].numbers.append(numbers)
            pulls[ps].into.append(as_bytes(table.out[low:high]))
    asked = {
        ps: pull for ps, pull in pulls.items() if any(numbers.size for numbers in pull.numbers)
    }
    requests = {
        ps: StepRequest(
            pull=layouts[ps],
            pull_rows=pull.numbers,
            answer_bytes=total_bytes(pull.into),
            global_step=global_step,
        )
        for ps, pull in asked.items()
    }
    return requests, {ps: PullTarget(pull.into) for ps, pull in asked.items()}
