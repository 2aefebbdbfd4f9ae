"""CuPy's ufuncs: NumPy's, of arrays of the current GPU alone."""

from typing import Any

import numpy as np

from .arrays import ndarray, on_current, operand, require_current

_ADDED = {"int32", "int64", "uint32", "uint64", "float16", "float32", "float64"}
_COMPARED = _ADDED - {"float16"}
# As cupy/_core/_routines_indexing.pyx has it; there is no multiply.at and no divide.at.
_AT = {
    "add": _ADDED,
    "subtract": {"int32", "uint32"},
    "maximum": _COMPARED,
    "minimum": _COMPARED,
}
_NOT_OF_BFLOAT16 = {"isfinite", "isinf", "isnan"}


class Ufunc:
    """One of them.

    Args:
        ufunc: NumPy's.
    """

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self.__name__ = ufunc.__name__

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, **options: Any) -> Any:
        """Compute on the current GPU."""
        given = [operand(each) for each in args]
        if self.__name__ in _NOT_OF_BFLOAT16 and args[0].dtype.name == "bfloat16":
            raise TypeError(f"Wrong type ({args[0].dtype}) of arguments for cupy_{self.__name__}")
        if dtype is not None:
            options["dtype"] = dtype
        with np.errstate(all="ignore"):
            result = self._ufunc(*given, **options)
        if out is None:
            return on_current(result)
        require_current(out)
        out.host[...] = result
        return out

    def at(self, array: Any, index: Any, values: Any = None) -> None:
        """Change elements in place; of repeated ones in any order."""
        if self.__name__ not in _AT:
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        if not isinstance(array, ndarray):
            raise TypeError(f"Unsupported type {type(array)}")
        require_current(array, index, values)
        if array.dtype.name not in _AT[self.__name__]:
            known = ", ".join(sorted(_AT[self.__name__]))
            raise TypeError(f"cupy.{self.__name__}.at only supports {known} as data type")
        where = index.host if isinstance(index, ndarray) else index
        given = values.host if isinstance(values, ndarray) else values
        self._ufunc.at(array.host, where, np.asarray(given).astype(array.dtype))

    def reduce(self, array: Any, axis: Any = 0, **options: Any) -> Any:
        """Reduce over an axis."""
        return on_current(self._ufunc.reduce(operand(array), axis=axis, **options))
