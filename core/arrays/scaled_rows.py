"""Rows of int8 with a scale each, as they travel: four bytes of float32, then a byte per element.

The largest element of a row becomes 127 or -127, and none is off by more than a step, which is a
127th of it; by half a step where it is rounded to nearest.
"""

import numpy as np

from .dtypes import Array, DType

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
            mean; the same key gives the same. None: to nearest. See ``random_rounding``.

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
