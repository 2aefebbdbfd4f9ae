"""Eviction of rows: those that were not pushed for long, or those that are least used when there
are too many.

Pure functions of the rows' columns. Of two rows that are alike the one with the smaller key goes
first; in which order rows were made, and where they lie, decides nothing.
"""

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.rules.tables import Order
from ..library import library
from .row_store import BUSY, FREE, UINT32, RowStore


def unseen_since(store: RowStore, step: int) -> Array:
    """Find the rows whose last push was before a step; int64, ascending."""
    return np.flatnonzero(store.last[: store.used] < step)


def least_used(store: RowStore, count: int, order: Order) -> Array:
    """Find the ``count`` rows that go first, or fewer if there are not so many; int64, ascending.

    Rows that are marked as busy stay.
    """
    last, counts = store.last[: store.used], store.counts[: store.used]
    alike = last < BUSY
    left = min(count, int(np.count_nonzero(alike)))
    if not left:
        return np.empty(0, np.int64)
    chosen = []
    for column in [last] if order == "least_recent" else [counts, last]:
        words = np.where(alike, column, UINT32.type(FREE))
        bound = _kth_smallest(words, left - 1)
        chosen.append(np.flatnonzero(words < bound))
        left -= chosen[-1].size
        alike &= column == bound
    rows = np.flatnonzero(alike)
    chosen.append(rows[np.argpartition(store.keys[rows], left - 1)[:left]])
    return np.sort(np.concatenate(chosen))


def _kth_smallest(words: Array, k: int) -> int:
    kernel = library.row_kernel_if_ready("kth_smallest", UINT32)
    return int(np.partition(words, k)[k] if kernel is None else kernel(words, k))
