"""Checkpoints of a store at one moment, and those that have only what changed.

Of a cut all is of one moment: what a push changes is kept for it (``image.py``). Of a delta only
what changed since a whole checkpoint is written of growing tables and of large arrays, where that
is known and not too much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.checkpoint.folder import Folder
from ....core.checkpoint.saved_part import SavedPart
from ....server.ps.block_reader import COPY_BYTES, BlockReader
from ....server.ps.saving import SaveSource, save_shards, table_readers
from ....server.ps.store import Store
from .bases import BaseMarks, Bases
from .image import BlockImage, CutImage

if TYPE_CHECKING:
    from ....server.ps.table_copies import TableCopy


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """An order to save.

    Attributes:
        checkpoint: Name of the checkpoint.
        base: Whole checkpoint since which changes are wanted; empty: everything is.
        may_be_base: Whether deltas that follow may name this one.
    """

    checkpoint: str = ""
    base: str = ""
    may_be_base: bool = False


WHOLE = SaveOrder()


class MomentSource(SaveSource):
    """The content of a checkpoint that is of a cut, or a delta.

    Args:
        store: The store.
        image: State of the store at one moment; None: each tile is of the moment it is copied.
        order: Whether it is a delta, and whether deltas of it may follow.
    """

    def __init__(self, store: Store, image: CutImage | None, order: SaveOrder) -> None:
        super().__init__(store)
        self._image = image
        self._order = order
        self._bases = store.part(Bases)

    @property
    def pushes(self) -> int:
        """See :attr:`SaveSource.pushes`."""
        return super().pushes if self._image is None else self._image.moment.pushes

    @property
    def global_step(self) -> int:
        """See :attr:`SaveSource.global_step`."""
        return super().global_step if self._image is None else self._image.moment.global_step

    def readers(self, most: int) -> Sequence[BlockReader]:
        """See :meth:`SaveSource.readers`."""
        arrays, tables = self._whole(most)
        marks = self._bases.of(self._order.base)
        changed = [(image, _changed_rows(image, marks)) for image in arrays]
        return [
            *(image for image, rows in changed if rows is None),
            *(rows for _, rows in changed if rows is not None),
            *(_changed_keys(table, marks) or table for table in tables),
        ]

    def _whole(self, most: int) -> "tuple[list[BlockImage], list[TableCopy]]":
        if self._image is not None:
            self._image.check()
            return self._image.blocks, self._image.tables
        if self._order.may_be_base:
            self._bases.begin()
        table = self._store.table
        arrays = [BlockImage(block, most) for block in table.blocks()]
        return arrays, table_readers(table.tables(), most)

    def check(self) -> None:
        """See :meth:`SaveSource.check`.

        Raises:
            CutVoidError: What the image is of was not kept.
        """
        if self._image is not None:
            self._image.check()


def save_moment(
    store: Store,
    directory: str | Folder,
    copy_bytes: int = COPY_BYTES,
    image: CutImage | None = None,
    order: SaveOrder = WHOLE,
) -> SavedPart:
    """Write a store's part of a checkpoint, of one moment or as a delta; see :func:`save_shards`.

    Args:
        store: The shards of this ps.
        directory: Directory of the checkpoint.
        copy_bytes: Bytes copied at a time.
        image: State of the store at one moment; None: each tile is of the moment it is copied.
        order: Whether it is a delta, and whether deltas of it may follow.

    Raises:
        OSError: The file system refused.
        CutVoidError: What the image is of was not kept.
    """
    part = save_shards(store, directory, copy_bytes, MomentSource(store, image, order))
    bases = store.part(Bases)
    if order.may_be_base:
        bases.commit(order.checkpoint, 0 if image is None else image.moment.number)
    elif not order.base:
        bases.clear()  # no delta follows
    return part


def _changed_rows(image: BlockImage, marks: BaseMarks) -> BlockReader | None:
    mark = marks.get(image.block)
    if mark is None:
        return None
    from .array_deltas import delta_of_array  # most jobs write no deltas

    return delta_of_array(image, mark)


def _changed_keys(table: "TableCopy", marks: BaseMarks) -> BlockReader | None:
    mark = marks.get(table.block)
    if mark is None:
        return None
    from .table_deltas import delta_of_table  # a ps without tables never loads it

    return delta_of_table(table, mark)
