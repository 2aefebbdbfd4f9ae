"""Memory for gradients and values on their way, and for other copies that are soon dropped."""

import contextlib
import mmap
import threading

import numpy as np

from .dtypes import Array, DType

_KEPT_BYTES = 32 * 1024 * 1024
_BYTE = np.dtype(np.uint8)
_MAPPED_BYTES = 2 * 1024 * 1024  # from here on, memory is mapped for itself
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


class MemoryPool:
    """Keeps some of what was released: fresh memory costs a page fault per 4 KiB. Thread-safe.

    Args:
        kept_bytes: Most unused memory to keep; the rest goes back to the system.
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._free: list[Array] = []

    def take(self, num_bytes: int) -> Array:
        """Take an uninitialised uint8 array of at least so many bytes: the smallest free one, or
        new.
        """
        with self._lock:
            fitting = [array for array in self._free if array.size >= num_bytes]
            if fitting:
                best = min(fitting, key=len)
                self._free = [array for array in self._free if array is not best]
                return best
        return temporary_buffer(num_bytes, _BYTE)

    def release(self, array: Array) -> None:
        """Give an array back. If too much is kept, the smallest arrays are dropped first."""
        with self._lock:
            self._free.append(array)
            self._free.sort(key=len)
            while sum(map(len, self._free)) > self._kept_bytes:
                self._free.pop(0)


class Lease:
    """Memory of a pool for one session, one array at a time, until the ``with`` block ends."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._array: Array = np.empty(0, np.uint8)

    def lend(self, num_bytes: int) -> Array:
        """Lend an array of at least so many bytes; the array before may be the same memory."""
        if self._array.size < num_bytes:
            self._release()
            self._array = self._pool.take(num_bytes)
        return self._array

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        if self._array.size:
            self._pool.release(self._array)
            self._array = np.empty(0, np.uint8)


def temporary_buffer(count: int, dtype: DType) -> Array:
    """Allocate memory for a short-lived copy, returned to the system when it is dropped.

    Memory from the heap would be kept: after a large block is freed, malloc raises its mmap
    threshold.

    Args:
        count: Elements.
        dtype: Type of the elements.
    """
    num_bytes = count * dtype.itemsize
    if num_bytes < _MAPPED_BYTES:
        return np.empty(count, dtype)
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask_for_huge_pages(memory)  # a fault per 2 MiB: the first use of 64 MiB costs 6 ms, not 20
    return np.frombuffer(memory, dtype)


def ask_for_huge_pages(mapped: mmap.mmap) -> None:
    """Have the kernel use pages of 2 MiB for mapped memory, where it can."""
    if _HUGE is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(_HUGE)


def present_buffer(num_bytes: int) -> Array:
    """Allocate memory as :func:`temporary_buffer` does, uint8, whose page faults are over."""
    memory = temporary_buffer(num_bytes, _BYTE)
    memory[:: mmap.PAGESIZE] = 0
    return memory
