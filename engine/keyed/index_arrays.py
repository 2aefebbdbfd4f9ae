"""The kernels of the key index in array operations, for a process without Numba.

Entries and hashes as in ``index_kernels.py``. A segment is its entries, int64, shape ``(size, 2)``.
Many keys are probed at once: those that are not done go on to the next entry together.
"""

from collections.abc import Iterator

import numpy as np

from ...core.arrays.dtypes import Array
from .hashing import keyed_hash

_U64 = np.uint64


def by_segment(keys: Array, secret: Array, shift: int) -> Iterator[tuple[int, Array, Array]]:
    """Cut keys by the segment they belong to.

    Yields:
        (segment, positions of its keys in ``keys``, their hashes)
    """
    if not keys.size:
        return
    hashes = keyed_hash(keys, secret)
    segments = ((hashes >> _U64(1)) >> _U64(shift)).view(np.int64)
    order = np.argsort(segments, kind="stable")
    starts = np.flatnonzero(np.diff(segments[order], prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], keys.size], strict=True):
        positions = order[start:stop]
        yield int(segments[positions[0]]), positions, hashes[positions]


def homes(hashes: Array, size: int) -> Array:
    """Find the places in a segment of ``size`` entries where probing for these hashes begins;
    int64.
    """
    return (((hashes & _U64(0xFFFFFFFF)) * _U64(size)) >> _U64(32)).view(np.int64)


def find(entries: Array, keys: Array, hashes: Array) -> Array:
    """Find the place of each key in a segment; -1: it is not there."""
    places = np.full(keys.size, -1, np.int64)
    left, at = np.arange(keys.size), homes(hashes, len(entries))
    while left.size:
        used = entries[at, 1] != 0
        same = used & (entries[at, 0] == keys[left])
        places[left[same]] = at[same]
        going = used & ~same
        left, at = left[going], (at[going] + 1) % len(entries)
    return places


def insert(entries: Array, keys: Array, words: Array, hashes: Array) -> int:
    """Write keys with the second words of their entries; returns how many are new.

    Where a key occurs twice, the last word stays.
    """
    new = 0
    left, at = np.arange(keys.size), homes(hashes, len(entries))
    while left.size:
        used = entries[at, 1] != 0
        same = used & (entries[at, 0] == keys[left])
        entries[at[same], 1] = words[left[same]]
        free = np.flatnonzero(~used)
        _, first = np.unique(at[free], return_index=True)
        taken = free[first]
        entries[at[taken], 0] = keys[left[taken]]
        entries[at[taken], 1] = words[left[taken]]
        new += taken.size
        going = ~same
        going[taken] = False
        at = np.where(used, (at + 1) % len(entries), at)[going]
        left = left[going]
    return new


def remove(entries: Array, positions: Array, secret: Array) -> None:
    """Empty entries, and write all others anew."""
    entries[positions, 1] = 0
    rest = entries[entries[:, 1] != 0]
    entries[...] = 0
    keys = np.ascontiguousarray(rest[:, 0])
    insert(entries, keys, rest[:, 1], keyed_hash(keys, secret))


def move(old: Array, new: Array, secret: Array) -> None:
    """Write the entries of a segment anew where there is more room, in its place or elsewhere."""
    rest = old[old[:, 1] != 0]
    old[...] = 0
    keys = np.ascontiguousarray(rest[:, 0])
    insert(new, keys, rest[:, 1], keyed_hash(keys, secret))
