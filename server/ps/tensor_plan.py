"""Plan of the arrays of a block that are saved, in pieces each of which is copied at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.arrays.dtypes import Array, DType
from ...core.checkpoint.tensor_file import TensorSpec
from ...core.rules.definitions import ShardDefinition
from ...engine.block import Block

COPY_BYTES = 4 * 1024 * 1024  # values and slots copied at a time
_MAX_COPY_BYTES = 32 * 1024 * 1024
_RANGES = 4096  # of one ps, about: from 16 GiB on they grow, so that manifests stay small


@dataclass(frozen=True, slots=True)
class PartPiece:
    """An array of a file, of a part of a table or of what changed of an array.

    Attributes:
        column: Name of the column, or of a state.
        start: The first place, or row.
        rows: Number of places or rows, or of elements of a state.
    """

    column: str
    spec: TensorSpec
    start: int
    rows: int

    def named(self, taken: set[str]) -> "PartPiece":
        """Give the piece a name that no array of the file has, which is taken then."""
        return replace(self, spec=_unique(self.spec, taken))


def piece_bytes(held_bytes: int, copy_bytes: int = COPY_BYTES) -> int:
    """Choose the bytes of a piece: more on a ps that holds much.

    Args:
        held_bytes: Bytes of all values and slots.
        copy_bytes: Bytes of a piece on a smaller ps.
    """
    return max(copy_bytes, min(_MAX_COPY_BYTES, held_bytes // _RANGES))


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An array of the file: rows of a shard's value (``slot`` empty) or of one of its slots.

    Attributes:
        entry: The shard's number in its block.
        start: The first element, in the block's memory.
        row_offset: The first row, in the variable.
    """

    entry: int
    slot: str
    shard: ShardDefinition
    spec: TensorSpec
    start: int
    row_offset: int
    rows: int


def memory_of(block: Block, tensor: PlannedTensor) -> Array:
    """View the elements of a tensor, in the memory of their block."""
    memory = block.slots[tensor.slot] if tensor.slot else block.value
    size = tensor.spec.num_bytes // tensor.spec.dtype.itemsize
    return memory[tensor.start : tensor.start + size]


def named(group: Sequence[PlannedTensor], taken: set[str]) -> list[PlannedTensor]:
    """Give tensors unique names; a variable may be named like a slot of another."""
    return [replace(tensor, spec=_unique(tensor.spec, taken)) for tensor in group]


def _unique(spec: TensorSpec, taken: set[str]) -> TensorSpec:
    name = spec.name
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(spec, name=name)


def plan_of(block: Block, most: int, *, with_slots: bool = True) -> list[list[PlannedTensor]]:
    """Group tensors to be copied at one moment each. The caller holds the block's lock.

    Args:
        block: The block.
        most: Bytes of a group, unless a row is larger.
        with_slots: Whether slots go with the values.
    """
    entries = [
        (entry, replace(shard, rule=block.rules[entry] if with_slots else None))
        for entry, shard in enumerate(block.shards)
        if block.initialized[entry]
    ]
    if not entries:
        return []
    whole = [t for entry, shard in entries for t in _tensors(block, entry, shard, 0, shard.rows)]
    if len(entries) > 1 or sum(tensor.spec.num_bytes for tensor in whole) <= most:
        return [whole]
    [(entry, shard)] = entries
    row_bytes = sum(tensor.spec.num_bytes for tensor in whole) // shard.rows
    step = max(1, most // row_bytes)
    return [
        _tensors(block, entry, shard, first, min(step, shard.rows - first))
        for first in range(0, shard.rows, step)
    ]


def _tensors(
    block: Block, entry: int, shard: ShardDefinition, first: int, rows: int
) -> list[PlannedTensor]:
    """Plan rows ``[first, first + rows)`` of a shard, and of its slots."""
    row_size = shard.size // max(1, shard.rows)
    shape = (rows, *shard.shape[1:]) if shard.shape else ()
    label = shard.label if rows == shard.rows else f"{shard.label}[{first}:{first + rows}]"
    start = block.range_of(entry).start + first * row_size

    def planned(slot: str, dtype: DType) -> PlannedTensor:
        spec = TensorSpec(f"{label}:{slot}" if slot else label, shape, dtype)
        return PlannedTensor(entry, slot, shard, spec, start, shard.row_offset + first, rows)

    slots = shard.rule.active_slots() if shard.rule is not None else ()
    return [
        planned("", block.dtype),
        *(planned(slot, block.compute_dtype) for slot in slots),
    ]
