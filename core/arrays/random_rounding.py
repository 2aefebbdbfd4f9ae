"""Rounding to fewer bits, up or down at random, so that the mean of many is what was rounded.

A gradient that is small beside the last bit of its dtype is lost by rounding to nearest each time;
at random it arrives as often as its size says (Gupta et al., "Deep Learning with Limited Numerical
Precision", 2015). Draws come from a counter-based generator: the same key gives the same draws.
"""

import numpy as np

from .dtypes import BFLOAT16, Array, DType, narrow

_LOST_BITS = {BFLOAT16: 16, np.dtype(np.float16): 13}  # of float32
_LEAST_NORMAL, _PER_QUANTUM = np.float32(2.0**-14), np.float32(2.0**24)  # of float16
_DRAW = 2.0**-32


def round_randomly(values: Array, wire: DType, key: tuple[int, int]) -> Array:
    """Round values to a narrower dtype, each to one of its two neighbours there.

    Beyond the largest number of ``wire`` it is that number. NaN stays.

    Args:
        values: float32 or float64, contiguous, of any shape.
        wire: bfloat16 or float16. To another dtype values are rounded to nearest.
        key: Two numbers in ``[0, 2**64)``: chooses the draws.

    Returns:
        Array of the shape of ``values``.
    """
    lost = _LOST_BITS.get(wire)
    if lost is None or values.dtype.kind != "f" or values.dtype.itemsize < 4:
        return narrow(values, wire)
    exact = values.astype(np.float32, copy=False)
    largest = np.float32(narrow(np.array([np.inf], np.float32), wire)[0])
    exact = np.clip(exact, -largest, largest)
    generator = np.random.Philox(key=np.array(key, np.uint64))
    draws = generator.random_raw(-(-exact.size // 2)).view(np.uint32)[: exact.size]
    draws = draws.reshape(exact.shape)
    mask = np.uint32((1 << lost) - 1)
    bits = exact.view(np.uint32)
    rounded = ((bits + (draws & mask)) & ~mask).view(np.float32)
    if wire != BFLOAT16:  # whose exponents are those of float32
        small = np.abs(exact) < _LEAST_NORMAL
        if small.any():
            steps = np.floor(np.abs(exact[small]) * _PER_QUANTUM + draws[small] * _DRAW)
            rounded[small] = np.copysign(steps / _PER_QUANTUM, exact[small])
    is_nan = np.isnan(exact)
    if is_nan.any():
        rounded[is_nan] = np.nan
    return rounded.astype(wire)
