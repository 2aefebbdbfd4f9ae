"""Changes of a large array since a whole checkpoint: numbers of rows, values and slots.

Rows are listed first, range by range, since the head of a file says how many there are, and copied
when they are written. Of a cut they are of its moment, as all rows of a range are kept before a
push changes some of them; more rows than changed until that moment may be listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.checkpoint.delta import ROWS, changed_slot
from ....core.checkpoint.saved_part import SavedShard
from ....core.checkpoint.tensor_file import TensorSpec
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import BlockReader, PlannedTensor, copy_in_parts, parts_of
from .image import BlockImage, KeptPiece

_MOST_CHANGED = 0.5
"""Part of all rows: of more the whole array is written, which is faster read."""


class ArrayDelta(BlockReader):
    """Reads the changes of an array that is alone in its block. Make one with
    :func:`delta_of_array`.

    Args:
        image: The block, planned at the moment that is saved.
        changed: Changed rows of each piece, from its first row on.
    """

    since_base = True

    def __init__(self, image: BlockImage, changed: Sequence[Array]) -> None:
        self._image, self.applied = image, image.applied
        self.part = image.block.shards[0].part
        self._changed = [*zip(image.pieces, changed, strict=True)]

    @property
    def planned(self) -> list[PlannedTensor]:
        """See :attr:`BlockReader.planned`."""
        return [
            planned
            for piece, rows in self._changed
            if rows.size
            for planned in _planned(piece.tensors, rows)
        ]

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:  # noqa: ARG002 - few rows are copied
        """See :meth:`BlockReader.read`."""
        return parts_of(self.arrays())

    def saved(self, number: int) -> list[SavedShard]:
        """See :meth:`BlockReader.saved`."""
        return [replace(shard, since_base=True) for shard in self._image.saved(number)]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the arrays, in order."""
        for piece, rows in self._changed:
            copies = self._copied(piece, rows)
            if rows.size:
                yield rows + piece.tensors[0].row_offset
                yield from copies

    def _copied(self, piece: KeptPiece, rows: Array) -> list[Array]:
        """Copy rows of the tensors of a piece, which is read then."""
        block = self._image.block
        copies = [
            np.empty(_shape(tensor, rows.size), tensor.spec.dtype) for tensor in piece.tensors
        ]

        def copy_rows(part: slice) -> None:
            for number, copy in enumerate(copies):
                memory = piece.memory(block, number)
                copy[part] = memory.reshape(_shape(piece.tensors[number], -1))[rows[part]]

        row_bytes = piece.num_bytes // max(1, piece.tensors[0].rows)
        copy_in_parts(block.lock, rows.size, row_bytes, copy_rows)
        self._image.take(piece)
        return copies


def delta_of_array(image: BlockImage, mark: ChangeMark) -> ArrayDelta | None:
    """Collect what changed of an array since a moment; None: too much, or it is not known.

    Args:
        image: Block of the array, planned at the moment that is saved; nothing of it is read.
        mark: The moment of the whole checkpoint.
    """
    block = image.block
    if len(image.pieces) < 2:
        return None
    changed: list[Array] = []
    shard = block.shards[0]
    for piece in image.pieces:
        tensor = piece.tensors[0]
        start = tensor.row_offset - shard.row_offset
        with block.lock:
            if not block.knows(mark):
                return None
            rows = block.changed_keys(0, mark.position, start, start + tensor.rows)
        changed.append(rows - tensor.row_offset)
    if sum(rows.size for rows in changed) > shard.rows * _MOST_CHANGED:
        return None
    return ArrayDelta(image, changed)


def _planned(tensors: Sequence[PlannedTensor], rows: Array) -> Iterator[PlannedTensor]:
    value = tensors[0]
    label, first = value.spec.name, int(rows[0]) + value.row_offset
    numbers = TensorSpec(f"{label}:{ROWS}", rows.shape, np.dtype(np.int64))
    yield PlannedTensor(value.shard, ROWS, numbers, first, rows.size)
    for tensor in tensors:
        column = changed_slot(tensor.slot)
        spec = TensorSpec(f"{label}:{column}", _shape(tensor, rows.size), tensor.spec.dtype)
        yield PlannedTensor(value.shard, column, spec, first, rows.size)


def _shape(tensor: PlannedTensor, rows: int) -> tuple[int, ...]:
    return (rows, *tensor.shard.shape[1:])
