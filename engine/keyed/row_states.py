"""Rows with everything that a push changes in them, one row of an array each.

A row's values come first, then its slots in the order of its store, and last the number of its
pushes: the bits of an unsigned integer of an element's size. With that, the update rule gives the
same on any machine that has the row's gradient.
"""

from collections.abc import Iterator

import numpy as np

from ...core.arrays.dtypes import Array
from .row_store import UINT32, RowStore

_LARGEST_COUNT = np.iinfo(UINT32).max


def counts_of(states: Array) -> Array:
    """View the counts in states, as unsigned integers, shape ``(n,)``.

    Args:
        states: contiguous, float32 or float64, shape ``(n, elements)``.
    """
    return states.view(f"u{states.dtype.itemsize}")[:, -1]


def gather_states(store: RowStore, rows: Array, out: Array) -> None:
    """Copy rows of a store with their slots and counts.

    Args:
        store: The rows.
        rows: int64, shape ``(n,)``.
        out: contiguous, of the store's dtype, shape ``(n, elements)``. Modified.
    """
    for column, start, stop in _columns(store):
        out[:, start:stop] = column[rows]
    counts_of(out)[:] = store.counts[rows]


def scatter_states(store: RowStore, rows: Array, states: Array) -> None:
    """Write rows with their slots and counts.

    Args:
        store: Modified.
        rows: int64, shape ``(n,)``, each once.
        states: States, as :func:`gather_states` returns them.
    """
    for column, start, stop in _columns(store):
        column[rows] = states[:, start:stop]
    store.counts[rows] = np.minimum(counts_of(states), _LARGEST_COUNT)


def _columns(store: RowStore) -> Iterator[tuple[Array, int, int]]:
    """Yield values and slots, and where they stand in a state."""
    start = 0
    for column in (store.values, *store.slots.values()):
        yield column, start, start + column.shape[1]
        start += column.shape[1]
