"""Blocks of rows by key on a ps."""

from collections.abc import Sequence
from pathlib import Path

from ...core.rules.definitions import ShardDefinition
from .keyed.block import KeyedBlock, warm_up_tables


def new_block(shard: ShardDefinition, number: int, folder: str) -> KeyedBlock:
    """Make the block of one part of a table, without rows.

    Args:
        shard: The part.
        number: Number of the block among those of its store.
        folder: Folder for rows beyond the part's memory; empty: all rows are in memory.
    """
    if not (shard.file_bytes and folder):
        return KeyedBlock(shard, number)
    from .keyed.disk_block import BlockOnDisk, RowFile

    def create(num_bytes: int) -> RowFile:
        return RowFile.create(Path(folder), num_bytes, shard.variable.name)

    return BlockOnDisk(shard, number, create, RowFile.page_bytes)


def warm_up(shards: Sequence[ShardDefinition]) -> None:
    """Begin to load the kernels that these parts need, or to compile them.

    Raises:
        ConfigurationError: A definition has a number that is out of range.
    """
    warm_up_tables(shards)
