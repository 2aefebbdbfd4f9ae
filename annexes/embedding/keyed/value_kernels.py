"""Kernels of a growing table's rows: first values, uses, and the rules that look at whole rows.

Arguments are checked by the modules that call them. ``draws.py`` and ``row_rules.py`` say the same
in array operations.
"""

import math
from typing import Any

import numpy as np

from ....core.arrays.dtypes import DType
from ....core.rules.update_rules import AHEAD, clip, prefetch_row
from ....engine.jit import INT64, bits_of, changed, inlined, of_bits, prefetch, read, stack_array
from ....engine.row_kernels import KernelRegistry

FUNCTIONS = KernelRegistry()
_TILE = 256  # keys that are drawn for at once
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MANTISSA_BITS, _MANTISSA, _HALF_EXPONENT = np.uint64(52), np.uint64(2**52 - 1), 1022
_HALF = np.uint64(_HALF_EXPONENT << 52)
_LN2, _ROOT_HALF = math.log(2), math.sqrt(0.5)
_UINT32 = np.dtype(np.uint32)
_FLOAT64 = np.dtype(np.float64)
_drawn_words = stack_array(4 * _TILE, np.uint64)


@inlined
def _log(x):  # type: ignore[no-untyped-def]
    bits = bits_of(x)  # of a normal number above 0: ``math.frexp``
    exponent = np.int64(bits >> _MANTISSA_BITS) - _HALF_EXPONENT
    mantissa = of_bits((bits & _MANTISSA) | _HALF)
    if mantissa < _ROOT_HALF:
        mantissa *= 2.0
        exponent -= 1
    f = (mantissa - 1.0) / (mantissa + 1.0)
    s = f * f
    series = 1.0 / 17.0
    series = series * s + 1.0 / 15.0
    series = series * s + 1.0 / 13.0
    series = series * s + 1.0 / 11.0
    series = series * s + 1.0 / 9.0
    series = series * s + 1.0 / 7.0
    series = series * s + 1.0 / 5.0
    series = series * s + 1.0 / 3.0
    series = series * s + 1.0
    return exponent * _LN2 + 2.0 * f * series


@inlined
def _normal_quantile(p):  # type: ignore[no-untyped-def]
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
        return q * above / below
    tail = p if q < 0 else 1.0 - p
    r = math.sqrt(-_log(tail)) - 1.6
    above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
    below = (0.12021132975 * r + 0.73700164250) * r + 1.0
    return -(above / below) if q < 0 else above / below


@FUNCTIONS.kernel(
    lambda dtype: (
        read(np.int64), read(np.int64), changed(dtype), INT64, read(np.uint64), INT64,
        read(np.float64),
    )
)  # fmt: skip
def draw_rows(keys, rows, out, width, counter, normal, h):  # type: ignore[no-untyped-def]
    """Draw rows: ``width`` draws into ``out[rows[i]]`` that ``keys[i]`` and the counter decide; see
    ``draws.py``.

    ``counter``: seed, first block. ``normal``: whether quantiles of a normal distribution are
    taken. ``h``: offset, span of what goes into those; offset, factor of the result.
    """
    first, span, offset, factor = h[0], h[1], h[2], h[3]
    blocks = (width + 3) // 4
    words = _drawn_words()
    for block in range(blocks):
        for start in range(0, keys.size, _TILE):
            count = min(_TILE, keys.size - start)
            # A loop of its own: the compiler makes vectors of it.
            for i in range(count):
                key = np.uint64(keys[start + i])
                c0, c1 = key & _LOW, key >> _SHIFT
                c2, c3 = counter[1] + np.uint64(block), np.uint64(0)
                k0, k1 = counter[0] & _LOW, counter[0] >> _SHIFT
                for _ in range(10):
                    p0, p1 = _M0 * c0, _M1 * c2
                    c0, c2 = (p1 >> _SHIFT) ^ c1 ^ k0, (p0 >> _SHIFT) ^ c3 ^ k1
                    c1, c3 = p1 & _LOW, p0 & _LOW
                    k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
                words[i], words[_TILE + i] = c0, c1
                words[2 * _TILE + i], words[3 * _TILE + i] = c2, c3
            for i in range(count):
                lo = rows[start + i] * width + 4 * block
                for j in range(min(4, width - 4 * block)):
                    x = first + span * ((np.float64(words[j * _TILE + i]) + 0.5) * 2.0**-32)
                    if normal != 0:
                        x = _normal_quantile(x)
                    out[lo + j] = offset + factor * x


@FUNCTIONS.kernel(lambda dtype: (read(np.int64), changed(dtype), INT64))
def mark_rows(rows, uses, mark):  # type: ignore[no-untyped-def]
    """Write a mark over the step of each row, until one has it already; -1 is no row.

    ``uses``: of each row how many pushes it had, and the step of the last one.

    Returns:
        Number of places without a row; -1: a row is there twice.
    """
    missing = 0
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            prefetch(uses, 2 * max(rows[r + AHEAD], 0))
        row = rows[r]
        if row < 0:
            missing += 1
            continue
        step = np.uint64(2 * row + 1)
        if uses[step] == np.uint32(mark):
            return -1
        uses[step] = np.uint32(mark)
    return missing


@FUNCTIONS.kernel(lambda dtype: (read(np.int64), changed(dtype), INT64))
def touch_rows(rows, uses, step):  # type: ignore[no-untyped-def]
    """Count one more push of each row, up to the largest number, and note the step."""
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            prefetch(uses, 2 * rows[r + AHEAD])
        count = np.uint64(2 * rows[r])
        uses[count] += np.uint32(uses[count] != np.uint32(0xFFFFFFFF))
        uses[count + np.uint64(1)] = np.uint32(step)


@FUNCTIONS.kernel(lambda dtype: (read(dtype), INT64, changed(np.dtype(np.int64))))
def kth_smallest(words, k, counts):  # type: ignore[no-untyped-def]
    """Find the word that would stand at ``k`` if they were sorted: by their upper, then lower
    half.

    ``counts``: room to work in, for each value of a half; zero.
    """
    half, low = np.uint32(16), np.uint32(0xFFFF)
    for i in range(words.size):
        counts[words[i] >> half] += 1
    upper = 0
    while k >= counts[upper]:
        k -= counts[upper]
        upper += 1
    counts[:] = 0
    for i in range(words.size):
        if words[i] >> half == upper:
            counts[words[i] & low] += 1
    lower = 0
    while k >= counts[lower]:
        k -= counts[lower]
        lower += 1
    return (upper << 16) | lower


@FUNCTIONS.kernel(lambda dtype: (read(dtype), INT64, changed(_FLOAT64)))
def square_rows(values, width, out):  # type: ignore[no-untyped-def]
    """Sum the squares of each row, from its first element on, in float64, into ``out``."""
    for r in range(out.size):
        total = 0.0
        for i in range(r * width, (r + 1) * width):
            x = np.float64(values[i])
            total += x * x
        out[r] = total


def _rule_arguments(dtype: DType) -> tuple[Any, ...]:
    """List the types of ``w, s0, s1, g, rows, width, h, uses, table``."""
    slots = [changed(dtype)] * 3
    return (*slots, read(dtype), read(np.int64), INT64, read(dtype), read(_UINT32), read(dtype))


@FUNCTIONS.kernel(_rule_arguments)
def adam_rows(w, s0, s1, g, rows, width, h, uses, table):  # type: ignore[no-untyped-def]
    """Adam whose corrections follow each row's own count of updates, this one included.

    h[0], h[1]: scale, clip value. h[2]: rate. h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2. h[7]:
    weight decay. ``table``: for each count from 1 on, up to where they stay the same, the factor of
    the rate and the epsilon.
    """
    scale, limit, lr = h[0], h[1], h[2]
    b1, c1, b2, c2, decay = h[3], h[4], h[5], h[6], h[2] * h[7]
    most = table.size // 2
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            prefetch_row(s1, ahead, width)
        entry = 2 * (min(np.int64(uses[2 * rows[r]]), most) - 1)
        alpha, eps = lr * table[entry], table[entry + 1]
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            m = b1 * s0[lo + i] + c1 * x
            v = b2 * s1[lo + i] + c2 * x * x
            s0[lo + i] = m
            s1[lo + i] = v
            old = w[lo + i]
            w[lo + i] = old - decay * old - alpha * m / (np.sqrt(v) + eps)


@FUNCTIONS.kernel(_rule_arguments)
def rowwise_adagrad(w, s0, s1, g, rows, width, h, uses, table):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Do ``a += mean(g*g); w -= lr * g / (sqrt(a) + eps)``; ``s0``: one ``a`` per row.

    h[3]: eps. h[4]: 1 / width.
    """
    scale, limit, lr, eps = h[0], h[1], h[2], h[3]
    zero = h.dtype.type(0)  # in the arrays' dtype: with an integer's all were float64
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            prefetch_row(w, rows[r + AHEAD] * width, width)
            prefetch(s0, rows[r + AHEAD])
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        total = zero
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            total += x * x
        a = s0[rows[r]] + total * h[4]
        s0[rows[r]] = a
        rate = lr / (np.sqrt(a) + eps)
        for i in range(np.uint64(width)):
            w[lo + i] -= rate * clip(g[at + i] * scale, limit)


@FUNCTIONS.kernel(_rule_arguments)
def group_ftrl(w, s0, s1, g, rows, width, h, uses, table):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Update by group FTRL: accumulator s0, linear s1."""
    scale, limit, lr, l1, l2, group = h[0], h[1], h[2], h[3], h[4], h[5]
    zero = h.dtype.type(0)  # as above
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        total = zero
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            n, old = s0[lo + i], w[lo + i]
            new = n + x * x
            z = s1[lo + i] + (x - (np.sqrt(new) - np.sqrt(n)) / lr * old)
            s0[lo + i] = new
            s1[lo + i] = z
            shrunk = clip(z, l1) - z
            total += shrunk * shrunk
        norm = np.sqrt(total)
        keep = (norm - group) / norm if norm > group else zero
        for i in range(np.uint64(width)):
            z = s1[lo + i]
            w[lo + i] = keep * (clip(z, l1) - z) / (np.sqrt(s0[lo + i]) / lr + l2)
