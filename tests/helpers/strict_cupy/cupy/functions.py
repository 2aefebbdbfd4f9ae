"""Functions that make arrays, and NumPy's functions of arrays of the current GPU."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from .arrays import Capsule, check_dtype, ndarray, on_current, operand, require_current
from .devices import current


def array(obj: Any, dtype: Any = None, copy: bool = True, order: Any = "K", ndmin: int = 0) -> Any:
    """An array on the current GPU, of anything; of another GPU's array a copy."""
    if isinstance(obj, ndarray):
        if obj.gpu == current.gpu:
            return obj.astype(dtype or obj.dtype, copy=bool(copy))
        return obj.copy().astype(dtype or obj.dtype, copy=False)
    if isinstance(obj, list | tuple) and any(isinstance(each, ndarray) for each in obj):
        obj = [operand(each) if isinstance(each, ndarray) else each for each in obj]
    return ndarray.of(np.array(obj, dtype=dtype, ndmin=ndmin), current.gpu)


def asarray(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """As :func:`array`; the array itself if it is on the current GPU."""
    return array(a, dtype, copy=False)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None) -> Any:
    """A copy on the host."""
    return a.get(out=out) if isinstance(a, ndarray) else np.asarray(a)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """An array in C order."""
    return on_current(np.ascontiguousarray(operand(asarray(a, dtype))))


def from_dlpack(x: Any) -> Any:
    """An array of another library that shares an array of here."""
    if isinstance(x, ndarray):
        return x
    x.__dlpack_device__()
    capsule = x.__dlpack__(stream=1)
    if not isinstance(capsule, Capsule):
        raise NotImplementedError("only what shares an array of the stand-in")
    return capsule.array


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array without values."""
    return ndarray(shape, dtype)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of zeros."""
    return on_current(np.zeros(shape, check_dtype(dtype)))


def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of ones."""
    return on_current(np.ones(shape, check_dtype(dtype)))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    """An array of one number."""
    return on_current(np.full(shape, operand(fill_value), dtype))


def arange(*args: Any, dtype: Any = None) -> Any:
    """Numbers in a row."""
    return on_current(np.arange(*args, dtype=dtype))


def concatenate(arrays: Any, axis: Any = 0, **options: Any) -> Any:
    """Arrays of the current GPU, one after another."""
    for each in arrays:
        if not isinstance(each, ndarray):
            raise TypeError(f"Only cupy arrays can be concatenated, got {type(each)}")
    require_current(*arrays)
    return on_current(np.concatenate([each.host for each in arrays], axis))


def shape(a: Any) -> tuple[int, ...]:
    """Its shape, of whatever GPU."""
    return tuple(a.shape) if isinstance(a, ndarray) else np.shape(a)


def ndim(a: Any) -> int:
    """Its number of axes, of whatever GPU."""
    return int(a.ndim) if isinstance(a, ndarray) else np.ndim(a)


def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
    """Elements within bounds."""
    return asarray(a).clip(a_min, a_max)


def norm(x: Any, *args: Any, **options: Any) -> Any:
    """``cupy.linalg.norm``."""
    return on_current(np.linalg.norm(operand(x), *args, **options))


def as_numpys(name: str) -> Callable[..., Any]:
    """NumPy's function of this name, of arrays of the current GPU."""
    function = getattr(np, name)

    def taken(value: Any) -> Any:
        if isinstance(value, ndarray):
            return operand(value)
        if isinstance(value, list | tuple):
            return type(value)(taken(each) for each in value)
        if isinstance(value, np.ndarray):
            raise TypeError(f"cupy.{name}: Unsupported type {type(value)}")
        return value

    @wraps(function)
    def ours(*args: Any, **options: Any) -> Any:
        given = {key: taken(value) for key, value in options.items()}
        return on_current(function(*taken(args), **given))

    return ours
