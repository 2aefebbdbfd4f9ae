"""Which rows of a variable are asked of which ps, and where they go."""

from collections.abc import Mapping

from ...core.arrays.dtypes import Array, as_bytes
from ...core.wire.steps import PullTarget, StepRequest, WireLayout
from .distinct_rows import DistinctRows
from .placed_variable import PlacedVariable


def row_pulls(
    placed: PlacedVariable,
    distinct: DistinctRows,
    out: Array,
    layouts: Mapping[int, WireLayout],
    global_step: int,
) -> tuple[dict[int, StepRequest], dict[int, PullTarget]]:
    """Requests for the distinct rows, by ps; a ps without any of them is not asked.

    Args:
        placed: The variable.
        distinct: Rows of it to pull.
        out: Array of shape (distinct rows, numbers in a row), to be filled.
        layouts: Layouts of a pull of rows, by ps.
        global_step: Last global step seen.
    """
    by_ps: dict[int, list[tuple[Array, memoryview]]] = {}
    for ps, shard in placed.shards:
        low, high = distinct.between(shard.row_offset, shard.row_offset + shard.rows)
        local = distinct.unique[low:high] - shard.row_offset
        by_ps.setdefault(ps, []).append((local, as_bytes(out[low:high])))
    by_ps = {ps: parts for ps, parts in by_ps.items() if any(local.size for local, _ in parts)}
    requests = {
        ps: StepRequest(
            pull=layouts[ps], pull_rows=[local for local, _ in parts], global_step=global_step
        )
        for ps, parts in by_ps.items()
    }
    return requests, {ps: PullTarget([rows for _, rows in parts]) for ps, parts in by_ps.items()}
