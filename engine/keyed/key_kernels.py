"""Kernels on the keys of a step's tables: which are distinct, and which ps has each.

``distinct.py`` checks their arguments, and says the same in array operations.
"""

import numpy as np

from ..jit import INT64, changed, inlined, prefetch, read
from ..row_kernels import KernelRegistry
from .index_kernels import TILE, hash_tile, segment_of

FUNCTIONS = KernelRegistry()
_U1, _U2, _U32, _U33 = (np.uint64(n) for n in (1, 2, 32, 33))
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_LANES = np.uint64(4)
_M0, _M1 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


@inlined
def _ps_of(key, num_ps):  # type: ignore[no-untyped-def]
    word = np.uint64(key)
    word ^= word >> _U33
    word *= _M0
    word ^= word >> _U33
    word *= _M1
    word ^= word >> _U33
    return np.int64(((word >> _U32) * num_ps) >> _U32)


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(dtype), INT64, INT64, INT64, changed(_INT16), changed(_INT32),
        changed(dtype),
    )
)  # fmt: skip
def divide_keys(keys, tables, num_ps, first, last, parts, places, starts):  # type: ignore[no-untyped-def]
    """Divide keys by ps: ``places`` lists where each table's keys of the first ps are, of the
    second and so on, in order.

    Of the tables from ``first`` to before ``last``; the keys of table ``t`` begin at ``tables[t]``.
    ``parts``: room to work in, at least one for each key. ``starts``: where the places of each part
    begin, those of table ``t`` from ``starts[t * num_ps]`` on.
    """
    of_lane = np.uint64(num_ps)
    following = np.empty(4 * num_ps, np.int64)
    for table in range(first, last):
        begin, end = tables[table], tables[table + 1]
        low, share, high = np.uint64(begin), np.uint64((end - begin) // 4), np.uint64(end)
        rest, last_lane = low + _LANES * share, (_LANES - _U1) * of_lane
        for i in range(low, high):  # by itself: the compiler makes vectors of it
            parts[i] = _ps_of(keys[i], of_lane)
        # Four quarters of the keys by turns: a count waits for the one before it. Numbers without
        # sign need no look at whether they count from the end.
        following[:] = 0
        for i in range(share):
            for lane in range(_LANES):
                following[lane * of_lane + np.uint64(parts[low + lane * share + i])] += 1
        for i in range(rest, high):
            following[last_lane + np.uint64(parts[i])] += 1
        at = begin
        for part in range(num_ps):
            starts[table * num_ps + part] = at
            for lane in range(_LANES):
                slot = lane * of_lane + np.uint64(part)
                count = following[slot]
                following[slot] = at
                at += count
        for i in range(share):
            for lane in range(_LANES):
                key = low + lane * share + i
                slot = lane * of_lane + np.uint64(parts[key])
                at = following[slot]
                following[slot] = at + 1
                places[np.uint64(at)] = key
        for i in range(rest, high):
            slot = last_lane + np.uint64(parts[i])
            at = following[slot]
            following[slot] = at + 1
            places[np.uint64(at)] = i


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(_INT32), read(dtype), INT64, INT64, read(np.uint64), changed(_INT32),
        changed(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def distinct_keys(keys, places, starts, first, last, secret, table, unique, inverse, counts):  # type: ignore[no-untyped-def]
    """Give each distinct key of the parts ``first`` to ``last - 1`` a number, in each from zero.

    Those of part ``p``, whose places begin at ``starts[p]``, are ``unique[starts[p] :]`` in the
    order in which they first stand, and ``counts[p]`` of them; ``inverse``: the number of each key.
    ``table``: room to work in, four for each of these keys.
    """
    tile, hashes = np.empty(TILE, np.int64), np.empty(TILE, np.uint64)
    for part in range(first, last):
        begin, end = np.uint64(starts[part]), np.uint64(starts[part + 1])
        size, shift = _U1, np.uint64(63)
        while size < _U2 * (end - begin):
            size *= _U2
            shift -= _U1
        table[:size] = 0
        place = begin
        for start in range(begin, end, np.uint64(TILE)):
            count = min(np.uint64(TILE), end - start)
            for j in range(count):
                tile[j] = keys[np.uint64(places[start + j])]
            hash_tile(tile, 0, count, secret, hashes)
            for j in range(count):
                prefetch(table, segment_of(hashes[j], shift))
            for j in range(count):
                key, at = tile[j], np.uint64(segment_of(hashes[j], shift))
                number = table[at]
                while number != 0 and unique[begin + np.uint64(number) - _U1] != key:
                    at = (at + _U1) & (size - _U1)
                    number = table[at]
                if number == 0:
                    unique[place] = key
                    place += _U1
                    number = np.int32(place - begin)
                    table[at] = number
                inverse[np.uint64(places[start + j])] = number - 1
        counts[part] = place - begin


@FUNCTIONS.kernel(
    lambda dtype: (
        read(_INT32), read(dtype), INT64, INT64, INT64, read(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def join_keys(places, starts, num_ps, first, last, counts, unique, inverse):  # type: ignore[no-untyped-def]
    """Put the distinct keys of all parts of a table side by side, and number them through.

    Of the tables from ``first`` to before ``last``. ``counts``: how many each part has.
    """
    for table in range(first, last):
        offset = 0
        for part in range(table * num_ps, (table + 1) * num_ps):
            if offset > 0:
                begin, to = np.uint64(starts[part]), np.uint64(starts[table * num_ps] + offset)
                for i in range(np.uint64(counts[part])):
                    unique[to + i] = unique[begin + i]
                for i in range(begin, np.uint64(starts[part + 1])):
                    inverse[np.uint64(places[i])] += offset
            offset += counts[part]
