"""Changes of a large array since a whole checkpoint: numbers of rows, values and slots.

Rows are listed first, range by range, since the head of a file says how many there are, and copied
when they are written. Of a cut they are of its moment, as all rows of a range are kept before a
push changes some of them; more rows than changed until that moment may be listed.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint.delta import ROWS, changed_slot
from ...core.checkpoint.tensor_file import TensorSpec
from ...engine.block import Block
from .bases import BaseMark
from .cut.image import BlockImage, CutImage, KeptPiece
from .locked_copies import copy_in_parts
from .tensor_plan import PartPiece, PlannedTensor, memory_of

_MOST_CHANGED = 0.5
"""Part of all rows: of more the whole array is written, which is faster read."""


class ArrayDelta:
    """The changes of an array that is alone in its block. Make one with :func:`delta_of_array`.

    Args:
        image: The block, planned at the moment that is saved.
        changed: Changed rows of each piece, from its first row on.
        cut: The moment, if there is one.

    Attributes:
        pieces: The arrays, in the order of :meth:`arrays`.
    """

    since_base = True

    def __init__(self, image: BlockImage, changed: Sequence[Array], cut: CutImage | None) -> None:
        self.image, self._cut = image, cut
        self.shard = image.pieces[0].tensors[0].shard
        self.version, self.updates = image.versions[0], image.updates[0]
        self.applied = image.applied
        self._changed = [*zip(image.pieces, changed, strict=True)]
        self.pieces = [
            piece
            for kept, rows in self._changed
            if rows.size
            for piece in _pieces(kept.tensors, rows)
        ]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the arrays, in order."""
        for piece, rows in self._changed:
            copies = self._copied(piece, rows)
            if rows.size:
                yield rows + piece.tensors[0].row_offset
                yield from copies

    def _copied(self, piece: KeptPiece, rows: Array) -> list[Array]:
        """Copy rows of the tensors of a piece, which is read then."""
        block = self.image.block
        copies = [
            np.empty(_shape(tensor, rows.size), tensor.spec.dtype) for tensor in piece.tensors
        ]

        def copy_rows(part: slice) -> None:
            for number, copy in enumerate(copies):
                copy[part] = _memory(block, piece, number)[rows[part]]

        row_bytes = piece.num_bytes // max(1, piece.tensors[0].rows)
        copy_in_parts(block.lock, rows.size, row_bytes, copy_rows)
        with block.lock:
            _, held = piece.take()
        if self._cut is not None:
            self._cut.freed(held)
        return copies


def delta_of_array(
    image: BlockImage, mark: BaseMark, cut: CutImage | None = None
) -> ArrayDelta | None:
    """Collect what changed of an array since a moment; None: too much, or it is not known.

    Args:
        image: Block of the array, planned at the moment that is saved; nothing of it is read.
        mark: The moment of the whole checkpoint.
        cut: Cut that the image is a part of, if that is of one moment.
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
            if not mark.is_known(block):
                return None
            rows = block.changed_keys(0, mark.position, start, start + tensor.rows)
        changed.append(rows - tensor.row_offset)
    if sum(rows.size for rows in changed) > shard.rows * _MOST_CHANGED:
        return None
    return ArrayDelta(image, changed, cut)


def _pieces(tensors: Sequence[PlannedTensor], rows: Array) -> Iterator[PartPiece]:
    label, first = tensors[0].spec.name, int(rows[0]) + tensors[0].row_offset
    numbers = TensorSpec(f"{label}:{ROWS}", rows.shape, np.dtype(np.int64))
    yield PartPiece(ROWS, numbers, first, rows.size)
    for tensor in tensors:
        column = changed_slot(tensor.slot)
        spec = TensorSpec(f"{label}:{column}", _shape(tensor, rows.size), tensor.spec.dtype)
        yield PartPiece(column, spec, first, rows.size)


def _shape(tensor: PlannedTensor, rows: int) -> tuple[int, ...]:
    return (rows, *tensor.shard.shape[1:])


def _memory(block: Block, piece: KeptPiece, number: int) -> Array:
    """View all rows of a tensor of a piece, as they are kept or as they are."""
    tensor = piece.tensors[number]
    memory = memory_of(block, tensor) if piece.kept is None else piece.kept[number]
    return memory.reshape(_shape(tensor, tensor.rows))
