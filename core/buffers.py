"""Buffers that are used again once nobody looks at them."""

import sys
from collections import OrderedDict

import numpy as np

from .accelerators import gpus_in_use, pinned_memory
from .arrays import Array


def host_memory(num_bytes: int) -> Array:
    """Memory whose content may be copied to or from GPUs: pinned once CuPy is in use."""
    if not gpus_in_use():
        return np.empty(num_bytes, np.uint8)
    pinned: Array = pinned_memory(num_bytes)
    while isinstance(pinned.base, np.ndarray):
        pinned = pinned.base  # views of a view refer to this one, and a pool counts its references
    return pinned


class BufferPool:
    """Buffers of one size, used again once nobody holds a view of them.

    Fresh memory costs a page fault per 4 KiB, more than copying into it; but values a program keeps
    must never change under it. A view holds a reference to its buffer, so the count tells.
    """

    _KEEP = 4

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._buffers: list[Array] = []
        self._latest = -1

    def take(self) -> tuple[Array, Array | None]:
        """A buffer nobody looks at, and the one with the values kept last, if there is one.

        They are the same one when nobody looks at those values any more: what did not change is in place.
        """
        latest = self._buffers[self._latest] if self._latest >= 0 else None
        # References of a free buffer: the list's and the call's argument; of the latest one also ours.
        if latest is not None and sys.getrefcount(latest) == 3:
            return latest, latest
        for index in range(len(self._buffers)):
            if index != self._latest and sys.getrefcount(self._buffers[index]) == 2:
                return self._buffers[index], latest
        buffer = host_memory(self._num_bytes)
        if len(self._buffers) < self._KEEP:
            self._buffers.append(buffer)
        return buffer, latest

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are kept."""
        return self._num_bytes * len(self._buffers)

    def forget(self) -> None:
        """Nothing is kept: the values are being overwritten."""
        self._latest = -1

    def keep(self, buffer: Array) -> None:
        """This buffer has the latest values now."""
        self._latest = next((i for i, own in enumerate(self._buffers) if own is buffer), -1)


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

    def take(self, num_bytes: int) -> Array:
        """A buffer nobody looks at; its bytes are anything."""
        if num_bytes < self._least_bytes:
            return np.empty(num_bytes, np.uint8)
        pool = self._pools.get(num_bytes)
        if pool is None:
            pool = self._pools[num_bytes] = BufferPool(num_bytes)
        self._pools.move_to_end(num_bytes)
        taken, _ = pool.take()
        held = sum(each.held_bytes for each in self._pools.values())
        while len(self._pools) > self._sizes or (held > self._most_bytes and len(self._pools) > 1):
            _, oldest = self._pools.popitem(last=False)
            held -= oldest.held_bytes
        return taken
