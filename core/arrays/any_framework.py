"""Arrays of any framework, and which memory they are in: NumPy's on the host, CuPy's on a GPU.

What speaks DLPack or the array protocol is taken as it is, without a copy where its memory can be
shared. CuPy is imported only for arrays of a GPU.
"""

import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from ..process.accelerators import load_cupy
from .buffers import BufferPools
from .dtypes import Array, in_native_order

_DLPACK_CPU = 1  # kDLCPU
_DLPACK_CUDA = 2  # kDLCUDA


def namespace_of(array: Any) -> ModuleType:
    """Find the module whose functions work on an array: ``numpy`` or ``cupy``."""
    return load_cupy() if is_on_gpu(array) else np


def is_on_gpu(array: Any) -> bool:
    """Return whether it is a CuPy array. Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def beside(array: Any) -> AbstractContextManager[Any]:
    """Have CuPy allocate results on the GPU of ``array`` in this context; no effect on NumPy."""
    return array.device if is_on_gpu(array) else nullcontext()


def as_array(value: Any) -> Any:
    """View a value as a NumPy or CuPy array; no copy if it has DLPack or the array protocol.

    Numbers in another machine's byte order are copied into this one's. An array of another
    framework on a GPU is copied to the host where there is no CuPy.
    """
    if isinstance(value, np.ndarray):
        return in_native_order(value)
    if is_on_gpu(value):
        return value
    if getattr(value, "requires_grad", False):  # PyTorch exports no such memory
        value = value.detach()
    if hasattr(value, "__dlpack_device__") and not hasattr(value, "__array_interface__"):
        shared = _by_dlpack(value)
        if shared is not None:
            return shared
        # PyTorch has no array protocol for memory that is not the host's; JAX has.
        on_host = value.cpu() if hasattr(value, "cpu") else value
        if on_host is not value:
            return as_array(on_host)
    return in_native_order(np.asarray(value))


def _by_dlpack(value: Any) -> Any:
    """View another framework's memory; None: it shares none, as of bfloat16 on the host, of an
    array on several devices, or of a GPU without CuPy.
    """
    try:
        kind = int(value.__dlpack_device__()[0])
        if kind == _DLPACK_CUDA:
            return load_cupy().from_dlpack(value)
        if kind == _DLPACK_CPU:
            return np.from_dlpack(value)
    except (BufferError, ImportError, NotImplementedError, RuntimeError, TypeError):
        return None
    return None


def together(values: Iterable[Any]) -> tuple[AbstractContextManager[Any], list[Any]]:
    """Bring values together for an operation, and choose the context to compute it in.

    Returns:
        The context, and the values: if one of them is on a GPU, all arrays on the first one's.
    """
    arrays = list(values)
    first = next(filter(is_on_gpu, arrays), None)
    if first is None:
        return nullcontext(), arrays
    cupy = load_cupy()
    with first.device:
        return first.device, [
            cupy.asarray(array) if isinstance(array, np.ndarray) or is_on_gpu(array) else array
            for array in arrays
        ]


class _BuffersOfThread(threading.local):
    def __init__(self) -> None:
        self.buffers = BufferPools()


_of_thread = _BuffersOfThread()


def to_host(value: Any) -> Array:
    """View a value as a NumPy array; GPU values are copied into a reusable buffer."""
    array = as_array(value)
    if isinstance(array, np.ndarray):
        return array
    target: Array = _of_thread.buffers.take(array.nbytes).view(array.dtype).reshape(array.shape)
    with array.device:
        array.get(out=target)
    return target
