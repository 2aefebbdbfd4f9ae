"""Cutting the places where a pull lands. Pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...core.arrays.dtypes import Array


def runs_of(changed: Array, sizes: Array) -> Iterator[tuple[bool, int, int]]:
    """Yield runs of neighbouring entries that all changed, or all did not.

    Args:
        changed: bool, per entry.
        sizes: int64, bytes of each entry.

    Yields:
        (changed, start, stop) in bytes of the whole.
    """
    if not changed.size:
        return
    ends = np.concatenate(([0], np.cumsum(sizes))).tolist()
    turns = [0, *(np.flatnonzero(np.diff(changed)) + 1).tolist(), changed.size]
    for first, last in pairwise(turns):
        yield bool(changed[first]), ends[first], ends[last]


def cut_spans(spans: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the bytes ``[start, stop)`` of spans that count as one after another."""
    pieces, offset = [], 0
    for span in spans:
        low, high = max(start - offset, 0), min(stop - offset, len(span))
        if low < high:
            pieces.append(span[low:high])
        offset += len(span)
    return pieces
