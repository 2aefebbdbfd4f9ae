"""The blocks that shards are in: how they are grouped, numbered, and where their memory is."""

from collections.abc import Sequence
from typing import Any

from ...core import annexes
from ...core.arrays.dtypes import DType
from ...core.errors import RefusedError
from ...core.rules.definitions import ShardDefinition
from ...core.settings import Settings
from ...core.task import TaskId
from ...engine.arena import Arena, Slab
from ...engine.block import Block
from ...engine.push_target import PushTarget, RowsByKey
from ...net.shared_memory import SharedSegment, has_huge_pages, unavailable

_OWN_BLOCK_BYTES = 256 * 1024  # a shard of this size or more gets its own block and lock
_SHARED_BLOCK_BYTES = 1024 * 1024  # small shards share blocks of about this size
# Finding small pages of a larger table takes longer than sending its rows through the ps: a step
# that does is 0.83 times as long at 3.2 GB, and as long at 1 GB.
_NEEDS_HUGE_PAGES_BYTES = 2 * 1024 * 1024 * 1024


class BlockMaker:
    """Makes the blocks of one ps. The caller locks.

    Args:
        settings: Whether memory is shared, and where tables that are larger than it have a folder.

    Attributes:
        arena: The memory of values and slots.
    """

    def __init__(self, settings: Settings) -> None:
        shares = settings.shared_memory and not unavailable()
        self.arena = Arena(_create_slab if shares else None)
        self._has_huge_pages = shares and has_huge_pages()
        self._folder = settings.table_folder
        self._next = 0

    def new(self, shards: Sequence[ShardDefinition]) -> list[PushTarget]:
        """Make blocks for new shards, without values yet."""
        groups = _group(shards)
        first, self._next = self._next, self._next + len(groups)
        return [self._new_block(group, number) for number, group in enumerate(groups, first)]

    def numbered(self, shards: Sequence[ShardDefinition], number: int) -> PushTarget:
        """Make a block with the number that another ps gave it, without values yet."""
        self._next = max(self._next, number + 1)
        return self._new_block(shards, number)

    def slab(self, ps: TaskId, number: int) -> Slab:
        """Find the slab of shared memory with this number.

        Raises:
            RefusedError: There is no such slab.
        """
        slabs = self.arena.slabs
        if not 0 <= number < len(slabs):
            raise RefusedError(f"{ps} has no slab {number}, only {len(slabs)}", task=ps)
        return slabs[number]

    def _new_block(self, shards: Sequence[ShardDefinition], number: int) -> PushTarget:
        if shards[0].variable.table is not None:
            block: RowsByKey = row_blocks(shards[0]).new_block(shards[0], number, self._folder)
            return block
        return Block(shards, self._arena(shards), number)

    def _arena(self, shards: Sequence[ShardDefinition]) -> Arena | None:
        """Choose where a block gets its memory. None: from the heap, which has huge pages."""
        num_bytes = sum(shard.num_bytes for shard in shards)
        needs = num_bytes >= _NEEDS_HUGE_PAGES_BYTES and not self._has_huge_pages
        return None if needs else self.arena


def row_blocks(shard: ShardDefinition) -> Any:
    """Load the annex that makes blocks of rows by key: a ps without such tables never does.

    Raises:
        MissingExtraError: It is not installed.
    """
    return annexes.the("row_blocks", "embedding", f"table {shard.variable.name!r}")


def _create_slab(num_bytes: int) -> SharedSegment:
    return SharedSegment.create(num_bytes, others_read_only=True)


def _group(shards: Sequence[ShardDefinition]) -> list[list[ShardDefinition]]:
    """Group the shards that share a block: small ones of one dtype, in order."""
    groups: list[list[ShardDefinition]] = []
    open_groups: dict[DType, tuple[list[ShardDefinition], int]] = {}
    for shard in shards:
        if shard.num_bytes >= _OWN_BLOCK_BYTES or shard.variable.table is not None:
            groups.append([shard])
            continue
        dtype = shard.variable.dtype
        group, filled = open_groups.get(dtype, ([], _SHARED_BLOCK_BYTES))
        if not group or filled + shard.num_bytes > _SHARED_BLOCK_BYTES:
            group, filled = [], 0
            groups.append(group)
        group.append(shard)
        open_groups[dtype] = (group, filled + shard.num_bytes)
    return groups
