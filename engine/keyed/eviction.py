"""Which rows go: those that were not pushed for long, or those that are least used when there are
too many.

Pure functions of the rows' columns. Of two rows that are alike the one with the smaller key goes
first; in which order rows were made, and where they lie, decides nothing.
"""

from typing import Literal

import numpy as np

from ...core.arrays.dtypes import Array
from ..library import library
from .row_store import BUSY, UINT32, RowStore

Order = Literal["least_recent", "least_frequent"]
"""What goes first: the rows whose last push is longest ago, or those with the fewest pushes."""


def unseen_since(store: RowStore, step: int) -> Array:
    """Rows whose last push was before a step; int64, ascending."""
    return np.flatnonzero(store.last[: store.used] < step)


def least_used(store: RowStore, count: int, order: Order) -> Array:
    """The ``count`` rows that go first, or fewer if there are not so many; int64, ascending.

    Rows that are marked as busy stay.
    """
    last = store.last[: store.used]
    rows = np.flatnonzero(last < BUSY)
    if rows.size <= count:
        return rows
    by_step = last if rows.size == last.size else last[rows]
    words = [by_step]
    if order == "least_frequent":
        counts = store.counts[: store.used]
        words = [counts if rows.size == counts.size else counts[rows], by_step]
    return np.sort(rows[_smallest(words, store.keys[rows], count)])


def _smallest(words: list[Array], keys: Array, count: int) -> Array:
    """Positions of the ``count`` smallest, by the first words, then the next, in the end by key."""
    if not count:
        return np.empty(0, np.int64)
    if not words:
        return np.argpartition(keys, count - 1)[:count]
    first, *others = words
    bound = _kth_smallest(first, count - 1)
    sure, alike = np.flatnonzero(first < bound), np.flatnonzero(first == bound)
    rest = _smallest([each[alike] for each in others], keys[alike], count - sure.size)
    return np.concatenate([sure, alike[rest]])


def _kth_smallest(words: Array, k: int) -> int:
    kernel = library.row_kernel_if_ready("kth_smallest", UINT32)
    return int(np.partition(words, k)[k] if kernel is None else kernel(words, k))
