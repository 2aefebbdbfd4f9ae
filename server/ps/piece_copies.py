"""Copies of pieces of blocks, a part of a MiB under the lock at a time, for who writes them."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.arrays.memory_pool import present_buffer
from ...engine.block import Block
from .cut.image import BlockImage, CutImage, KeptPiece
from .locked_copies import copy_in_parts
from .tensor_plan import PlannedTensor, memory_of


class PieceCopies:
    """Copies of pieces of blocks, in memory that is used again for each.

    Args:
        num_bytes: Most that is copied at a time.
        image: Image whose pieces they are, of one moment; None: each is of the moment it is copied.
    """

    def __init__(self, num_bytes: int, image: CutImage | None) -> None:
        self._num_bytes = num_bytes
        self._image = image
        # Before a lock is taken: page faults must not make pushes wait.
        self._memory = present_buffer(num_bytes)

    def of(
        self, image: BlockImage, piece: KeptPiece
    ) -> Iterator[tuple[PlannedTensor, Iterator[memoryview]]]:
        """Yield each tensor of a piece with its parts, flat; a part is valid until the next is
        asked for.

        The piece is copied at one moment if it fits.
        """
        block, total = image.block, piece.num_bytes
        if total > self._num_bytes and self._image is None:
            for tensor in piece.tensors:
                yield tensor, self._piecewise(block, tensor)
            return
        views: list[Array] = []
        if total > self._num_bytes:
            with block.lock:
                piece.keep(block)  # a row that does not fit
        elif piece.kept is None:
            views = self._copy(block, piece.tensors)
        if self._image is not None:
            views = self._kept(self._image, block, piece, views)
        for tensor, view in zip(piece.tensors, views, strict=True):
            yield tensor, iter([view.data])

    @staticmethod
    def _kept(image: CutImage, block: Block, piece: KeptPiece, views: list[Array]) -> list[Array]:
        """Take what a push has kept of a piece before it changed it; if none has, our own copy."""
        with block.lock:  # a push meanwhile has changed what we were copying
            kept, held = piece.take()
        image.freed(held)
        return views if kept is None else [array.view(np.uint8) for array in kept]

    def _copy(self, block: Block, group: Sequence[PlannedTensor]) -> list[Array]:
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
                    np.copyto(view, memory_of(block, tensor).view(np.uint8))
        return views

    @staticmethod
    def _copy_rows(block: Block, group: Sequence[PlannedTensor], views: Sequence[Array]) -> None:
        """Copy rows of one shard, some at a moment, each with its slots."""
        rows = group[0].rows
        row_bytes = [view.size // max(1, rows) for view in views]
        sources = [memory_of(block, tensor).view(np.uint8) for tensor in group]

        def copy(part: slice) -> None:
            for source, view, size in zip(sources, views, row_bytes, strict=True):
                elements = slice(part.start * size, part.stop * size)
                np.copyto(view[elements], source[elements])

        copy_in_parts(block.lock, rows, sum(row_bytes), copy)

    def _piecewise(self, block: Block, tensor: PlannedTensor) -> Iterator[memoryview]:
        """Copy a row that does not fit, some of it at a time."""
        source = memory_of(block, tensor).view(np.uint8)
        for start in range(0, source.size, self._num_bytes):
            part = source[start : start + self._num_bytes]
            copy = self._memory[: part.size]
            with block.lock:
                np.copyto(copy, part)
            yield copy.data
