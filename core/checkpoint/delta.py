"""Contents of a delta: the rows that changed since its whole checkpoint, by key or by number.

A delta is a checkpoint like any other in all but this: of some parts of growing tables, and of some
rows of large variables, it has only what changed since a whole checkpoint. Of a table that is the
columns of changed rows, and an array ``REMOVED`` of keys whose rows went; a changed row whose step
says that its place is free went, too. So whatever the whole one has under one of these keys is not
the delta's. Of a variable it is the numbers of rows, ``ROWS``, and their values and slots, each
with ``CHANGED`` in front of its name.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from ..arrays.dtypes import Array
from .manifest import TensorRecord

CHANGED = "changed/"
ROWS = f"{CHANGED}rows"
REMOVED = "changed/removed"
"""Slot of a table that lists the keys which lost their rows since the whole checkpoint."""


def changed_slot(slot: str) -> str:
    """Name the array of changed rows of a slot, or of the values (empty)."""
    return f"{CHANGED}{slot}:"


def is_changed(record: TensorRecord) -> bool:
    """Return whether a record is of changed rows of a variable, or of removed keys."""
    return record.slot.startswith(CHANGED)


def superseded(keys: Iterable[Array]) -> Array:
    """List keys of which a whole checkpoint's rows do not count; ascending, each once."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *keys]))


def without(columns: dict[str, Array], keys: Array) -> dict[str, Array]:
    """Drop the rows of some keys from the columns of a table.

    Args:
        columns: Columns by name, with ``keys``; of equal lengths.
        keys: int64, ascending.
    """
    if len({column.shape[:1] for column in columns.values()}) > 1:
        return columns  # damaged, which who loads them says
    stays = ~np.isin(columns["keys"], keys)
    return {name: column[stays] for name, column in columns.items()}


def overlay(out: Array, start: int, changes: Iterable[tuple[Array, Array]]) -> None:
    """Write changed rows over those of a whole checkpoint.

    Args:
        out: Rows from ``start`` on. Modified.
        start: Number of the first row.
        changes: Numbers of rows, ascending, with the rows.
    """
    for rows, values in changes:
        inside = slice(*np.searchsorted(rows, [start, start + out.shape[0]]))
        out[rows[inside] - start] = values[inside]


def stretches(
    ranges: Iterable[tuple[int, int]], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, stop)`` that are in some ranges, in order."""
    for first, last in sorted(ranges):
        low, high = max(start, first), min(stop, last)
        if low < high:
            yield low, high
