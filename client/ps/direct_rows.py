"""Reading rows of a table straight out of a ps's memory, where a pull asks for some of them."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.rules.definitions import ShardKey
from ...core.wire.memory import MemoryRegion
from ...core.wire.steps import PullTarget, StepRequest, WireLayout
from ...engine.rows import gather_rows
from ...net.shared_memory import SharedSegment
from .reading import Copy, MemoryReading


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
