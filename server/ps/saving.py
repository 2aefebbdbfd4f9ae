"""Writing a ps's part of a checkpoint while training goes on.

What is written is first copied under the lock of its block, a part of a MiB at a time, so that
neither the memory for it nor the time a push waits depends on how large a shard is. Small shards
that share a block are copied together. A large shard is saved in ranges of rows, each with its
slots at one moment: a push that arrives meanwhile is in the ranges copied after it, as it would be
if the variable were cut into more shards. Growing tables follow: ``table_copies.py``. Of a cut,
all is of one moment: what a push changes is kept for it (``cut/image.py``).
"""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.checkpoint.file_systems import open_folder
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import TensorRecord
from ...core.checkpoint.saved_part import SavedPart, SavedShard
from ...core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ...core.rules.definitions import ShardDefinition
from ...core.task import TaskId
from .bases import WHOLE, BaseMarks, Bases, SaveOrder
from .cut.image import BlockImage, CutImage, copies_of_tables
from .piece_copies import PieceCopies
from .store import Store
from .tensor_plan import (
    COPY_BYTES,
    PartPiece,
    PlannedTensor,
    named,
    piece_bytes,
)

if TYPE_CHECKING:
    from .array_deltas import ArrayDelta
    from .table_copies import TableCopy
    from .table_deltas import TableDelta

# Above the process's: a tenth of the share of a step's thread, where both want the same core.
_NICENESS = 10


def give_way() -> None:
    """Let the threads of steps go before this one, for as long as it lives.

    Digests and writes take no lock, but a step would wait for a core until their time slice ends.
    """
    if sys.platform == "linux":  # elsewhere it would be the priority of the process
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(19, niceness))


def save_shards(
    store: Store,
    directory: str | Folder,
    copy_bytes: int = COPY_BYTES,
    image: CutImage | None = None,
    order: SaveOrder = WHOLE,
) -> SavedPart:
    """Write every initialized shard of ``store`` to ``directory/ps-<share>.safetensors``.

    Of a delta, only what changed is written of growing tables and of large arrays, where that is
    known and not too much.

    Args:
        store: The shards of this ps.
        directory: Directory of the checkpoint: a path, a fsspec URL or an open folder.
        copy_bytes: Bytes copied at a time, in extra memory; up to 32 MiB on a ps with over 16 GiB.
        image: State of the store at one moment; None: each piece is of the moment it is copied.
        order: Whether it is a delta, and whether deltas of it may follow.

    Raises:
        OSError: The file system refused.
        CutVoidError: What the image is of was not kept.
    """
    folder = open_folder(directory) if isinstance(directory, str) else directory
    folder.make()
    pushes = store.counters().pushes if image is None else image.moment.pushes
    file = f"ps-{store.share}.safetensors"
    most = piece_bytes(store.table.bytes_in_use(), copy_bytes)
    plan = _plan(store, most, image, order)
    written = _Written(file)
    copies = PieceCopies(most, image)
    with folder.create(file) as stream:
        writer = TensorFileWriter(stream, plan.specs())
        for number, block in enumerate(plan.blocks):
            if image is None:
                block.look()
            written.add_block(number, block, copies, writer)
        for number, part in enumerate(plan.parts, len(plan.blocks)):
            written.add_part(number, part, writer)
        if image is not None:
            image.check()
        writer.close()
    if order.may_be_base:
        store.part(Bases).commit(order.checkpoint, 0 if image is None else image.moment.number)
    elif not order.base:
        store.part(Bases).clear()  # no delta follows
    files = {file: writer.record}
    global_step = store.global_step if image is None else image.moment.global_step
    return SavedPart(
        tuple(written.tensors),
        tuple(written.shards),
        written.applied,
        global_step,
        files,
        pushes,
    )


@dataclass(slots=True)
class _SavePlan:
    """A plan of what is written: blocks as they are, then parts of tables and what changed of
    blocks.
    """

    blocks: list[BlockImage]
    parts: "list[TableCopy | TableDelta | ArrayDelta]"

    def __post_init__(self) -> None:
        taken = {"__metadata__"}  # reserved by safetensors
        for block in self.blocks:
            for piece in block.pieces:
                piece.tensors = named(piece.tensors, taken)
        for part in self.parts:
            part.pieces = [piece.named(taken) for piece in part.pieces]

    def specs(self) -> list[TensorSpec]:
        """List the arrays of the file, in order."""
        tensors = [
            tensor for block in self.blocks for piece in block.pieces for tensor in piece.tensors
        ]
        specs = [tensor.spec for tensor in tensors]
        return specs + [piece.spec for part in self.parts for piece in part.pieces]


def _plan(store: Store, most: int, image: CutImage | None, order: SaveOrder) -> _SavePlan:
    """Plan before writing: a slot that is bound later waits for the next checkpoint."""
    if image is None:
        if order.may_be_base:
            store.part(Bases).begin()
        blocks = [BlockImage(block, most) for block in store.table.blocks()]
        tables = copies_of_tables(store.table.tables(), most)
    else:
        image.check()
        blocks, tables = image.blocks, image.tables
    marks = store.part(Bases).of(order.base)
    changed = {id(block): _changed_rows(block, marks, image) for block in blocks}
    return _SavePlan(
        [block for block in blocks if changed[id(block)] is None],
        [
            *(rows for rows in changed.values() if rows is not None),
            *(_changed_keys(table, marks) or table for table in tables),
        ],
    )


def _changed_rows(image: BlockImage, marks: BaseMarks, cut: CutImage | None) -> "ArrayDelta | None":
    mark = marks.get(image.block)
    if mark is None:
        return None
    from .array_deltas import delta_of_array  # most jobs write no deltas

    return delta_of_array(image, mark, cut)


def _changed_keys(table: "TableCopy", marks: BaseMarks) -> "TableDelta | None":
    mark = marks.get(table.block)
    if mark is None:
        return None
    from .table_deltas import delta_of_table  # a ps without tables never loads it

    return delta_of_table(table, mark)


class _Written:
    """The records of what was written to a file.

    Args:
        file: Name of the file.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self.tensors: list[TensorRecord] = []
        self.shards: list[SavedShard] = []
        self.applied: dict[int, dict[TaskId, tuple[int, int]]] = {}

    def add_block(
        self, number: int, block: BlockImage, copies: "PieceCopies", writer: TensorFileWriter
    ) -> None:
        """Write all of a block."""
        self.applied[number] = block.applied
        for piece in block.pieces:
            for tensor, parts in copies.of(block, piece):
                digest = writer.write_parts(parts)
                self._add(tensor.shard, tensor.slot, tensor.row_offset, tensor, digest)
        saved = {tensor.entry: tensor.shard for piece in block.pieces for tensor in piece.tensors}
        self.shards += [
            SavedShard(shard, block.versions[entry], block.updates[entry], number)
            for entry, shard in saved.items()
        ]

    def add_part(
        self, number: int, part: "TableCopy | TableDelta | ArrayDelta", writer: TensorFileWriter
    ) -> None:
        """Write a part of a table, or what changed of one or of an array."""
        self.applied[number] = part.applied
        for place, array in zip(part.pieces, part.arrays(), strict=True):
            digest = writer.write(array)
            self._add(part.shard, place.column, place.start, place, digest, part.shard.part)
        self.shards.append(
            SavedShard(part.shard, part.version, part.updates, number, part.since_base)
        )

    def _add(
        self,
        shard: ShardDefinition,
        slot: str,
        row_offset: int,
        array: PlannedTensor | PartPiece,
        digest: str,
        part: int = 0,
    ) -> None:
        self.tensors.append(
            TensorRecord(
                variable=shard.variable.name,
                slot=slot,
                row_offset=row_offset,
                rows=array.rows,
                file=self._file,
                tensor=array.spec.name,
                digest=digest,
                num_bytes=array.spec.num_bytes,
                part=part,
            )
        )
