"""Rows that were looked up before the step that needs them, and which of them have changed since.

A worker's own pushes are all made by its session, so it knows which rows they change. Only these
are looked up again; what other workers have trained meanwhile shows with the next lookup.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from .distinct_rows import DistinctRows, RowSums
from .row_pulls import WantedRows
from .step import Write

_MOST_NOTED = 16  # pushed rows, per row that was looked up: beyond, all are looked up again
_NO_ROWS = np.empty(0, np.int64)


class PushWatcher(Protocol):
    """Keeps rows of a growing table, which this worker's own gradients change, too."""

    def pushed(self, rows: DistinctRows, sums: RowSums, step: int) -> None:
        """Take note of a gradient that was sent.

        Args:
            rows: Keys of the gradient's rows.
            sums: The sum of the gradients of each key.
            step: Global step of the values from which it was computed.
        """
        ...

    def forget(self) -> None:
        """Discard what was shown: the push was refused, or answered as a repeated one, and may not
        be applied.
        """
        ...


class RowsAhead:
    """Rows of several variables and tables, as they were at one moment. The session locks.

    Attributes:
        rows: Rows that were looked up.
    """

    def __init__(self, rows: Sequence[WantedRows]) -> None:
        self.rows = tuple(rows)
        self._changed: dict[str, list[Array] | None] = {wanted.name: [] for wanted in rows}

    def note(self, variable: str, changed: Array | None) -> None:
        """Note that this worker changes rows.

        Args:
            variable: Name of the variable; it need not be one of these.
            changed: int64: the numbers of the rows, or keys; None: any.
        """
        noted = self._changed.get(variable)
        if noted is None:
            return
        count = sum(numbers.size for numbers in noted) + (0 if changed is None else changed.size)
        most = _MOST_NOTED * sum(wanted.distinct.unique.size for wanted in self.rows)
        if changed is None or count > most:
            self._changed[variable] = None
        else:
            noted.append(changed)

    def note_all(self) -> None:
        """Note that this worker may have changed anything."""
        self._changed = dict.fromkeys(self._changed)

    def stale(self) -> list[Array]:
        """Find the distinct rows that have changed: ascending positions, per variable."""
        return [
            _changed(wanted.distinct.unique, self._changed[wanted.name]) for wanted in self.rows
        ]


def changes_of(writes: Sequence[Write]) -> Iterator[tuple[str, Array | None]]:
    """List the changes that a push makes: (name of the variable, its rows or keys; None: any of
    them).
    """
    for write in writes:
        for name, value in write.values.items():
            yield name, value.indices if isinstance(value, IndexedSlices) else None


def part_of(rows: DistinctRows, positions: Array) -> DistinctRows:
    """Select distinct rows by their positions.

    Args:
        rows: Rows of a variable or table.
        positions: int64, ascending.
    """
    unique, bounds = rows.unique[positions], None
    if rows.bounds is not None:
        bounds = tuple(np.searchsorted(positions, rows.bounds).tolist())
    return DistinctRows(unique, unique, None, bounds)


def _changed(unique: Array, changed: list[Array] | None) -> Array:
    if changed is None:
        return np.arange(unique.size)
    if not changed:
        return _NO_ROWS
    from ...engine.keyed.distinct import distinct  # other workers do not load it

    before = np.concatenate(changed)
    # Numbered in the order in which they first stand: those of `before` come first.
    _, numbers = distinct("", np.concatenate([before, unique]))
    last = numbers[: before.size].max(initial=-1)
    return np.flatnonzero(numbers[before.size :] <= last)
