"""Places of values in memory that a ps shares with workers of its machine."""

from dataclasses import dataclass

from ..arrays.dtypes import Array, DType

HEADER_BYTES = 64
"""A cache line of counters, with which every segment of shared memory begins."""

MOST_SEGMENTS = 2
"""Largest number of segments that a worker has in a session."""


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """The beginning of a shard's values.

    Attributes:
        slab: Number of the ps's segment that holds them.
        offset: Offset of the first value. Unit: bytes.
        sequence_offset: Offset of the int64 that is odd during a write of the values. Unit: bytes.
    """

    slab: int
    offset: int
    sequence_offset: int


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """A shard's values in shared memory.

    Attributes:
        memory: Beginning of the values.
        num_bytes: Size of all of them. Unit: bytes.
        dtype: Dtype of the values.
        row_bytes: Size of one row. Unit: bytes.
    """

    memory: MemoryLocation
    num_bytes: int
    dtype: DType
    row_bytes: int = 0

    @property
    def block(self) -> tuple[int, int]:
        """Names the block: shards of one block are changed together."""
        return self.memory.slab, self.memory.sequence_offset

    def values(self, slab: Array) -> Array:
        """View the bytes of the values."""
        return slab[self.memory.offset : self.memory.offset + self.num_bytes]

    def sequence(self, slab: Array) -> Array:
        """View the block's sequence, one int64."""
        start = self.memory.sequence_offset
        return slab[start : start + 8].view("int64")
