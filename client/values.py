"""Pulled values: one buffer, and an array for each variable that is asked for."""

import sys
from collections.abc import Iterator, Mapping

import numpy as np

from ..core.arrays import Array, DType

Place = tuple[int, int, tuple[int, ...], DType, DType]
"""Where a variable is in the buffer: start, stop (bytes), shape, dtype there, dtype of the variable."""


class Values(Mapping[str, Array]):
    """Pulled variables by name, as read-only arrays that stay as they are.

    An array is made when it is asked for: ten thousand of them would cost more than their bytes.
    """

    __slots__ = ("_buffer", "_made", "_places")

    def __init__(self, places: Mapping[str, Place], buffer: Array) -> None:
        self._places = places
        self._buffer = buffer
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        value = self._made.get(name)
        if value is None:
            start, stop, shape, wire, dtype = self._places[name]
            value = self._buffer[start:stop].view(wire).reshape(shape)
            if wire != dtype:
                value = value.astype(dtype)
            value.flags.writeable = False
            self._made[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
        buffer = np.empty(self._num_bytes, np.uint8)
        if len(self._buffers) < self._KEEP:
            self._buffers.append(buffer)
        return buffer, latest

    def forget(self) -> None:
        """Nothing is kept: the values are being overwritten."""
        self._latest = -1

    def keep(self, buffer: Array) -> None:
        """This buffer has the latest values now."""
        self._latest = next((i for i, own in enumerate(self._buffers) if own is buffer), -1)
