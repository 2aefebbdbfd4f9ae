"""Kernels on row numbers and rows; ``rows.py`` checks their arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.arrays.dtypes import DType
from .jit import (
    INT64,
    changed,
    copy_elements,
    count_bits,
    lowest_bit,
    prefetch,
    read,
    stack_array,
)

_AHEAD = 16  # rows between the one at work and the one whose memory is asked for
_PREFETCHED_BYTES = 2048  # of a row; what follows is found by the processor's own prefetching
_LINE_BYTES = 64
_DIGIT_BITS = 11  # at most: the places of so many digits stay in the first cache
_CHOSEN = 1024  # row numbers at a time; they stay in the first cache
_chosen_rows = stack_array(_CHOSEN, np.int64)
_digit_starts = stack_array(-(-64 // _DIGIT_BITS) << _DIGIT_BITS, np.uint64)

_Arguments = Callable[[DType], tuple[Any, ...]]


class KernelRegistry(dict[str, tuple[Callable[..., Any], _Arguments]]):
    """Name → (a kernel before it is compiled, its argument types for a dtype)."""

    def kernel(self, arguments: _Arguments) -> Callable[[Any], Any]:
        """Decorate a kernel with these types of arguments."""

        def register(function: Any) -> Any:
            self[function.__name__] = (function, arguments)
            return function

        return register


ROW_FUNCTIONS = KernelRegistry()


@ROW_FUNCTIONS.kernel(lambda dtype: (read(dtype), read(np.int64), changed(dtype), INT64))
def gather(table, rows, out, width):  # type: ignore[no-untyped-def]
    """Do ``out[r] = table[rows[r]]``, rows of ``width`` bytes."""
    fetched = min(width, _PREFETCHED_BYTES)
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            start = rows[r + _AHEAD] * width
            prefetch(table, start)  # by itself: see ``jit.prefetch_row``
            for i in range(_LINE_BYTES, fetched, _LINE_BYTES):
                prefetch(table, start + i)
        copy_elements(out, r * width, table, rows[r] * width, width)


@ROW_FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(np.int64), INT64, changed(dtype), changed(np.dtype(np.uint8)), INT64,
    )
)  # fmt: skip
def sum_rows(values, inverse, first, out, seen, width):  # type: ignore[no-untyped-def]
    """Do ``out[inverse[r] - first] += values[r]`` in order, for those that are in ``out``.

    The first of each is copied. ``seen``: zero, an element for each row of ``out``.
    """
    step = _LINE_BYTES // out.itemsize
    fetched = min(width, _PREFETCHED_BYTES // out.itemsize)
    # Chosen first: a branch for each would be guessed wrong half the time.
    chosen = _chosen_rows()
    for start in range(0, inverse.size, _CHOSEN):
        count = 0
        for r in range(start, min(inverse.size, start + _CHOSEN)):
            chosen[count] = r
            count += int(np.uint64(inverse[r] - first) < np.uint64(seen.size))
        for j in range(count):
            if j + _AHEAD < count:
                ahead = (inverse[chosen[j + _AHEAD]] - first) * width
                prefetch(out, ahead)
                for i in range(step, fetched, step):
                    prefetch(out, ahead + i)
            r = chosen[j]
            row = inverse[r] - first
            lo, at = np.uint64(row * width), np.uint64(r * width)
            if seen[row]:
                for i in range(np.uint64(width)):
                    out[lo + i] += values[at + i]
            else:
                seen[row] = 1
                for i in range(np.uint64(width)):
                    out[lo + i] = values[at + i]


@ROW_FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), INT64, changed(np.dtype(np.uint64)), changed(dtype),
        changed(np.dtype(np.int64)),
    )
)  # fmt: skip
def deduplicate_bitmap(ids, num_rows, words, unique, inverse):  # type: ignore[no-untyped-def]
    """Set a bit per id, number the set bits, and look each id's number up.

    ``words``: zero; for each 64 rows their bits, and beside them how many are set before.

    Returns:
        Number of unique ids; or -1 - the position of an id that is out of range.
    """
    one, low = np.uint64(1), np.uint64(63)
    for i in range(ids.size):
        if ids[i] < 0 or ids[i] >= num_rows:
            return -1 - i
        number = np.uint64(ids[i])
        words[(number >> np.uint64(6)) << one] |= one << (number & low)
    count = 0
    for word in range(words.size // 2):
        bits = words[2 * word]
        words[2 * word + 1] = np.uint64(count)
        while bits:
            unique[count] = 64 * word + lowest_bit(bits)
            count += 1
            bits &= bits - one
    for i in range(ids.size):
        number = np.uint64(ids[i])
        at = (number >> np.uint64(6)) << one
        below = words[at] & ((one << (number & low)) - one)
        inverse[i] = np.int64(words[at + one]) + count_bits(below)
    return count


@ROW_FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), INT64, changed(np.dtype(np.uint64)), changed(np.dtype(np.uint64)),
        changed(dtype), changed(dtype),
    )
)  # fmt: skip
def deduplicate_radix(ids, num_rows, words, other, unique, inverse):  # type: ignore[no-untyped-def]
    """Sort the ids with their positions, a digit a pass, lowest first; then number them.

    ``words`` and ``other``: memory to work in, as large as ``ids``. An id and its position stand in
    one word, so both must fit into its 64 bits; and ``num_rows`` is not 0.

    Returns:
        Number of unique ids, as ``deduplicate_bitmap`` returns it.
    """
    size, one, zero = np.uint64(ids.size), np.uint64(1), np.uint64(0)
    position_bits, id_bits = zero, one
    while size >> position_bits > zero:
        position_bits += one
    while np.uint64(num_rows - 1) >> id_bits > zero:
        id_bits += one
    passes = (id_bits + np.uint64(_DIGIT_BITS - 1)) // np.uint64(_DIGIT_BITS)
    digit_bits = (id_bits + passes - one) // passes
    mask = (one << digit_bits) - one
    starts = _digit_starts()
    for i in range(passes << digit_bits):
        starts[i] = zero
    for i in range(size):
        if ids[i] < 0 or ids[i] >= num_rows:
            return -1 - np.int64(i)
        number = np.uint64(ids[i])
        words[i] = (number << position_bits) | i
        for digit in range(passes):
            starts[(digit << digit_bits) | ((number >> (digit * digit_bits)) & mask)] += one
    for digit in range(passes):
        total = zero
        for value in range(mask + one):
            count = starts[(digit << digit_bits) | value]
            starts[(digit << digit_bits) | value] = total
            total += count
        shift = position_bits + digit * digit_bits
        for i in range(size):
            word = words[i]
            value = (digit << digit_bits) | ((word >> shift) & mask)
            at = starts[value]
            starts[value] = at + one
            other[at] = word
        words, other = other, words
    unique_count, previous = zero, np.int64(-1)
    position_mask = (one << position_bits) - one
    for i in range(size):
        row = np.int64(words[i] >> position_bits)
        unique_count += np.uint64(row != previous)
        unique[unique_count - one] = row
        inverse[words[i] & position_mask] = np.int64(unique_count) - 1
        previous = row
    return np.int64(unique_count)
