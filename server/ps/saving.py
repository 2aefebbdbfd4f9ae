"""Writing a ps's part of a checkpoint while training goes on.

A block is copied under its lock, with all of its shards and slots, then written without the lock.
This takes memory for one block.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays import Array
from ...core.checkpoint.directory import open_fs
from ...core.checkpoint.manifest import TensorRecord
from ...core.checkpoint.saved_part import SavedPart, SavedShard
from ...core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ...core.copying import temporary_buffer
from ...core.definitions import ShardDefinition
from ...core.task import TaskId
from ...engine.block import Block
from .store import Store


def save_shards(store: Store, directory: str) -> SavedPart:
    """Write every initialized shard of ``store`` to ``directory/ps-<index>.safetensors``.

    Raises:
        OSError: The file system refused.
    """
    fs, root = open_fs(directory)
    fs.makedirs(root, exist_ok=True)
    file = f"ps-{store.task.index}.safetensors"
    # Planned before writing: a slot that is bound later waits for the next checkpoint.
    plan = [(block, _plan(block)) for block in store.blocks()]
    taken = {"__metadata__"}  # reserved by safetensors
    plan = [(block, [_named(tensor, taken) for tensor in planned]) for block, planned in plan]
    specs = [tensor.spec for _, planned in plan for tensor in planned]
    tensors: list[TensorRecord] = []
    shards: list[SavedShard] = []
    applied: dict[int, dict[TaskId, tuple[int, int]]] = {}
    with fs.open(f"{root}/{file}", "wb") as stream:
        writer = TensorFileWriter(stream, specs)
        for number, (block, planned) in enumerate(plan):
            # Allocated before the lock is taken: page faults must not make pushes wait.
            copies = {
                slot: temporary_buffer(
                    block.value.size, block.compute_dtype if slot else block.dtype
                )
                for slot in {tensor.slot for tensor in planned}
            }
            with block.lock:
                _copy(block, copies)
                versions, updates = block.versions.tolist(), block.updates.tolist()
                applied[number] = dict(block.applied)
            for tensor in planned:
                where = block.range_of(tensor.entry)
                digest = writer.write(
                    copies[tensor.slot][where.start : where.stop].reshape(tensor.spec.shape)
                )
                tensors.append(_record(block.shards[tensor.entry], tensor, file, digest))
            del copies  # before those of the next block are made
            shards += [
                SavedShard(tensor.shard, versions[tensor.entry], updates[tensor.entry], number)
                for tensor in planned
                if not tensor.slot
            ]
        writer.close()
    return SavedPart(tuple(tensors), tuple(shards), applied, store.global_step)


def _copy(block: Block, copies: dict[str, Array]) -> None:
    for slot, copy in copies.items():
        np.copyto(copy, block.slots[slot] if slot else block.value)


@dataclass(frozen=True, slots=True)
class _PlannedTensor:
    """One array of the file: a shard's value (``slot`` empty) or one of its slots."""

    entry: int
    slot: str
    shard: ShardDefinition
    spec: TensorSpec


def _named(tensor: _PlannedTensor, taken: set[str]) -> _PlannedTensor:
    """The tensor under a unique name; a variable may be named like a slot of another."""
    name = tensor.spec.name
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(tensor, spec=replace(tensor.spec, name=name))


def _plan(block: Block) -> list[_PlannedTensor]:
    planned = []
    with block.lock:
        for entry, shard in enumerate(block.shards):
            if not block.initialized[entry]:
                continue
            rule = block.rules[entry]
            bound = replace(shard, rule=rule)
            value = TensorSpec(shard.label, shard.shape, block.dtype)
            planned.append(_PlannedTensor(entry, "", bound, value))
            for slot in rule.active_slots() if rule is not None else ():
                spec = TensorSpec(f"{shard.label}:{slot}", shard.shape, block.compute_dtype)
                planned.append(_PlannedTensor(entry, slot, bound, spec))
    return planned


def _record(shard: ShardDefinition, tensor: _PlannedTensor, file: str, digest: str) -> TensorRecord:
    return TensorRecord(
        variable=shard.variable.name,
        slot=tensor.slot,
        row_offset=shard.row_offset,
        rows=shard.rows,
        file=file,
        tensor=tensor.spec.name,
        digest=digest,
        num_bytes=tensor.spec.num_bytes,
    )
