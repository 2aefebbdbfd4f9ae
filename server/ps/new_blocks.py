"""New shards of a ps: the blocks that they are in, and their first values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core import annexes
from ...core.arrays.dtypes import Array, DType
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.directory import MANIFEST
from ...core.errors import CheckpointError, RefusedError
from ...core.rules.definitions import ShardDefinition
from ...core.rules.known_rules import rule_from_dict
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...engine.arena import Arena, Slab
from ...engine.block import Block
from ...engine.push_target import PushTarget, RowsByKey
from ...net.shared_memory import SharedSegment, has_huge_pages, unavailable

# -- First values: those of an initializer, or those of a checkpoint ---------------------------

_FILL_BYTES = 16 * 1024 * 1024  # initialized between two looks whether a call waits for it


@dataclass(slots=True)
class Held:
    """A shard that a ps holds.

    Attributes:
        block: Block that the shard is in: an array's memory, or a part of a table.
        entry: Number of the shard there.
        defined_by: The first task that defined it.
        restored_from: The checkpoint that its value came from.
        bound_by: The task that gave it its update rule.
    """

    block: PushTarget
    entry: int
    defined_by: Incarnation
    restored_from: CheckpointReader | None = None
    bound_by: Incarnation | None = None


def initialize(
    block: Block,
    entry: int,
    reader: CheckpointReader | None,
    check: Callable[[], None],
) -> CheckpointReader | None:
    """Give a shard its first value; the checkpoint, if that came from one."""
    shard = block.shards[entry]
    variable = shard.variable
    start, stop = shard.row_offset, shard.row_offset + shard.rows
    record = reader.variable(variable.name) if reader is not None else None
    if reader is not None and reader.table(variable.name) is not None:
        raise another_kind(reader, variable.name, "a growing table", "an array")
    if reader is not None and record is not None:
        if tuple(record.shape) != variable.shape or record.dtype != variable.dtype.name:
            raise CheckpointError(
                f"{reader.path} has {variable.name!r} as {record.dtype}{list(record.shape)}, "
                f"the program defines {variable.dtype.name}{list(variable.shape)}; it was "
                "saved by another model. Restore it with that program, or name another "
                "model_dir",
                variable=variable.name,
                path=reader.path,
            )
        block.view(entry)[...] = reader.read_rows(variable.name, start, stop)
    elif variable.initializer is not None:
        values = block.view(entry)
        row_bytes = max(1, values.nbytes // max(1, shard.rows))
        step = max(1, _FILL_BYTES // row_bytes)
        for first in range(0, shard.rows, step):
            check()
            part = values[first : first + step] if values.shape else values
            variable.initializer.fill(part, variable.shape, start + first)
    else:
        return None  # the creating task assigns the value
    block.initialized[entry] = True
    return reader if record is not None else None


def another_kind(reader: CheckpointReader, name: str, saved: str, defined: str) -> CheckpointError:
    """Make the error about a checkpoint that has an array where the program has a table, or so."""
    return CheckpointError(
        f"{reader.path} has {name!r} as {saved}, the program defines {defined}; it was saved by "
        "another model. Restore it with that program, or name another model_dir",
        variable=name,
        path=reader.path,
    )


def restored_slots(held: Held, rule: UpdateRule) -> tuple[dict[str, Array], int]:
    """Read slots and update count from the checkpoint that the shard came from."""
    reader, shard = held.restored_from, held.block.shards[held.entry]
    record = reader.variable(shard.variable.name) if reader is not None else None
    if reader is None or record is None or record.rule is None:
        return {}, 0
    if record.rule.get("name") != rule.name:
        return {}, 0  # saved with another optimizer, whose slots do not apply
    saved = reader.slots(shard.variable.name)
    start, stop = shard.row_offset, shard.row_offset + shard.rows
    try:
        had = rule_from_dict(record.rule).active_slots()
    except ValueError as error:
        raise CheckpointError(
            f"{reader.path}/{MANIFEST}: the rule of {shard.variable.name!r} is none: {error}",
            path=reader.path,
            variable=shard.variable.name,
        ) from error
    wanted = [slot for slot in rule.active_slots() if slot in had]
    lost = [slot for slot in wanted if slot not in saved]
    if lost:
        raise CheckpointError(
            f"{reader.path} lacks the slot {lost[0]!r} of {shard.variable.name!r}, which its "
            f"rule {rule.name} had; the checkpoint is damaged",
            path=reader.path,
            variable=shard.variable.name,
        )
    rows = {slot: reader.read_rows(shard.variable.name, start, stop, slot) for slot in wanted}
    return rows, record.updates


# -- Blocks: how shards are grouped and numbered, and where their memory is ---------------------

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
