"""``cupy.ndarray``: an array of one GPU, of the host's memory in truth."""

import ctypes
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from .devices import Device, current

SCALARS = (bool, int, float, complex, np.generic)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def check_dtype(dtype: Any) -> Any:
    """A dtype that CuPy's arrays may have.

    Raises:
        ValueError: They may not.
    """
    found = np.dtype(dtype)
    if (found.kind in "?biufc" and found.name != "longdouble") or found == _BFLOAT16:
        return found
    raise ValueError(f"Unsupported dtype {found}")


def require_current(*arrays: Any) -> None:
    """Raise ValueError if one of the arrays is of a GPU that is not current.

    CuPy does so where the GPUs have no access to each other. Where they have, it warns and computes
    on a stream that nothing orders after the array's own.
    """
    for array in arrays:
        if isinstance(array, ndarray) and array.gpu != current.gpu:
            raise ValueError(
                f"The device where the array resides ({array.gpu}) is different from the current "
                f"device ({current.gpu})."
            )


def operand(value: Any) -> Any:
    """What NumPy computes with, of an argument of a kernel.

    Raises:
        TypeError: It is no array of a GPU and no number; 0-d arrays of NumPy are none either.
        ValueError: It is of a GPU that is not current.
    """
    if isinstance(value, ndarray):
        require_current(value)
        return value.host
    if isinstance(value, SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def on_current(result: Any) -> Any:
    """A result of NumPy as one of the current GPU; numbers become arrays without axes."""
    if isinstance(result, tuple):
        return tuple(on_current(each) for each in result)
    if isinstance(result, np.ndarray | np.generic):
        return ndarray.of(np.asarray(result), current.gpu)
    return result


class _Memory:
    """``ndarray.data``."""

    def __init__(self, array: Any, gpu: int) -> None:
        self.ptr = array.ctypes.data
        self.device_id = gpu
        self.device = Device(gpu)


class Capsule:
    """What ``__dlpack__`` gives."""

    def __init__(self, array: "ndarray") -> None:
        self.array = array


class ndarray:  # noqa: N801 - CuPy's name
    """An array of the GPU that is current when it is made.

    Attributes:
        host: The elements.
        gpu: Number of its GPU.
    """

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float) -> None:
        self.host: Any = np.empty(shape, check_dtype(dtype))
        self.gpu = current.gpu

    @classmethod
    def of(cls, host: Any, gpu: int) -> "ndarray":
        """The array of a GPU with these elements, which are not copied."""
        check_dtype(host.dtype)
        made = cls.__new__(cls)
        made.host, made.gpu = host, gpu
        return made

    def _view(self, host: Any) -> "ndarray":
        return ndarray.of(host, self.gpu)

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    nbytes = property(lambda self: self.host.nbytes)
    itemsize = property(lambda self: self.host.itemsize)
    strides = property(lambda self: self.host.strides)
    flags = property(lambda self: self.host.flags)
    device = property(lambda self: Device(self.gpu))
    data = property(lambda self: _Memory(self.host, self.gpu))
    T = property(lambda self: self._view(self.host.T))

    # -- other libraries ---------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu

    def __dlpack__(self, **options: Any) -> Capsule:
        return Capsule(self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        ours = getattr(_namespace(), ufunc.__name__, None)
        known = (*SCALARS, ndarray, np.ndarray)
        given = (*inputs, *options.get("out", ()))
        if ours is None or method == "reduceat" or not all(isinstance(x, known) for x in given):
            return NotImplemented
        if "out" in options:
            (options["out"],) = options["out"]
        return (ours if method == "__call__" else getattr(ours, method))(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        ours = getattr(_namespace(), function.__name__, None)
        if ours is None or not all(issubclass(kind, ndarray | np.ndarray) for kind in types):
            return NotImplemented
        return ours(*args, **options)

    # -- Python ------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self.host)

    def __iter__(self) -> Iterator["ndarray"]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __index__(self) -> int:
        return int(self.host.__index__())

    def __repr__(self) -> str:
        return repr(self.host)

    def __str__(self) -> str:
        return str(self.host)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if self.ndim else format(self.item(), spec)

    # -- copies ------------------------------------------------------------------------------

    def item(self) -> Any:
        """The only element, on the host."""
        return self.host.item()

    def tolist(self) -> Any:
        """The elements, on the host."""
        return self.host.tolist()

    def get(self, stream: Any = None, order: str = "C", out: Any = None, **options: Any) -> Any:
        """A copy on the host; into ``out`` of the same shape and dtype."""
        if out is None:
            return np.array(self.host)
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        if out.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual: {out.shape}")
        if not (out.flags.c_contiguous or out.flags.f_contiguous):
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        out[...] = self.host
        return out

    def copy(self, order: str = "C") -> "ndarray":
        """A copy on the current GPU, from whichever this one is on."""
        return ndarray.of(self.host.copy(order), current.gpu)

    def astype(
        self,
        dtype: Any,
        order: Any = "K",
        casting: Any = None,
        subok: Any = None,
        copy: bool = True,
    ) -> "ndarray":
        """A copy in a dtype, on the current GPU."""
        kind = check_dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        if kind != self.dtype:
            require_current(self)
        return ndarray.of(self.host.astype(kind, order=order), current.gpu)

    def view(self, dtype: Any = None) -> "ndarray":
        """The same memory in a dtype."""
        return self._view(self.host.view() if dtype is None else self.host.view(check_dtype(dtype)))

    def reshape(self, *shape: Any, order: Any = "C") -> "ndarray":
        """A view if that is possible; else a kernel copies."""
        found = self.host.reshape(*shape, order=order)
        if found.size and not np.shares_memory(found, self.host):
            require_current(self)
        return self._view(found)

    def ravel(self, order: Any = "C") -> "ndarray":
        """As :meth:`reshape` to one axis."""
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> "ndarray":
        """A copy with one axis."""
        require_current(self)
        return ndarray.of(self.host.flatten(order), current.gpu)

    def transpose(self, *axes: Any) -> "ndarray":
        """A view."""
        return self._view(self.host.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> "ndarray":
        """A view."""
        return self._view(self.host.swapaxes(first, second))

    def squeeze(self, axis: Any = None) -> "ndarray":
        """A view."""
        return self._view(self.host.squeeze(axis))

    # -- elements ----------------------------------------------------------------------------

    def fill(self, value: Any) -> None:
        """Set all elements to one number."""
        if isinstance(value, ndarray):
            if value.shape:
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            value = value.host
        number = np.asarray(value, dtype=self.dtype)
        if number.shape:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        require_current(self)
        self.host.fill(number[()])

    def __getitem__(self, index: Any) -> "ndarray":
        wanted, picks = _index(index)
        if picks:
            require_current(self, *_items(index))
            return ndarray.of(np.asarray(self.host[wanted]), current.gpu)
        found = self.host[wanted]
        if not isinstance(found, np.ndarray):  # of one element a view, too
            found = self.host[(*wanted, ...)]
        return self._view(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        wanted, picks = _index(index)
        require_current(self, value, *_items(index))
        if isinstance(value, ndarray):
            self.host[wanted or ...] = value.host.astype(self.dtype, copy=False)
        elif picks:
            self.host[wanted] = np.asarray(value, dtype=self.dtype)
        else:  # CuPy takes no array of NumPy here
            whole = any(each is Ellipsis for each in wanted)
            self._view(self.host[wanted if whole else (*wanted, ...)]).fill(value)

    def argmax(self, axis: Any = None, **options: Any) -> Any:
        """Where the largest element is."""
        require_current(self)
        return on_current(self.host.argmax(axis))

    def argsort(self, axis: Any = -1) -> Any:
        """Numbers in the order of the elements."""
        require_current(self)
        return on_current(self.host.argsort(axis))

    def clip(self, a_min: Any = None, a_max: Any = None) -> Any:
        """Elements within bounds."""
        require_current(self)
        return on_current(self.host.clip(a_min, a_max))

    def dot(self, other: Any) -> Any:
        """The dot product."""
        require_current(self)
        return on_current(self.host.dot(operand(other)))


def _namespace() -> ModuleType:
    return import_module(__package__)


def _items(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _index(index: Any) -> tuple[tuple[Any, ...], bool]:
    """An index for NumPy, and whether it picks by arrays, which is a kernel and makes a copy."""
    found: list[Any] = []
    picks = False
    for item in _items(index):
        if isinstance(item, ndarray):
            picks = True
            found.append(item.host)
        elif item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item):
            found.append(item)
        else:
            picks = True
            numbers = np.asarray(item)
            if numbers.dtype.kind not in "bui" and numbers.size:
                raise IndexError("arrays used as indices must be of integer or boolean type")
            found.append(numbers if numbers.size else numbers.astype(np.int32))
    return tuple(found), picks


def _is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


# -- operators and reductions ----------------------------------------------------------------


def _operator(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (*SCALARS, ndarray, np.ndarray)):
            return NotImplemented
        require_current(self)
        with np.errstate(all="ignore"):
            return on_current(getattr(self.host, name)(operand(other)))

    return method


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        require_current(self)
        with np.errstate(all="ignore"):
            getattr(self.host, name)(operand(other))
        return self

    return method


def _sign(name: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        require_current(self)
        return on_current(getattr(self.host, name)())

    return method


def _reduction(name: str) -> Callable[..., Any]:
    def method(
        self: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        require_current(self)
        options = {} if dtype is None else {"dtype": dtype}
        return on_current(getattr(self.host, name)(axis=axis, keepdims=keepdims, **options))

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
for _name in _BINARY:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _operator(f"__r{_name}__"))
    setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "lshift", "rshift"):
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{_name}__", _sign(f"__{_name}__"))
for _name in ("sum", "prod", "mean", "min", "max", "all", "any"):
    setattr(ndarray, _name, _reduction(_name))


def memory_at(address: int, count: int, dtype: Any) -> Any:
    """Elements at an address, as NCCL is given them."""
    num_bytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * num_bytes).from_address(address), dtype)
