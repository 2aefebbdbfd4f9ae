"""Reading rows of a table straight out of a ps's memory, where a pull asks for some of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.definitions import ShardKey
from ...core.steps import StepRequest, WireLayout
from ...engine.rows import gather_rows
from ...net.shared_memory import SharedSegment
from .direct_pull import READ_TIMEOUT_S, MemoryRegion


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one shard: uint8, shape ``(rows, row_bytes)``; valid if ``sequence`` did not move."""

    table: Array
    sequence: Array
    rows: Array


class DirectRows:
    """A pull of rows that are read from the ps's memory. For one step.

    Args:
        layout: What is pulled, all of it rows.
        rows: int64, per entry: the numbers of the rows, each in the shard.
        row_bytes: Per entry. Unit: bytes.
        regions: Where the shards are.
        slabs: The ps's memory, by number.
    """

    def __init__(
        self,
        layout: WireLayout,
        rows: Sequence[Array],
        row_bytes: Sequence[int],
        regions: Mapping[ShardKey, MemoryRegion],
        slabs: Mapping[int, SharedSegment],
    ) -> None:
        self.layout = layout
        self.rows = rows
        self.num_bytes = sum(n.size * size for n, size in zip(rows, row_bytes, strict=True))
        self._parts: list[_Part] = []
        for entry, numbers, size in zip(layout.entries, rows, row_bytes, strict=True):
            region = regions[entry.variable, entry.part]
            memory = slabs[region.memory.slab].memory
            start, counter = region.memory.offset, region.memory.sequence_offset
            table = memory[start : start + region.num_bytes].reshape(-1, size)
            self._parts.append(_Part(table, memory[counter : counter + 8].view(np.int64), numbers))

    def begin(self, into: Sequence[memoryview], *, in_place: bool) -> "RowReading":  # noqa: ARG002
        """Prepare to read ``into``, a target for each entry."""
        return RowReading(self._parts, into)

    def ready(self, request: StepRequest) -> None:  # noqa: ARG002
        """Bytes of a push do not tell when rows may be read: the answer must come first."""
        return


class RowReading:
    """One pull of rows under way."""

    def __init__(self, parts: Sequence[_Part], into: Sequence[memoryview]) -> None:
        self._work = [
            (part, np.frombuffer(target, np.uint8).reshape(part.rows.size, part.table.shape[1]))
            for part, target in zip(parts, into, strict=True)
            if part.rows.size
        ]
        self._moved = 0

    def go_on(self, may_read: Callable[[int], bool] = lambda _: True) -> bool:  # noqa: ARG002
        """Read all; False if a block was being written all the time."""
        for part, out in self._work:
            if not _read(part, out):
                return False
            self._moved += out.size
        return True

    def finish(self) -> int:
        """All was read; returns the bytes that were copied."""
        return self._moved


def _read(part: _Part, out: Array) -> bool:
    """Gather under a sequence lock: repeated while somebody writes, for a while."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        before = int(part.sequence[0])
        if not before & 1:
            gather_rows(part.table, part.rows, out)
            if int(part.sequence[0]) == before:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0)  # let the writer on
