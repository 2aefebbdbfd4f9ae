"""Arrays of any framework, and which memory they are in: NumPy's on the host, CuPy's on a GPU.

What speaks DLPack or the array protocol is taken as it is, without a copy where its memory can be
shared. CuPy is imported only for arrays of a GPU.
"""

import sys
import threading
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
    """The module whose functions work on an array: ``numpy`` or ``cupy``."""
    return load_cupy() if is_on_gpu(array) else np


def is_on_gpu(array: Any) -> bool:
    """Whether it is a CuPy array. Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def beside(array: Any) -> AbstractContextManager[Any]:
    """CuPy allocates results on the GPU of ``array`` in this context; no effect on NumPy."""
    return array.device if is_on_gpu(array) else nullcontext()


def as_array(value: Any) -> Any:
    """A value as a NumPy or CuPy array; no copy if it has DLPack or the array protocol.

    Numbers in another machine's byte order are copied into this one's. An array of another
    framework on a GPU is copied to the host where there is no CuPy.
    """
    if isinstance(value, np.ndarray):
        return in_native_order(value)
    if is_on_gpu(value):
        return value
    if getattr(value, "requires_grad", False):  # PyTorch exports no such memory
        value = value.detach()
    device = getattr(value, "__dlpack_device__", None)
    if device is not None and not hasattr(value, "__array_interface__"):
        kind = int(device()[0])
        if kind == _DLPACK_CUDA:
            return _of_gpu(value)
        if kind == _DLPACK_CPU:
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError):
                pass  # bfloat16: the array protocol may know more
    return in_native_order(np.asarray(value))


def _of_gpu(value: Any) -> Any:
    """An array of a GPU as CuPy's, which shares its memory, or without CuPy as NumPy's."""
    try:
        return load_cupy().from_dlpack(value)
    except ImportError:
        # PyTorch has no array protocol for a GPU's memory, JAX has.
        return as_array(value.cpu()) if hasattr(value, "cpu") else np.asarray(value)


class _BuffersOfThread(threading.local):
    def __init__(self) -> None:
        self.buffers = BufferPools()


_of_thread = _BuffersOfThread()


def to_host(value: Any) -> Array:
    """A value as a NumPy array; GPU values are copied into a reusable buffer."""
    array = as_array(value)
    if isinstance(array, np.ndarray):
        return array
    target: Array = _of_thread.buffers.take(array.nbytes).view(array.dtype).reshape(array.shape)
    with array.device:
        array.get(out=target)
    return target
