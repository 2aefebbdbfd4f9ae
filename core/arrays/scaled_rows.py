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


INT8 = np.dtype(np.int8)
SCALE_BYTES = 4
_MOST = np.float32(127)
_FLOAT32 = np.dtype(np.float32)
_MOST_SCALE = np.nextafter(np.finfo(np.float32).max / _MOST, np.float32(0))  # 127 of it are finite


def pack_rows(values: Array, key: tuple[int, int] | None = None) -> Array:
    """Pack rows as int8 with their scales.

    Args:
        values: Floating-point numbers, shape ``(n, width)``.
        key: Chooses the draws by which elements are rounded, up or down at random and right in the
            mean; the same key gives the same. None: to nearest..

    Returns:
        uint8, shape ``(n, 4 + width)``. The scale of a row with NaN or infinity is neither finite.
    """
    packed = np.empty((values.shape[0], SCALE_BYTES + values.shape[1]), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(np.float32, copy=False)
        scales = np.abs(values).max(axis=1, initial=0) / _MOST
        scales = np.where(np.isfinite(scales), np.minimum(scales, _MOST_SCALE), scales)
        steps = np.divide(
            values, scales[:, None], dtype=np.float32, casting="same_kind",
            where=scales[:, None] > 0, out=np.zeros(values.shape, np.float32),
        )  # fmt: skip
        if key is None:
            np.rint(steps, out=steps)
        else:
            generator = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
            steps = np.floor(steps.astype(np.float64) + generator.random(steps.shape))
        codes = np.nan_to_num(np.clip(steps, -_MOST, _MOST)).astype(np.int8)
    packed[:, :SCALE_BYTES] = scales.reshape(-1, 1).view(np.uint8)
    packed[:, SCALE_BYTES:] = codes.view(np.uint8)
    return packed


def unpack_rows(packed: Array, dtype: DType) -> Array:
    """Unpack rows out of int8 and scales.

    Args:
        packed: uint8, shape ``(n, 4 + width)``.
        dtype: Dtype of the result.

    Returns:
        Shape ``(n, width)``.
    """
    scales, codes = _scales(packed), packed[:, SCALE_BYTES:].view(np.int8)
    with np.errstate(invalid="ignore", over="ignore"):
        rows: Array = np.multiply(codes, scales, dtype=np.float32)
    return rows.astype(dtype, copy=False)


def first_bad_scale(packed: Array) -> float | None:
    """Find the first scale that is negative, NaN, or makes a value infinite; None: there is
    none.
    """
    scales = _scales(packed)
    bad = np.flatnonzero(~((scales >= 0) & (scales <= _MOST_SCALE)))
    return float(scales[bad[0], 0]) if bad.size else None


def _scales(packed: Array) -> Array:
    return np.ascontiguousarray(packed[:, :SCALE_BYTES]).view(_FLOAT32)
