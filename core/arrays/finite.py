"""Finding NaN and infinity in one pass over the data."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..process.accelerators import load_cupy
from .dtypes import Array, DType, is_float
from .gather_buffer import joined

_SMALL_BYTES = 64 * 1024


def all_finite(array: Array) -> bool:
    """Return whether ``array`` has neither NaN nor infinity. One pass, no temporary for float32/64.

    The dot product with itself (BLAS) is the fastest pass; it is finite only if every element is.
    If it is not, large finite values may have overflowed, and every element is checked.
    """
    if not is_float(array.dtype) or array.size == 0:
        return True
    flat = array if array.ndim == 1 else array.reshape(-1)
    if array.dtype.itemsize < 4:
        return bool(np.isfinite(flat.astype(np.float32)).all())
    # Not np.dot, which looks for overflow, too, and warns of it.
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(flat).all())


def first_not_finite(arrays: Mapping[str, Array]) -> str | None:
    """Find an array with NaN or infinity; None if there is none.

    Small arrays are checked together, so that many of them cost no more than their bytes.
    """
    small: dict[DType, list[Array]] = {}
    for name, array in arrays.items():
        if array.nbytes > _SMALL_BYTES:
            if not all_finite(array):
                return name
        elif is_float(array.dtype):
            small.setdefault(array.dtype, []).append(array)
    for several in small.values():
        if not all_finite(joined(several)):
            return next(name for name, array in arrays.items() if not all_finite(array))
    return None


def first_not_finite_on_gpus(arrays: Mapping[str, Any]) -> str | None:
    """Find a CuPy array with NaN or infinity, as :func:`first_not_finite` does. Waits for each GPU
    once.
    """
    finite: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        if is_float(array.dtype) and array.size:
            with array.device:
                wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
                finite.setdefault(array.device.id, {})[name] = load_cupy().isfinite(wide).all()
    for several in finite.values():
        flags = list(several.values())
        with flags[0].device:
            are_finite = load_cupy().stack(flags).get()
        if not are_finite.all():
            return list(several)[int(np.argmin(are_finite))]
    return None
