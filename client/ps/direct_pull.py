"""Reading values or rows straight out of a ps's memory, while it may be working on others."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.arrays.gather_buffer import copy_into
from ...core.rules.definitions import ShardKey
from ...core.wire.steps import MemoryRegion, PullTarget, StepRequest, WireLayout
from ...engine.rows import gather_rows
from ...net.shared_memory import SharedSegment

# A block that is always being written is asked for over the connection instead.
READ_TIMEOUT_S = 0.25


@dataclass(frozen=True, slots=True)
class Copy:
    """``run`` copies ``num_bytes``, valid if ``sequence`` of their block did not move meanwhile."""

    sequence: Array
    num_bytes: int
    run: Callable[[], object]


class MemoryReading:
    """A pull under way.

    Args:
        copies: Copies to make.
        last: Sequences of what is there already, if anything is.
        remember: Told the sequences of what was read.
    """

    def __init__(
        self,
        copies: Sequence[Copy],
        last: Sequence[int] | None = None,
        remember: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        self._copies = copies
        self._last = last
        self._remember = remember
        self._seen: list[int] = []
        self._moved = 0

    def go_on(
        self,
        may_read: Callable[[int], bool] = lambda _: True,
        is_open: Callable[[], bool] = lambda: True,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> bool:
        """Read on, to the end or to the first copy that may not be read.

        Args:
            may_read: Given the number of a copy; may wait.
            is_open: Asked while the memory is written: whether to wait on.
            timeout_s: Longest wait for memory that is being written. Unit: seconds.

        Returns:
            Whether all was read; False also if a block was being written all the time.
        """
        for index in range(len(self._seen), len(self._copies)):
            if not may_read(index):
                return False
            copy = self._copies[index]
            last = self._last[index] if self._last is not None else -1
            sequence = _read(copy, last, is_open, timeout_s)
            if sequence is None:
                return False
            self._moved += copy.num_bytes if sequence != last else 0
            self._seen.append(sequence)
        return True

    def finish(self) -> int:
        """Check that all was read.

        Returns:
            Bytes that were copied.
        """
        self._remember(self._seen)
        return self._moved


def _read(copy: Copy, last: int, is_open: Callable[[], bool], timeout_s: float) -> int | None:
    """Make one copy under a sequence lock: repeated while the memory is written, for a while.

    Returns:
        The sequence of what is there now, ``last`` if that is there already; None: no luck in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        before = int(copy.sequence[0])
        if before == last:
            return last
        if not before & 1:
            copy.run()
            if int(copy.sequence[0]) == before:
                return before
        if time.monotonic() > deadline or not is_open():
            return None
        time.sleep(0)  # let the writer on


@dataclass(frozen=True, slots=True)
class _Source:
    """Bytes ``source`` of a block go to ``[start, stop)`` of the span."""

    source: Array
    sequence: Array
    block: tuple[int, int]
    span: int
    start: int
    stop: int


class DirectPull:
    """A pull layout whose values are read from the ps's memory.

    Args:
        layout: Layout of the pull.
        num_bytes: Size of all its values. Unit: bytes.
        regions: Memory regions of the values.
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
        self._copies: tuple[_Source, ...] | None = None
        # The sequence of each copy's block when it was read last.
        self._seen: list[int] | None = None
        self._ready: tuple[WireLayout, tuple[int, ...] | None] | None = None

    def begin(self, target: PullTarget) -> MemoryReading:
        """Prepare to read; if the memory is that of the last time, only blocks that changed."""
        into = target.into
        if self._copies is None:
            sizes = [len(part) for part in into]
            self._copies = _plan_copies(self.layout, sizes, self._regions, self._slabs)
        last, self._seen = self._seen if target.previous is into else None, None
        targets = [np.frombuffer(part, np.uint8) for part in into]
        copies = [
            Copy(
                copy.sequence,
                copy.source.size,
                partial(copy_into, targets[copy.span][copy.start : copy.stop], copy.source),
            )
            for copy in self._copies
        ]
        return MemoryReading(copies, last, self._remember)

    def ready(self, request: StepRequest) -> tuple[int, ...] | None:
        """Tell how many bytes of a push's payload must be applied before each of its blocks may be
        read.

        None: bytes do not tell, the answer must come first. Only after :meth:`begin`.
        """
        push = request.push
        if push is None or request.push_rows or request.pull_rows:
            return None  # sizes differ from step to step, and may be 0
        if self._ready is None or self._ready[0] is not push:
            copies = self._copies or ()
            self._ready = (push, _ready(push, request.payload_bytes, copies, self._regions))
        return self._ready[1]

    def _remember(self, seen: list[int]) -> None:
        self._seen = seen


def _plan_copies(
    layout: WireLayout,
    spans: Sequence[int],
    regions: Mapping[ShardKey, MemoryRegion],
    slabs: Mapping[int, SharedSegment],
) -> tuple[_Source, ...]:
    """Plan the bytes to copy and their places; neighbours in memory become one copy."""
    copies: list[_Source] = []
    span, start = 0, 0
    for entry in layout.entries:
        region = regions[entry.variable, entry.part]
        size, offset = region.num_bytes, region.memory.offset
        while span < len(spans) and start == spans[span]:
            span, start = span + 1, 0
        memory = slabs[region.memory.slab].memory
        sequence, source = region.sequence(memory), region.values(memory)
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
            copies.append(_Source(source, sequence, region.block, span, start, start + size))
        start += size
    return tuple(copy for copy in copies if copy.source.size)


def _ready(
    push: WireLayout,
    total: int,
    copies: Sequence[_Source],
    regions: Mapping[ShardKey, MemoryRegion],
) -> tuple[int, ...] | None:
    """Count the bytes of a dense push of ``total`` that come up to the last part of each copy's
    block.
    """
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


class DirectRows:
    """A pull of rows that are read from the ps's memory. For one step.

    Args:
        layout: Layout of the pull, which has nothing but rows.
        rows: int64, per entry: the numbers of the rows, each in the shard.
        regions: Places of the shards in the ps's memory.
        slabs: The ps's memory, by number.
    """

    def __init__(
        self,
        layout: WireLayout,
        rows: Sequence[Array],
        regions: Mapping[ShardKey, MemoryRegion],
        slabs: Mapping[int, SharedSegment],
    ) -> None:
        self.layout = layout
        self.rows = rows
        self._regions = [regions[entry.variable, entry.part] for entry in layout.entries]
        self._slabs = slabs
        self.num_bytes = sum(
            numbers.size * region.row_bytes
            for numbers, region in zip(rows, self._regions, strict=True)
        )

    def begin(self, target: PullTarget) -> MemoryReading:
        """Prepare to read into a part of the target for each entry; other rows were read last."""
        copies: list[Copy] = []
        for region, numbers, part in zip(self._regions, self.rows, target.into, strict=True):
            memory, size = self._slabs[region.memory.slab].memory, region.row_bytes
            table = region.values(memory).reshape(-1, size)
            out = np.frombuffer(part, np.uint8).reshape(numbers.size, size)
            gather = partial(gather_rows, table, numbers, out)
            copies.append(Copy(region.sequence(memory), out.size, gather))
        return MemoryReading([copy for copy in copies if copy.num_bytes])

    def ready(self, request: StepRequest) -> tuple[int, ...] | None:
        """Let rows be read at once if nothing is pushed; else the answer must come first."""
        return None if request.push else (0,) * len(self.rows)
