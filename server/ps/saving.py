"""Writing a ps's part of a checkpoint, while training goes on.

A block is copied under its lock, all of its shards and slots at one moment, then written without
it. Memory beyond the variables is one block.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays import Array
from ...core.checkpoint.directory import open_fs
from ...core.checkpoint.manifest import TensorRecord
from ...core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ...core.copying import temporary_buffer
from ...core.definitions import ShardDefinition
from ...core.task import Incarnation
from ...engine.block import Block
from .store import Store


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard as it was saved. Shards with the same ``block`` were copied at one moment."""

    shard: ShardDefinition
    version: int
    updates: int
    block: int


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one ps saved.

    Attributes:
        applied: (block, who, sequence) of the last push of each task in the block's values.
    """

    tensors: tuple[TensorRecord, ...]
    shards: tuple[SavedShard, ...]
    applied: tuple[tuple[int, Incarnation, int], ...]
    global_step: int


def save_shards(store: Store, directory: str) -> SavedPart:
    """Write every initialized shard of ``store`` to ``directory/ps-<index>.safetensors``.

    Raises:
        OSError: The file system refused.
    """
    fs, root = open_fs(directory)
    fs.makedirs(root, exist_ok=True)
    file = f"ps-{store.task.index}.safetensors"
    # What there is now: a slot that is bound while we write waits for the next checkpoint.
    plan = [(block, _plan(block)) for block in store.blocks()]
    taken = {"__metadata__"}  # safetensors' own
    plan = [(block, [_named(piece, taken) for piece in pieces]) for block, pieces in plan]
    specs = [piece.spec for _, pieces in plan for piece in pieces]
    tensors: list[TensorRecord] = []
    shards: list[SavedShard] = []
    applied: list[tuple[int, Incarnation, int]] = []
    with fs.open(f"{root}/{file}", "wb") as stream:
        writer = TensorFileWriter(stream, specs)
        for number, (block, pieces) in enumerate(plan):
            # Before the lock is taken, so that nobody waits for the pages.
            copies = {
                slot: temporary_buffer(
                    block.value.size, block.compute_dtype if slot else block.dtype
                )
                for slot in {piece.slot for piece in pieces}
            }
            with block.lock:
                _copy(block, copies)
                versions, updates = block.versions.tolist(), block.updates.tolist()
                marks = dict(block.applied)
            for piece in pieces:
                where = block.range_of(piece.entry)
                digest = writer.write(
                    copies[piece.slot][where.start : where.stop].reshape(piece.spec.shape)
                )
                tensors.append(_record(block.shards[piece.entry], piece, file, digest))
            del copies  # before those of the next block are made
            shards += [
                SavedShard(piece.shard, versions[piece.entry], updates[piece.entry], number)
                for piece in pieces
                if not piece.slot
            ]
            applied += [
                (number, Incarnation(task, generation), sequence)
                for task, (generation, sequence) in marks.items()
            ]
        writer.close()
    return SavedPart(tuple(tensors), tuple(shards), tuple(applied), store.global_step)


def _copy(block: Block, copies: dict[str, Array]) -> None:
    for slot, copy in copies.items():
        np.copyto(copy, block.slots[slot] if slot else block.value)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One array of the file: a shard's value (``slot`` empty) or one of its slots."""

    entry: int
    slot: str
    shard: ShardDefinition
    spec: TensorSpec


def _named(piece: _Piece, taken: set[str]) -> _Piece:
    """The piece under a name nobody has; a variable may be called like a slot of another."""
    name = piece.spec.name
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(piece, spec=replace(piece.spec, name=name))


def _plan(block: Block) -> list[_Piece]:
    pieces = []
    with block.lock:
        for entry, shard in enumerate(block.shards):
            if not block.initialized[entry]:
                continue
            rule = block.rules[entry]
            bound = replace(shard, rule=rule)
            value = TensorSpec(shard.label, shard.shape, block.dtype)
            pieces.append(_Piece(entry, "", bound, value))
            for slot in rule.active_slots() if rule is not None else ():
                spec = TensorSpec(f"{shard.label}:{slot}", shard.shape, block.compute_dtype)
                pieces.append(_Piece(entry, slot, bound, spec))
    return pieces


def _record(shard: ShardDefinition, piece: _Piece, file: str, digest: str) -> TensorRecord:
    return TensorRecord(
        variable=shard.variable.name,
        slot=piece.slot,
        row_offset=shard.row_offset,
        rows=shard.rows,
        file=file,
        tensor=piece.spec.name,
        digest=digest,
        num_bytes=piece.spec.num_bytes,
    )
