"""Reading values straight out of a ps's memory, shard by shard, while it may be working on others."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays import Array, DType
from ...core.copying import copy_into
from ...core.definitions import ShardKey
from ...core.steps import MemoryLocation, StepRequest, WireLayout
from ...net.shared_memory import SharedSegment

# A block that is always being written is asked for over the connection instead.
READ_TIMEOUT_S = 0.25


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """A shard's values in the memory of its ps."""

    memory: MemoryLocation
    num_bytes: int
    dtype: DType
    row_bytes: int = 0

    @property
    def block(self) -> tuple[int, int]:
        """Names the block: shards of one block are changed together."""
        return self.memory.slab, self.memory.sequence_offset


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes ``source`` go to ``[start, stop)`` of the span; valid if ``sequence`` did not move."""

    source: Array
    sequence: Array
    block: tuple[int, int]
    span: int
    start: int
    stop: int


class DirectPull:
    """A pull layout whose values are read from the ps's memory.

    Args:
        layout: The layout.
        num_bytes: Of all its values.
        regions: Where they are.
        slabs: The ps's memory, by number.
    """

    def __init__(
        self,
        layout: WireLayout,
        num_bytes: int,
        regions: Mapping[ShardKey, MemoryRegion],
        slabs: Mapping[int, SharedSegment],
    ) -> None:
        self.layout = layout
        self.rows: Sequence[Array] = ()
        self.num_bytes = num_bytes
        self._regions = regions
        self._slabs = slabs
        # Made at the first pull, when the spans are known.
        self._copies: tuple[_Copy, ...] | None = None
        # The sequence of each copy's block when it was read last.
        self._seen: list[int] | None = None
        self._ready: tuple[WireLayout, tuple[int, ...] | None] | None = None

    def begin(
        self,
        into: Sequence[memoryview],
        *,
        in_place: bool,
    ) -> "Reading":
        """Prepare to read.

        Args:
            into: Where the values go, in the layout's order.
            in_place: ``into`` has what was read last: blocks that did not change are left out.
        """
        if self._copies is None:
            sizes = [len(target) for target in into]
            self._copies = _plan_copies(self.layout, sizes, self._regions, self._slabs)
        last = self._seen if in_place else None
        self._seen = None
        return Reading(self, self._copies, into, last)

    def ready(self, request: StepRequest) -> tuple[int, ...] | None:
        """How much of a push must be applied before each of its blocks may be read, in bytes of the payload.

        None: bytes do not tell, the answer must come first. Only after :meth:`begin`.
        """
        push = request.push
        if push is None or request.push_rows or request.pull_rows:
            return None  # sizes differ from step to step, and may be 0
        if self._ready is None or self._ready[0] is not push:
            copies = self._copies or ()
            self._ready = (push, _ready(push, request.payload_bytes, copies, self._regions))
        return self._ready[1]

    def remember(self, seen: list[int]) -> None:
        """These sequences were read."""
        self._seen = seen


class Reading:
    """One pull under way.

    Args:
        pull: What is told when it is over.
        copies: What is to be copied.
        into: Where to.
        last: Sequences of what is there already, if anything is.
    """

    def __init__(
        self,
        pull: DirectPull,
        copies: Sequence[_Copy],
        into: Sequence[memoryview],
        last: Sequence[int] | None,
    ) -> None:
        self._pull = pull
        self._copies = copies
        self._targets = [np.frombuffer(target, np.uint8) for target in into]
        self._last = last
        self._seen: list[int] = []
        self._moved = 0

    def go_on(self, may_read: Callable[[int], bool] = lambda _: True) -> bool:
        """Read on, to the end or to the first copy that may not be read.

        Args:
            may_read: Given the number of a copy; may wait.

        Returns:
            Whether all was read; False also if a block was being written all the time.
        """
        for index in range(len(self._seen), len(self._copies)):
            if not may_read(index):
                return False
            copy = self._copies[index]
            last = self._last[index] if self._last is not None else -1
            sequence = _read_one(copy, self._targets[copy.span], last)
            if sequence is None:
                return False
            self._moved += copy.source.size if sequence != last else 0
            self._seen.append(sequence)
        return True

    def finish(self) -> int:
        """All was read.

        Returns:
            Bytes that were copied.
        """
        self._pull.remember(self._seen)
        return self._moved


def _plan_copies(
    layout: WireLayout,
    spans: Sequence[int],
    regions: Mapping[ShardKey, MemoryRegion],
    slabs: Mapping[int, SharedSegment],
) -> tuple[_Copy, ...]:
    """Which bytes go where; neighbours in memory become one copy."""
    copies: list[_Copy] = []
    span, start = 0, 0
    for entry in layout.entries:
        region = regions[entry.variable, entry.part]
        size, offset = region.num_bytes, region.memory.offset
        while span < len(spans) and start == spans[span]:
            span, start = span + 1, 0
        memory = slabs[region.memory.slab].memory
        counter = region.memory.sequence_offset
        sequence = memory[counter : counter + 8].view(np.int64)
        source = memory[offset : offset + size]
        last = copies[-1] if copies else None
        if (
            last is not None
            and last.span == span
            and last.block == region.block
            and last.source.ctypes.data + last.source.size == source.ctypes.data
        ):
            whole = memory[offset - last.source.size : offset + size]
            copies[-1] = replace(last, source=whole, stop=start + size)
        else:
            copies.append(_Copy(source, sequence, region.block, span, start, start + size))
        start += size
    return tuple(copy for copy in copies if copy.source.size)


def _ready(
    push: WireLayout, total: int, copies: Sequence[_Copy], regions: Mapping[ShardKey, MemoryRegion]
) -> tuple[int, ...] | None:
    """How much of a dense push of ``total`` bytes comes up to the last part of each copy's block."""
    ends: dict[tuple[int, int], int] = {}
    end = 0
    for entry in push.entries:
        region = regions.get((entry.variable, entry.part))
        if region is None or entry.dtype not in (None, region.dtype):
            return None
        if not region.num_bytes:
            return None  # a block may wait for a part that adds nothing to what is applied
        end += region.num_bytes
        ends[region.block] = end
    if end != total:
        return None
    return tuple(ends.get(copy.block, 0) for copy in copies)


def _read_one(copy: _Copy, span: Array, last: int) -> int | None:
    """One copy under a sequence lock: repeated while somebody writes, for a while.

    Returns:
        The sequence of what is there now, ``last`` if that is there already; None: no luck in time.
    """
    target = span[copy.start : copy.stop]
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        before = int(copy.sequence[0])
        if before == last:
            return last
        if not before & 1:
            copy_into(target, copy.source)
            if int(copy.sequence[0]) == before:
                return before
        if time.monotonic() > deadline:
            return None
        time.sleep(0)  # let the writer on
