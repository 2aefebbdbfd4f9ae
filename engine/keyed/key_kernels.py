"""Kernels on the keys of a step: which are distinct, and which ps has each.

``distinct.py`` checks their arguments, and says the same in array operations.
"""

import numpy as np

from ..jit import INT64, changed, inlined, prefetch, read
from ..row_kernels import KernelRegistry
from .index_kernels import TILE, hash_tile, segment_of

FUNCTIONS = KernelRegistry()
_U32, _U33 = np.uint64(32), np.uint64(33)
_M0, _M1 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(np.uint64), INT64, changed(np.dtype(np.int32)), changed(dtype),
        changed(dtype),
    )
)  # fmt: skip
def distinct_keys(keys, secret, shift_bits, table, unique, inverse):  # type: ignore[no-untyped-def]
    """Number the distinct keys in the order in which they first stand.

    ``table``: zero, a power of two of them, at least twice the keys; ``shift_bits``: 63 less the
    bits of its size.

    Returns:
        How many are distinct.
    """
    shift = np.uint64(shift_bits)
    last = table.size - 1
    hashes = np.empty(TILE, np.uint64)
    found = 0
    for start in range(0, keys.size, TILE):
        count = min(TILE, keys.size - start)
        hash_tile(keys, start, count, secret, hashes)
        for j in range(count):
            prefetch(table, segment_of(hashes[j], shift))
        for j in range(count):
            key, at = keys[start + j], segment_of(hashes[j], shift)
            number = table[at]
            while number != 0 and unique[number - 1] != key:
                at = (at + 1) & last
                number = table[at]
            if number == 0:
                unique[found] = key
                found += 1
                table[at] = found
                number = found
            inverse[start + j] = number - 1
    return found


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
        read(dtype), changed(dtype), changed(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def divide_keys(keys, places, divided, inverse, bounds):  # type: ignore[no-untyped-def]
    """Put keys of one ps beside each other, in the order in which they stood.

    ``places[i]``: where ``keys[i]`` is in ``divided``; ``inverse`` is led there: from places among
    the keys to places among the divided ones. ``bounds``: zero, an element for each ps and one
    more; where the keys of each begin, and the end.
    """
    num_ps = np.uint64(bounds.size - 1)
    for i in range(keys.size):
        ps = _ps_of(keys[i], num_ps)
        places[i] = ps
        bounds[ps + 1] += 1
    following = np.empty(bounds.size, np.int64)
    following[0] = 0
    for ps in range(1, bounds.size):
        bounds[ps] += bounds[ps - 1]
        following[ps] = bounds[ps]
    for i in range(keys.size):
        ps = places[i]
        at = following[ps]
        following[ps] = at + 1
        places[i] = at
        divided[at] = keys[i]
    for i in range(inverse.size):
        inverse[i] = places[inverse[i]]
