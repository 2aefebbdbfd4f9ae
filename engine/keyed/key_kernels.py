"""Kernels on the keys of a step's tables: which are distinct, and which ps has each.

``distinct.py`` checks their arguments, and says the same in array operations.
"""

import numpy as np

from ..jit import INT64, changed, inlined, prefetch, read
from ..row_kernels import KernelRegistry
from .index_kernels import TILE, hash_tile, segment_of

FUNCTIONS = KernelRegistry()
_U1, _U32, _U33 = np.uint64(1), np.uint64(32), np.uint64(33)
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
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
    """``places``: where each table's keys of the first ps are, of the second and so on, in order.

    Of the tables from ``first`` to before ``last``; the keys of table ``t`` begin at ``tables[t]``.
    ``parts``: room to work in, at least one for each key. ``starts``: where the places of each part
    begin, those of table ``t`` from ``starts[t * num_ps]`` on.
    """
    following = np.empty(num_ps, np.int64)
    for table in range(first, last):
        begin, end = tables[table], tables[table + 1]
        for i in range(begin, end):  # by itself: the compiler makes vectors of it
            parts[i] = _ps_of(keys[i], np.uint64(num_ps))
        following[:] = 0
        for i in range(begin, end):
            following[parts[i]] += 1
        at = begin
        for part in range(num_ps):
            starts[table * num_ps + part] = at
            at += following[part]
            following[part] = starts[table * num_ps + part]
        for i in range(begin, end):
            at = following[parts[i]]
            following[parts[i]] = at + 1
            places[at] = i


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(_INT32), read(dtype), INT64, INT64, read(np.uint64), changed(_INT32),
        changed(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def distinct_keys(keys, places, starts, first, last, secret, table, unique, inverse, counts):  # type: ignore[no-untyped-def]
    """Number the distinct keys of the parts from ``first`` to before ``last``, each from zero.

    Those of part ``p``, whose places begin at ``starts[p]``, are ``unique[starts[p] :]`` in the
    order in which they first stand, and ``counts[p]`` of them; ``inverse``: the number of each key.
    ``table``: room to work in, four for each of these keys.
    """
    tile, hashes = np.empty(TILE, np.int64), np.empty(TILE, np.uint64)
    for part in range(first, last):
        begin, end = starts[part], starts[part + 1]
        size, shift = 1, np.uint64(63)
        while size < 2 * (end - begin):
            size *= 2
            shift -= _U1
        table[:size] = 0
        found = begin
        for start in range(begin, end, TILE):
            count = min(TILE, end - start)
            for j in range(count):
                tile[j] = keys[places[start + j]]
            hash_tile(tile, 0, count, secret, hashes)
            for j in range(count):
                prefetch(table, segment_of(hashes[j], shift))
            for j in range(count):
                key, at = tile[j], segment_of(hashes[j], shift)
                number = table[at]
                while number != 0 and unique[begin + number - 1] != key:
                    at = (at + 1) & (size - 1)
                    number = table[at]
                if number == 0:
                    unique[found] = key
                    found += 1
                    number = found - begin
                    table[at] = number
                inverse[places[start + j]] = number - 1
        counts[part] = found - begin


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
                begin, to = starts[part], starts[table * num_ps] + offset
                for i in range(counts[part]):
                    unique[to + i] = unique[begin + i]
                for i in range(begin, starts[part + 1]):
                    inverse[places[i]] += offset
            offset += counts[part]
