"""Buffers that are reused once nothing refers to their contents."""

import contextlib
import mmap
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..process.accelerators import pinned_memory
from .dtypes import Array, DType, size_of

_SIZES_PER_DOUBLING_BITS = 4  # eight sizes: at most an eighth is not used, if it is not pinned
ALIGNMENT_BYTES = 64  # of a cache line: JAX takes memory without a copy only if it begins at one


def host_memory(num_bytes: int) -> Array:
    """Allocate memory for values: at a multiple of 64 bytes; pinned once a GPU is in use."""
    return _host_memory(num_bytes)[0]


def _host_memory(num_bytes: int) -> tuple[Array, bool]:
    """Allocate memory as :func:`host_memory` does; returns also whether it is pinned."""
    pinned = pinned_memory(num_bytes)
    if pinned is not None:
        return np.asarray(pinned), True
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + num_bytes], False


class _Slot:
    """Memory of a pool, and a weak reference to the array it was last lent as."""

    def __init__(self, num_bytes: int) -> None:
        self.memory, is_pinned = _host_memory(num_bytes)
        # Of pinned memory PyTorch and CuPy take a power of two.
        self.held_bytes = 1 << (num_bytes - 1).bit_length() if is_pinned else num_bytes
        self._lease: weakref.ref[Array] | None = None

    def lease(self) -> Array:
        """Lend the memory as a new array, which lives as long as any view of it."""
        # From a memoryview: views of NumPy views refer to the first array alone, but keep other
        # bases.
        array = np.frombuffer(self.memory.data, np.uint8)
        self._lease = weakref.ref(array)
        return array

    @property
    def leased(self) -> Array | None:
        """The array lent last, if it or a view of it is still alive."""
        return self._lease() if self._lease is not None else None


class BufferPool:
    """Buffers of one size, reused once no view of them is alive.

    Fresh memory costs a page fault per 4 KiB, more than copying into it; but values that a program
    keeps must never change.

    Args:
        num_bytes: Size of each buffer. Unit: bytes.
    """

    _KEEP = 4

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._slots: list[_Slot] = []
        self._latest: _Slot | None = None

    def take(self) -> tuple[Array, Array | None]:
        """Take an unreferenced buffer, and the one with the values kept last, if it exists.

        They are the same buffer if nothing refers to those values any more: unchanged values are
        then in place. Both are uint8, shape ``(num_bytes,)``; the first is uninitialised otherwise.
        """
        if not self._num_bytes:
            return np.empty(0, np.uint8), None
        latest = self._latest.leased if self._latest is not None else None
        if self._latest is not None and latest is None:
            buffer = self._latest.lease()
            return buffer, buffer
        for slot in self._slots:
            if slot is not self._latest and slot.leased is None:
                return slot.lease(), latest
        if len(self._slots) == self._KEEP:
            return host_memory(self._num_bytes), latest
        self._slots.append(_Slot(self._num_bytes))
        return self._slots[-1].lease(), latest

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers in the pool, with what is not used of pinned ones."""
        return sum(slot.held_bytes for slot in self._slots)

    def forget(self) -> None:
        """Forget the values kept last, which are about to be overwritten."""
        self._latest = None

    def keep(self, buffer: Array) -> None:
        """Mark this buffer as the one with the latest values."""
        self._latest = next((slot for slot in self._slots if slot.leased is buffer), None)


class BufferPools:
    """A pool per recently used size.

    Args:
        least_bytes: Smaller buffers come from the heap, which is as fast.
        sizes: Largest number of pools.
        most_bytes: Limit for all pools together, except the latest one.

    Attributes:
        held_bytes: Bytes of the buffers that are kept; a pinned one takes a power of two.
    """

    def __init__(
        self, least_bytes: int = 256 * 1024, sizes: int = 64, most_bytes: int = 2**30
    ) -> None:
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        self._sizes = sizes
        self._pools: OrderedDict[int, BufferPool] = OrderedDict()
        self.held_bytes = 0

    def take(self, num_bytes: int) -> Array:
        """Take an unreferenced, uninitialised buffer, uint8."""
        if num_bytes < self._least_bytes:
            return np.empty(num_bytes, np.uint8)
        pool = self._pools.get(num_bytes)
        if pool is None:
            pool = self._pools[num_bytes] = BufferPool(num_bytes)
        self._pools.move_to_end(num_bytes)
        before = pool.held_bytes
        taken, _ = pool.take()
        self.held_bytes += pool.held_bytes - before
        while len(self._pools) > self._sizes or self._holds_too_much():
            _, oldest = self._pools.popitem(last=False)
            self.held_bytes -= oldest.held_bytes
        return taken

    def _holds_too_much(self) -> bool:
        return self.held_bytes > self._most_bytes and len(self._pools) > 1

    def take_array(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Take an unreferenced, uninitialised array. Shapes that differ little share memory."""
        num_bytes = size_of(shape) * dtype.itemsize
        if num_bytes < self._least_bytes:
            return np.empty(shape, dtype)
        step = 1 << max(0, num_bytes.bit_length() - _SIZES_PER_DOUBLING_BITS)
        memory = self.take(-(-num_bytes // step) * step)
        return memory[:num_bytes].view(dtype).reshape(shape)

    def take_arrays(self, wanted: Sequence[tuple[tuple[int, ...], DType]]) -> list[Array]:
        """Take several arrays in one buffer, which is used again when none of them is referenced.

        Args:
            wanted: Shapes and dtypes.
        """
        ends = list(
            accumulate(in_lines(size_of(shape) * dtype.itemsize) for shape, dtype in wanted)
        )
        memory = self.take_array((ends[-1] if ends else 0,), np.dtype(np.uint8))
        return [
            memory[start : start + size_of(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for start, (shape, dtype) in zip([0, *ends], wanted, strict=False)
        ]


def in_lines(num_bytes: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# -- Memory for gradients and values on their way, and for other copies that are soon dropped --

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
