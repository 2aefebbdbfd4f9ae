"""Reading a block while pushes change it: some of it at a time, each tile under its lock.

A reader plans the arrays that it will yield, since the head of a file says which they are, and then
yields them in that order. Neither the memory for it nor the time a push waits depends on how large
a block is. Whoever reads a block reads it so: checkpoints have all of it, deltas what changed
*since* a moment, and a cut reads it as it was *at* one; see ``cut``. A follower has tiles in the
order of its pushes, on their way to its link: ``replication/copying.py``.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...core.arrays.dtypes import Array, DType, as_bytes
from ...core.checkpoint.manifest import SavedShard
from ...core.checkpoint.reader import STATE
from ...core.checkpoint.tensor_file import TensorSpec
from ...core.rules.definitions import ShardDefinition
from ...core.task import TaskId
from ...engine.block import Block
from ...engine.push_target import RowsByKey, UpdatePart

LOCKED_BYTES = 512 * 1024
"""Bytes that are copied at a time under the lock of a block: 0.1 ms."""

PAUSE_S = 50e-6  # without it: who waits for the lock would find it taken again
COPY_BYTES = 4 * 1024 * 1024  # values and slots copied at a time
_MAX_COPY_BYTES = 32 * 1024 * 1024
_RANGES = 4096  # of one ps, about: from 16 GiB on they grow, so that manifests stay small


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An array that a reader yields, and its place in a checkpoint.

    Attributes:
        shard: Shard that it is a part of.
        slot: Empty for values; or the name of a slot, of a column of rows, or of a state.
        spec: Name, shape and dtype.
        row_offset: First row in the variable, or first place in a part of a table.
        rows: Number of rows or places, or of elements of a state.
        entry: Number of the shard in its block.
        start: First element in the memory of the block.
    """

    shard: ShardDefinition
    slot: str
    spec: TensorSpec
    row_offset: int
    rows: int
    entry: int = 0
    start: int = 0


class BlockReader(ABC):
    """Reads a block, once. Used by one thread.

    Attributes:
        applied: The last push of each task that is in all of what was read.
        part: Number of the part of a table, for a checkpoint.
        since_base: Whether only what changed since a whole checkpoint is read.
    """

    applied: Mapping[TaskId, tuple[int, int]]
    part = 0
    since_base = False

    @property
    @abstractmethod
    def planned(self) -> list[PlannedTensor]:
        """Arrays that are read, in order."""

    @abstractmethod
    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:
        """Yield the parts of each planned array; one is valid until the next is asked for.

        Args:
            memory: Memory for copies, uint8.
        """

    @abstractmethod
    def saved(self, number: int) -> list[SavedShard]:
        """Describe the shards that were read, as those of a block of this number."""


def copy_in_parts(
    lock: threading.Lock, rows: int, row_bytes: int, copy: Callable[[slice], None]
) -> None:
    """Copy rows, some at a time under a lock, with a pause between for others who want the lock.

    Args:
        lock: The lock of the rows.
        rows: Number of rows.
        row_bytes: Bytes that are copied of one.
        copy: Copies rows ``[start, stop)`` of a slice.
    """
    step = max(1, LOCKED_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        if start:
            time.sleep(PAUSE_S)
        with lock:
            copy(slice(start, min(start + step, rows)))


def piece_bytes(held_bytes: int, copy_bytes: int = COPY_BYTES) -> int:
    """Choose the bytes of a piece: more on a ps that holds much.

    Args:
        held_bytes: Bytes of all values and slots.
        copy_bytes: Bytes of a piece on a smaller ps.
    """
    return max(copy_bytes, min(_MAX_COPY_BYTES, held_bytes // _RANGES))


def parts_of(arrays: Iterable[Array]) -> Iterator[Iterator[memoryview]]:
    """Yield arrays as those of a reader, each in one part."""
    for array in arrays:
        yield iter([as_bytes(np.ascontiguousarray(array))])


# -- arrays ----------------------------------------------------------------------------------


@dataclass(slots=True)
class ArrayPiece:
    """A piece of a block: tensors that are copied at one moment if they fit.

    Attributes:
        start: The first element, in the memory of the block.
        stop: The first element after the piece.
    """

    tensors: Sequence[PlannedTensor]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.spec.num_bytes for tensor in self.tensors)


class ArrayReader(BlockReader):
    """Reads a block of arrays, each piece at the moment it is copied.

    Small shards that share a block are one piece. A large shard is cut into ranges of rows, each
    with its slots: a push that comes meanwhile is in the ranges copied after it, as it would be if
    the variable were cut into more shards. A row of a range is of one moment.

    Args:
        block: The block.
        most: Bytes of a piece.
        with_slots: Whether slots go with the values.

    Attributes:
        pieces: Pieces in the order of their elements.
        versions: Version of each shard.
        updates: Number of updates of each shard.
    """

    def __init__(self, block: Block, most: int, *, with_slots: bool = True) -> None:
        self.block = block
        with block.lock:
            groups = plan_of(block, most, with_slots=with_slots)
        self.pieces: Sequence[ArrayPiece] = [self._piece(group) for group in groups]
        self.look()

    @staticmethod
    def _piece(group: Sequence[PlannedTensor]) -> ArrayPiece:
        return ArrayPiece(group, *elements_of(group))

    @property
    def planned(self) -> list[PlannedTensor]:
        """See :attr:`BlockReader.planned`."""
        return [tensor for piece in self.pieces for tensor in piece.tensors]

    def look(self) -> None:
        """Remember what is in the values now."""
        with self.block.lock:
            self.versions: list[int] = self.block.versions.tolist()
            self.updates: list[int] = self.block.updates.tolist()
            self.applied = dict(self.block.applied)

    def saved(self, number: int) -> list[SavedShard]:
        """See :meth:`BlockReader.saved`."""
        shards = {tensor.entry: tensor.shard for tensor in self.planned}
        return [
            SavedShard(shard, self.versions[entry], self.updates[entry], number)
            for entry, shard in shards.items()
        ]

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:
        """See :meth:`BlockReader.read`."""
        self.look()
        for piece in self.pieces:
            if piece.num_bytes > memory.size:
                for tensor in piece.tensors:
                    yield self._in_parts(tensor, memory)
            else:
                yield from parts_of(self.copy(piece, memory))

    def copy(self, piece: ArrayPiece, memory: Array) -> list[Array]:
        """Copy the tensors of a piece to memory that has room for them; returns them as bytes."""
        tensors = piece.tensors
        ends = np.cumsum([tensor.spec.num_bytes for tensor in tensors]).tolist()
        views = [
            memory[end - tensor.spec.num_bytes : end]
            for tensor, end in zip(tensors, ends, strict=True)
        ]
        sources = [memory_of(self.block, tensor).view(np.uint8) for tensor in tensors]
        if len({tensor.entry for tensor in tensors}) == 1:
            self._copy_rows(tensors[0].rows, sources, views)
        else:
            with self.block.lock:
                for source, view in zip(sources, views, strict=True):
                    np.copyto(view, source)
        return views

    def _copy_rows(self, rows: int, sources: Sequence[Array], views: Sequence[Array]) -> None:
        """Copy rows of one shard, some at a moment, each with its slots."""
        row_bytes = [view.size // max(1, rows) for view in views]

        def copy(part: slice) -> None:
            for source, view, size in zip(sources, views, row_bytes, strict=True):
                elements = slice(part.start * size, part.stop * size)
                np.copyto(view[elements], source[elements])

        copy_in_parts(self.block.lock, rows, sum(row_bytes), copy)

    def _in_parts(self, tensor: PlannedTensor, memory: Array) -> Iterator[memoryview]:
        """Copy a row that does not fit, some of it at a time."""
        source = memory_of(self.block, tensor).view(np.uint8)
        for start in range(0, source.size, memory.size):
            part = source[start : start + memory.size]
            copy = memory[: part.size]
            with self.block.lock:
                np.copyto(copy, part)
            yield copy.data


def memory_of(block: Block, tensor: PlannedTensor) -> Array:
    """View the elements of a tensor, in the memory of their block."""
    memory = block.slots[tensor.slot] if tensor.slot else block.value
    size = tensor.spec.num_bytes // tensor.spec.dtype.itemsize
    return memory[tensor.start : tensor.start + size]


def elements_of(group: Sequence[PlannedTensor]) -> tuple[int, int]:
    """Compute the elements ``[start, stop)`` of the values of neighbouring tensors."""
    values = [tensor for tensor in group if not tensor.slot]
    last = values[-1]
    return values[0].start, last.start + last.spec.num_bytes // last.spec.dtype.itemsize


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
        return PlannedTensor(shard, slot, spec, shard.row_offset + first, rows, entry, start)

    slots = shard.rule.active_slots() if shard.rule is not None else ()
    return [
        planned("", block.dtype),
        *(planned(slot, block.compute_dtype) for slot in slots),
    ]


# -- rows by key -----------------------------------------------------------------------------
# A part of a table is saved by places and not by rows, since how many rows are there changes while
# they are copied: the columns of places ``[start, stop)``, in which free ones are marked. Rows keep
# their places while they live, so a copy has every row that is there all the time; one that is made
# in a place beyond those that were used at the beginning comes with the next checkpoint. Places are
# copied some at a time under the table's lock, each row with its slots.

_MOST_KEPT_BYTES = 64 << 20
"""A larger table is not kept for a cut: a push would stand while all of it is copied."""


class TableCopy(BlockReader):
    """A part of a table that is to be saved, planned at one moment.

    Args:
        block: The part.
        most: Bytes of a piece's columns together.
        most_kept: Bytes of a table that is kept at the moment before a push changes it.

    Attributes:
        planned_state: The first of the arrays: what decides about rows.
        state: Arrays of the state.
        version: Version of the part at that moment.
        applied: Marks of pushes at that moment.
        moment: Position of the changes at that moment, if they are noted; else 0.
        shard: Definition of the part.
        used: Places that had been used.
        row_bytes: Bytes of a row.
        step: Rows of a piece.
        is_kept: Whether a push has kept the rows before it changed them.
    """

    def __init__(self, block: RowsByKey, most: int, most_kept: int = _MOST_KEPT_BYTES) -> None:
        self.block = block
        [self.shard] = block.shards
        self.part = self.shard.part
        with block.lock:
            self.state = dict(block.state())
            columns = block.columns
            self.version = self.updates = int(block.versions[0])
            self.applied = dict(block.applied)
            changes = block.changes.get(0)
            self.moment = changes.advance() if changes is not None else 0
        self._kept: dict[int, list[Array]] = {}  # by the first place
        self._most_kept = most_kept
        self._next = 0  # places before it are read
        self.is_kept = False
        self.used = columns["keys"].shape[0]
        self.row_bytes = sum(column[:1].nbytes for column in columns.values()) if self.used else 1
        self.step = max(1, most // self.row_bytes)
        label = self.shard.label
        self.planned_state = [
            self.planned_array(f"{STATE}{name}", f"{label}:{STATE}{name}", array, 0, len(array))
            for name, array in self.state.items()
        ]

    def planned_array(
        self, column: str, name: str, like: Array, start: int, rows: int
    ) -> PlannedTensor:
        """Plan an array of so many rows that are as those of another one."""
        spec = TensorSpec(name, (rows, *like.shape[1:]), like.dtype)
        return PlannedTensor(self.shard, column, spec, start, rows)

    @cached_property
    def planned(self) -> list[PlannedTensor]:
        """Arrays that are read, in order."""
        label, columns = self.shard.label, self.block.columns
        return self.planned_state + [
            self.planned_array(name, f"{label}[{start}:{stop}]:{name}", column, start, stop - start)
            for start, stop in self._tiles()
            for name, column in columns.items()
        ]

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:  # noqa: ARG002 - rows are copied by column
        """See :meth:`BlockReader.read`."""
        return parts_of(self.arrays())

    def saved(self, number: int) -> list[SavedShard]:
        """See :meth:`BlockReader.saved`."""
        return [SavedShard(self.shard, self.version, self.updates, number)]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the arrays, in order."""
        yield from self.state.values()
        for start, stop in self._tiles():
            copied = self._copied(start, stop) if not self.is_kept else []
            with self.block.lock:
                self._next = stop
                kept = self._kept.pop(start, copied)
            yield from kept

    def keep(self, _: Sequence[UpdatePart]) -> int:
        """Copy all that is not read, before a push changes rows; the number of bytes copied.

        The caller locks the block. A push may move rows, so that it does not matter which ones it
        names.
        """
        if self.is_kept or not self.is_of_one_moment:
            return 0
        self.is_kept = True
        columns = self.block.columns
        for start, stop in self._tiles():
            if start >= self._next:
                self.block.note_copied(np.arange(start, stop))
                self._kept[start] = [column[start:stop].copy() for column in columns.values()]
        return sum(array.nbytes for arrays in self._kept.values() for array in arrays)

    @property
    def is_of_one_moment(self) -> bool:
        """Whether a push keeps rows before it changes them; a larger table changes meanwhile."""
        return bool(self.used * self.row_bytes <= self._most_kept)

    def planned_columns(self) -> dict[str, Array]:
        """Return the columns as they were planned, none of which was read.

        The caller locks the block, unless a push has kept them.
        """
        columns = {name: column[: self.used] for name, column in self.block.columns.items()}
        if not self._kept:
            return columns
        kept = zip(*(self._kept[start] for start, _ in self._tiles()), strict=True)
        return {name: np.concatenate(pieces) for name, pieces in zip(columns, kept, strict=True)}

    def drop(self) -> None:
        """Keep nothing any more: nobody reads the rows. The caller locks the block."""
        self.is_kept, self._kept = True, {}

    def _tiles(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.used, self.step):
            yield start, min(start + self.step, self.used)

    def _copied(self, start: int, stop: int) -> list[Array]:
        self.block.fetch_copied(range(start, stop))
        with self.block.lock:
            columns = self.block.columns
        copies = [np.empty_like(column[start:stop]) for column in columns.values()]

        def copy_places(part: slice) -> None:
            for copy, column in zip(copies, columns.values(), strict=True):
                copy[part] = column[start:stop][part]

        copy_in_parts(self.block.lock, stop - start, self.row_bytes, copy_places)
        return copies
