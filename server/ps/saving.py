"""Writing a ps's part of a checkpoint while training goes on.

What is written is first copied under the lock of its block, a part of a MiB at a time, so that
neither the memory for it nor the time a push waits depends on how large a shard is. Small shards
that share a block are copied together. A large shard is saved in ranges of rows, each with its
slots at one moment: a push that arrives meanwhile is in the ranges copied after it, as it would be
if the variable were cut into more shards. Growing tables follow: ``table_copies.py``.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...core.arrays.dtypes import Array, DType
from ...core.checkpoint.file_systems import open_folder
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import TensorRecord
from ...core.checkpoint.saved_part import SavedPart, SavedShard
from ...core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ...core.rules.definitions import ShardDefinition
from ...core.task import TaskId
from ...engine.block import Block
from ...engine.push_target import RowsByKey
from ...net.memory_pool import temporary_buffer
from .store import Store

if TYPE_CHECKING:
    from .table_copies import TableCopy, TablePiece

COPY_BYTES = 4 * 1024 * 1024  # values and slots written at a time
_LOCKED_BYTES = 512 * 1024  # copied at a time: 0.1 ms under the lock
_PAUSE_S = 50e-6  # without it: who waits for the lock would find it taken again
# Above the process's: a tenth of the share of a step's thread, where both want the same core.
_NICENESS = 10
_MAX_COPY_BYTES = 32 * 1024 * 1024
_RANGES = 4096  # of one ps, about: from 16 GiB on they grow, so that manifests stay small


def give_way() -> None:
    """Let the threads of steps go before this one, for as long as it lives.

    Digests and writes take no lock, but a step would wait for a core until their time slice ends.
    """
    if sys.platform == "linux":  # elsewhere it would be the priority of the process
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(19, niceness))


def save_shards(store: Store, directory: str | Folder, copy_bytes: int = COPY_BYTES) -> SavedPart:
    """Write every initialized shard of ``store`` to ``directory/ps-<share>.safetensors``.

    Args:
        store: The shards of this ps.
        directory: Directory of the checkpoint: a path, a fsspec URL or an open folder.
        copy_bytes: Bytes copied at a time, in extra memory; up to 32 MiB on a ps with over 16 GiB.

    Raises:
        OSError: The file system refused.
    """
    folder = open_folder(directory) if isinstance(directory, str) else directory
    folder.make()
    pushes = store.counters().pushes
    file = f"ps-{store.share}.safetensors"
    blocks, parts_of_tables = store.table.blocks(), store.table.tables()
    held = [*blocks, *parts_of_tables]
    held_bytes = sum(block.value_bytes + block.slot_bytes for block in held)
    most = max(copy_bytes, min(_MAX_COPY_BYTES, held_bytes // _RANGES))
    # Planned before writing: a slot that is bound later waits for the next checkpoint.
    taken = {"__metadata__"}  # reserved by safetensors
    plan = [[_named(group, taken) for group in _plan(block, most)] for block in blocks]
    specs = [tensor.spec for groups in plan for group in groups for tensor in group]
    tables = _copies_of_tables(parts_of_tables, most)
    specs += [piece.spec for table in tables for piece in table.pieces]
    tensors: list[TensorRecord] = []
    shards: list[SavedShard] = []
    applied: dict[int, dict[TaskId, tuple[int, int]]] = {}
    copies = _Copies(most)
    with folder.create(file) as stream:
        writer = TensorFileWriter(stream, specs)
        for number, (block, groups) in enumerate(zip(blocks, plan, strict=True)):
            with block.lock:
                versions, updates = block.versions.tolist(), block.updates.tolist()
                applied[number] = dict(block.applied)
            for group in groups:
                for tensor, parts in copies.of(block, group):
                    digest = writer.write_parts(parts)
                    tensors.append(_record(tensor, file, digest))
            saved = {tensor.entry: tensor.shard for group in groups for tensor in group}
            shards += [
                SavedShard(shard, versions[entry], updates[entry], number)
                for entry, shard in saved.items()
            ]
        for number, table in enumerate(tables, len(blocks)):
            [shard] = table.block.shards
            applied[number] = table.applied
            for piece, array in zip(table.pieces, table.arrays(), strict=True):
                tensors.append(_record_of_piece(shard, piece, file, writer.write(array)))
            shards.append(SavedShard(shard, table.version, table.version, number))
        writer.close()
    files = {file: writer.record}
    return SavedPart(tuple(tensors), tuple(shards), applied, store.global_step, files, pushes)


def _copies_of_tables(parts: Sequence[RowsByKey], most: int) -> list["TableCopy"]:
    if not parts:
        return []
    from ...engine.keyed.block import KeyedBlock  # a ps without tables never loads it
    from .table_copies import TableCopy

    return [TableCopy(part, most) for part in parts if isinstance(part, KeyedBlock)]


def _record_of_piece(
    shard: ShardDefinition, piece: "TablePiece", file: str, digest: str
) -> TensorRecord:
    return TensorRecord(
        variable=shard.variable.name,
        slot=piece.column,
        row_offset=piece.start,
        rows=piece.rows,
        file=file,
        tensor=piece.spec.name,
        digest=digest,
        num_bytes=piece.spec.num_bytes,
        part=shard.part,
    )


@dataclass(frozen=True, slots=True)
class _PlannedTensor:
    """One array of the file: rows of a shard's value (``slot`` empty) or of one of its slots.

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


class _Copies:
    """Copies of parts of blocks, in memory that is used again for each.

    Args:
        num_bytes: Most that is copied at a time.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        # Before a lock is taken: page faults must not make pushes wait.
        self._memory = temporary_buffer(num_bytes, np.dtype(np.uint8))
        self._memory[:] = 0

    def of(
        self, block: Block, group: Sequence[_PlannedTensor]
    ) -> Iterator[tuple[_PlannedTensor, Iterator[memoryview]]]:
        """Each tensor of a group with its parts, flat; a part is valid until the next is asked for.

        The group is copied at one moment if it fits.
        """
        total = sum(tensor.spec.num_bytes for tensor in group)
        if total > self._num_bytes:
            for tensor in group:
                yield tensor, self._piecewise(block, tensor)
            return
        ends = np.cumsum([tensor.spec.num_bytes for tensor in group]).tolist()
        views = [
            self._memory[end - tensor.spec.num_bytes : end]
            for tensor, end in zip(group, ends, strict=True)
        ]
        if all(tensor.entry == group[0].entry for tensor in group):
            self._copy_rows(block, group, views)
        else:
            with block.lock:
                for tensor, view in zip(group, views, strict=True):
                    np.copyto(view, _memory_of(block, tensor).view(np.uint8))
        for tensor, view in zip(group, views, strict=True):
            yield tensor, iter([view.data])

    @staticmethod
    def _copy_rows(block: Block, group: Sequence[_PlannedTensor], views: Sequence[Array]) -> None:
        """Copy rows of one shard, some at a moment, each with its slots."""
        rows = group[0].rows
        row_bytes = [view.size // max(1, rows) for view in views]
        step = max(1, _LOCKED_BYTES // max(1, sum(row_bytes)))
        sources = [_memory_of(block, tensor).view(np.uint8) for tensor in group]
        for first in range(0, rows, step):
            if first:
                time.sleep(_PAUSE_S)
            with block.lock:
                for source, view, size in zip(sources, views, row_bytes, strict=True):
                    part = slice(first * size, (first + step) * size)
                    np.copyto(view[part], source[part])

    def _piecewise(self, block: Block, tensor: _PlannedTensor) -> Iterator[memoryview]:
        """A row that does not fit."""
        source = _memory_of(block, tensor).view(np.uint8)
        for start in range(0, source.size, self._num_bytes):
            part = source[start : start + self._num_bytes]
            copy = self._memory[: part.size]
            with block.lock:
                np.copyto(copy, part)
            yield copy.data


def _memory_of(block: Block, tensor: _PlannedTensor) -> Array:
    memory = block.slots[tensor.slot] if tensor.slot else block.value
    size = tensor.spec.num_bytes // tensor.spec.dtype.itemsize
    return memory[tensor.start : tensor.start + size]


def _named(group: Sequence[_PlannedTensor], taken: set[str]) -> list[_PlannedTensor]:
    """Tensors under unique names; a variable may be named like a slot of another."""
    named = []
    for tensor in group:
        name = tensor.spec.name
        while name in taken:
            name += "_"
        taken.add(name)
        named.append(replace(tensor, spec=replace(tensor.spec, name=name)))
    return named


def _plan(block: Block, most: int) -> list[list[_PlannedTensor]]:
    """Groups of tensors to be copied at one moment each."""
    with block.lock:
        entries = [
            (entry, replace(shard, rule=block.rules[entry]))
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
) -> list[_PlannedTensor]:
    """Rows ``[first, first + rows)`` of a shard, and of its slots."""
    row_size = shard.size // max(1, shard.rows)
    shape = (rows, *shard.shape[1:]) if shard.shape else ()
    label = shard.label if rows == shard.rows else f"{shard.label}[{first}:{first + rows}]"
    start = block.range_of(entry).start + first * row_size

    def planned(slot: str, dtype: DType) -> _PlannedTensor:
        spec = TensorSpec(f"{label}:{slot}" if slot else label, shape, dtype)
        return _PlannedTensor(entry, slot, shard, spec, start, shard.row_offset + first, rows)

    slots = shard.rule.active_slots() if shard.rule is not None else ()
    return [
        planned("", block.dtype),
        *(planned(slot, block.compute_dtype) for slot in slots),
    ]


def _record(tensor: _PlannedTensor, file: str, digest: str) -> TensorRecord:
    return TensorRecord(
        variable=tensor.shard.variable.name,
        slot=tensor.slot,
        row_offset=tensor.row_offset,
        rows=tensor.rows,
        file=file,
        tensor=tensor.spec.name,
        digest=digest,
        num_bytes=tensor.spec.num_bytes,
    )
