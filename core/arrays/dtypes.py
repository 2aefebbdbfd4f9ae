"""The array types of the core, the dtypes a variable may have, and those of arrays that peers
describe by text.
"""

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)

FLOATS: tuple[DType, ...] = (
    np.dtype(np.float32),
    np.dtype(np.float64),
    np.dtype(np.float16),
    BFLOAT16,
)
INTEGERS: tuple[DType, ...] = tuple(
    np.dtype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
DTYPES: tuple[DType, ...] = (*FLOATS, *INTEGERS, np.dtype(np.bool_))

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}

# NumPy's own `dtype.str`: byte order, kind, size. NumPy reads far more, some of it as Python.
_DESCRIBED = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SU][1-9][0-9]{0,7}"
    r"|[mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)


def as_dtype(value: object) -> DType:
    """Look up the variable dtype that ``value`` names, e.g. ``"bfloat16"`` or ``np.float32``.

    Raises:
        TypeError: It is no dtype a variable may have.
    """
    try:
        if value is None:  # NumPy would take it for float64
            raise TypeError(value)
        dtype = _BY_NAME[value] if isinstance(value, str) else np.dtype(value)  # type: ignore[call-overload]
    except (KeyError, TypeError):
        dtype = None
    if dtype is None or dtype not in DTYPES:
        names = ", ".join(_BY_NAME)
        raise TypeError(f"{value!r} is no dtype of a variable; those are {names}")
    return dtype


def in_native_order(array: Array) -> Array:
    """Return the array itself, or a copy if its bytes are in another order than this machine's."""
    dtype = array.dtype
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def described_dtype(text: object) -> DType:
    """Read the dtype that a peer or a file describes: what :func:`describe_dtype` makes, nothing
    else.

    Booleans, numbers, strings and times, which no code is run to read.

    Raises:
        ValueError: It is another text, or none.
    """
    if text == BFLOAT16.name:
        return BFLOAT16
    if not isinstance(text, str) or not _DESCRIBED.fullmatch(text):
        raise ValueError(f"{str(text)[:40]!r} is no dtype of numbers, strings or times")
    try:
        return np.dtype(text)
    except TypeError as error:  # more characters than an element may have
        raise ValueError(str(error)) from None


def describe_dtype(dtype: DType) -> str:
    """Write a dtype as text: NumPy's ``dtype.str``, or the name where NumPy has none.

    Raises:
        TypeError: Its arrays have something else than numbers, strings or times: objects, fields.
    """
    text = dtype.name if dtype == BFLOAT16 else dtype.str
    try:
        described_dtype(text)
    except ValueError as error:
        raise TypeError(str(error)) from None
    return text


def is_float(dtype: DType) -> bool:
    """Return whether an update rule can run on values of a dtype."""
    return dtype in FLOATS


def row_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one row along axis 0; a scalar is its own row."""
    return shape[1:]


def num_rows(shape: tuple[int, ...]) -> int:
    """Count the rows along axis 0; a scalar has one."""
    return shape[0] if shape else 1


def size_of(shape: tuple[int, ...]) -> int:
    """Count the elements of a shape."""
    size = 1
    for extent in shape:
        size *= extent
    return size


def as_bytes(array: Array) -> memoryview:
    """View the bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def total_bytes(buffers: Sequence[memoryview]) -> int:
    """Count the bytes of a payload."""
    return sum(len(buffer) for buffer in buffers)


def narrow(values: Array, wire: DType) -> Array:
    """Cast values to the dtype in which they travel; half types keep their largest number where
    there is no room.

    Infinity becomes that number too; NaN stays.
    """
    limit = _LARGEST.get(wire)
    if limit is None or values.dtype == wire or _LARGEST.get(values.dtype, np.inf) < limit:
        return values.astype(wire, copy=False)
    narrowed = np.empty(values.shape, wire)
    flat, target = values.reshape(-1), narrowed.reshape(-1)
    # Float32 at least: the limit of one half type cannot be said in the other.
    tile = np.empty(min(flat.size, _TILE), np.float64 if values.dtype.itemsize > 4 else np.float32)
    for start in range(0, flat.size, _TILE):
        part = flat[start : start + _TILE]
        clipped = tile[: part.size]
        np.clip(part.astype(tile.dtype, copy=False), -limit, limit, out=clipped)
        target[start : start + _TILE] = clipped
    return narrowed


_finfo: Any = ml_dtypes.finfo
_TILE = 1 << 16  # elements: stay in the L2 cache between clipping and conversion
_LARGEST: dict[DType, float] = {
    dtype: float(_finfo(dtype).max) for dtype in (np.dtype(np.float16), BFLOAT16)
}


_FEW_BYTES = 16 * 1024


def same_values(left: Array, right: Array) -> bool:
    """Return whether two arrays have one shape and equal elements; no temporary memory of a large
    size.

    NaN is equal to itself in small arrays of the same bytes.

    Args:
        left: array of any shape.
        right: array of any shape.
    """
    if left.shape != right.shape:
        return False
    # NumPy takes longer to begin than the bytes of a small array take.
    few = left.nbytes <= _FEW_BYTES and left.dtype == right.dtype
    if few and left.tobytes() == right.tobytes():
        return True
    contiguous = left.flags.c_contiguous and right.flags.c_contiguous
    if left.size <= _TILE or not contiguous:
        return bool(np.array_equal(left, right))
    a, b = left.reshape(-1), right.reshape(-1)
    return all(
        np.array_equal(a[start : start + _TILE], b[start : start + _TILE])
        for start in range(0, a.size, _TILE)
    )
