"""Where blocks get their memory: shared segments, or the heap.

Slabs of 64 MiB hold many blocks; pages cost nothing until they are used. Each block has a cache line in front
with its sequence lock: odd while somebody writes. A worker of this machine copies values straight out of a
slab and looks at the sequence before and after.
"""

import logging
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array, DType
from ...core.shared_memory import HEADER_BYTES, Segment, SegmentAddress, unavailable
from ...core.steps import MemoryLocation

log = logging.getLogger(__name__)

_SLAB_BYTES = 64 * 1024 * 1024
_LINE = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one block.

    Attributes:
        values: 1-D, zero.
        sequence: One int64: odd while the values are being written.
        segment: Where it is; None on the heap.
        offset: Of the values in the segment; the sequence is a cache line before. Unit: bytes.
    """

    values: Array
    sequence: Array
    segment: SegmentAddress | None = None
    offset: int = 0

    def location(self, start: int) -> MemoryLocation | None:
        """Where the element ``start`` is, for a worker of this machine."""
        if self.segment is None:
            return None
        begin = self.offset + start * self.values.itemsize
        return MemoryLocation(self.segment, begin, self.offset - _LINE)


class Arena:
    """Hands out memory. The caller locks. ``shared=False``: from the heap."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared and not unavailable()
        self._slab: Segment | None = None
        self._used = 0
        self._slabs: list[Segment] = []

    def allocate(self, count: int, dtype: DType) -> Memory:
        """Zeroed memory for ``count`` elements."""
        if not self._shared:
            return Memory(np.zeros(count, dtype), np.zeros(1, np.int64))
        num_bytes = count * dtype.itemsize
        needed = _LINE + -(-num_bytes // _LINE) * _LINE
        if self._slab is None or self._used + needed > self._slab.num_bytes:
            try:
                self._slab = Segment.create(max(_SLAB_BYTES, needed))
            except OSError as error:
                log.warning("no shared memory: %s; values go through the stream", error)
                self._shared = False
                return self.allocate(count, dtype)
            self._slabs.append(self._slab)
            self._used = HEADER_BYTES
        slab, start = self._slab, self._used
        self._used += needed
        sequence = slab.memory[start : start + 8].view(np.int64)
        values = slab.memory[start + _LINE : start + _LINE + num_bytes].view(dtype)
        return Memory(values, sequence, slab.address, start + _LINE)
