"""Memory of blocks: shared segments, or the heap.

Slabs of 64 MiB hold many blocks; pages cost nothing until they are used. Each block has a cache
line in front with its sequence lock: odd while it is written. A worker of this machine copies
values straight out of a slab and looks at the sequence before and after.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..core.arrays.dtypes import Array, DType
from ..core.wire.steps import HEADER_BYTES, MemoryLocation

log = logging.getLogger(__name__)

_SLAB_BYTES = 64 * 1024 * 1024
_LINE = 64


class Slab(Protocol):
    """Memory that other processes can map; see ``net/shared_memory.py``."""

    num_bytes: int
    memory: Array
    descriptor: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one block.

    Attributes:
        values: 1-D, initially zero.
        sequence: Counter of writes, one int64, odd during a write of the values.
        slab: Number of the slab that holds it; -1: it is on the heap.
        offset: Offset of the values in the slab; the sequence is a cache line before. Unit: bytes.
    """

    values: Array
    sequence: Array
    slab: int = -1
    offset: int = 0

    def location(self, start: int) -> MemoryLocation | None:
        """Find the element ``start`` for a worker of this machine."""
        if self.slab < 0:
            return None
        begin = self.offset + start * self.values.itemsize
        return MemoryLocation(self.slab, begin, self.offset - _LINE)


def zeros(count: int, dtype: DType) -> Array:
    """Allocate zeroed memory of the heap from the beginning of a cache line on.

    A row of 64 bytes is then one line and not parts of two: an update of rows of a table takes two
    thirds of the time.
    """
    num_bytes = count * dtype.itemsize
    memory = np.zeros(num_bytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + num_bytes].view(dtype)


class Arena:
    """Hands out memory. The caller locks.

    Args:
        create_slab: Makes a slab of at least so many bytes; None: memory comes from the heap.

    Attributes:
        slabs: Slabs by number.
    """

    def __init__(self, create_slab: Callable[[int], Slab] | None = None) -> None:
        self._create_slab = create_slab
        self._slab: Slab | None = None
        self._used = 0
        self.slabs: list[Slab] = []

    def mark(self) -> tuple[int, int]:
        """Return the place that the next memory comes from, for :meth:`release`."""
        return len(self.slabs), self._used

    def release(self, mark: tuple[int, int]) -> None:
        """Take back what was allocated since :meth:`mark`; no view of it may be left."""
        slabs, used = mark
        if not self.slabs[slabs:]:
            if self._slab is not None:
                self._slab.memory[used : self._used] = 0
            self._used = used
            return
        del self.slabs[slabs:]
        # What was in use before may be full: the next memory begins a new slab.
        self._slab, self._used = None, 0

    def allocate(self, count: int, dtype: DType) -> Memory:
        """Allocate zeroed memory for ``count`` elements."""
        if self._create_slab is None:
            return Memory(zeros(count, dtype), np.zeros(1, np.int64))
        num_bytes = count * dtype.itemsize
        needed = _LINE + -(-num_bytes // _LINE) * _LINE
        if self._slab is None or self._used + needed > self._slab.num_bytes:
            try:
                self._slab = self._create_slab(max(_SLAB_BYTES, needed))
            except OSError as error:
                log.warning("no shared memory: %s; values go through the stream", error)
                self._create_slab = None
                return self.allocate(count, dtype)
            self.slabs.append(self._slab)
            self._used = HEADER_BYTES
        slab, start = self._slab, self._used
        self._used += needed
        sequence = slab.memory[start : start + 8].view(np.int64)
        values = slab.memory[start + _LINE : start + _LINE + num_bytes].view(dtype)
        return Memory(values, sequence, len(self.slabs) - 1, start + _LINE)
