"""Buffers that are used again once nobody refers to their contents."""

import weakref
from collections import OrderedDict

import numpy as np

from .accelerators import gpus_in_use, pinned_memory
from .arrays import Array, DType, size_of

_SIZES_PER_DOUBLING_BITS = 4  # eight sizes: at most an eighth is not used


def host_memory(num_bytes: int) -> Array:
    """Memory whose content may be copied to or from GPUs: pinned once CuPy is in use."""
    if not gpus_in_use():
        return np.empty(num_bytes, np.uint8)
    return np.asarray(pinned_memory(num_bytes))


class _Slot:
    """Memory of a pool, and the array through which it was handed out last, while that lives."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = host_memory(num_bytes)
        self._lease: weakref.ref[Array] | None = None

    def lease(self) -> Array:
        """A new array of the memory.

        Arrays made from it refer to it, so it lives as long as they do.
        """
        # Of a memoryview: NumPy's views of views skip arrays in between, but not other objects.
        array = np.frombuffer(self.memory.data, np.uint8)
        self._lease = weakref.ref(array)
        return array

    @property
    def leased(self) -> Array | None:
        """The array that was handed out last, if anybody refers to it or to a part of it."""
        return self._lease() if self._lease is not None else None


class BufferPool:
    """Buffers of one size, used again once nobody holds a view of them.

    Fresh memory costs a page fault per 4 KiB, more than copying into it; but values a program keeps
    must never change under it.

    Args:
        num_bytes: Of each. Unit: bytes.
    """

    _KEEP = 4

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._slots: list[_Slot] = []
        self._latest: _Slot | None = None

    def take(self) -> tuple[Array, Array | None]:
        """A buffer nobody else refers to, and the one with the values kept last, if there is one.

        They are the same one when nobody refers to those values any more: what did not change is in
        place. Both are uint8, shape ``(num_bytes,)``, the first one uninitialised otherwise.
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
        """Bytes of the buffers that are kept."""
        return self._num_bytes * len(self._slots)

    def forget(self) -> None:
        """The values kept last are being overwritten."""
        self._latest = None

    def keep(self, buffer: Array) -> None:
        """This buffer has the latest values now."""
        self._latest = next((slot for slot in self._slots if slot.leased is buffer), None)


class BufferPools:
    """A pool for each size that was asked for lately.

    Args:
        least_bytes: Smaller ones come from the heap, which is as fast.
        sizes: How many are kept.
        most_bytes: Of all that is kept, but for what was asked for last.
    """

    def __init__(
        self, least_bytes: int = 256 * 1024, sizes: int = 64, most_bytes: int = 2**30
    ) -> None:
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        self._sizes = sizes
        self._pools: OrderedDict[int, BufferPool] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are kept."""
        return sum(pool.held_bytes for pool in self._pools.values())

    def take(self, num_bytes: int) -> Array:
        """An unreferenced, uninitialised buffer, uint8."""
        if num_bytes < self._least_bytes:
            return np.empty(num_bytes, np.uint8)
        pool = self._pools.get(num_bytes)
        if pool is None:
            pool = self._pools[num_bytes] = BufferPool(num_bytes)
        self._pools.move_to_end(num_bytes)
        taken, _ = pool.take()
        held = self.held_bytes
        while len(self._pools) > self._sizes or (held > self._most_bytes and len(self._pools) > 1):
            _, oldest = self._pools.popitem(last=False)
            held -= oldest.held_bytes
        return taken

    def take_array(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An unreferenced, uninitialised array. Shapes that differ little share memory."""
        num_bytes = size_of(shape) * dtype.itemsize
        step = 1 << max(0, num_bytes.bit_length() - _SIZES_PER_DOUBLING_BITS)
        memory = self.take(-(-num_bytes // step) * step)
        return memory[:num_bytes].view(dtype).reshape(shape)
