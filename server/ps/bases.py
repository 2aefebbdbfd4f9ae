"""Since when a store knows what changed: since the whole checkpoint that deltas may name.

There is one such moment at a time: that of the last whole checkpoint which was written for deltas.
A delta of another one, or by a ps that has come to lead since, is written whole, so what it lacks
is never guessed.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ...engine.block import Block
from ...engine.push_target import PushTarget, RowsByKey
from ...engine.row_changes import RowChanges
from .tensor_plan import COPY_BYTES

if TYPE_CHECKING:
    from ...engine.keyed.block import KeyedBlock

_LEAST_BYTES = COPY_BYTES
"""Arrays of fewer bytes, slots included, are always written whole."""


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """What is asked of a save.

    Attributes:
        checkpoint: Name of the checkpoint.
        base: Whole checkpoint since which changes are wanted; empty: everything is.
        may_be_base: Whether deltas that follow may name this one.
    """

    checkpoint: str = ""
    base: str = ""
    may_be_base: bool = False


WHOLE = SaveOrder()


@dataclass(frozen=True, slots=True)
class TableMark:
    """A moment of a part of a table.

    Attributes:
        step: The table's step: rows of later pushes, and some of this step, changed after it.
        pin: Position among the removed keys.
    """

    step: int
    pin: int


Mark = RowChanges | TableMark
Marks = WeakKeyDictionary[PushTarget, Mark]


class Bases:
    """The moment of a store's last whole checkpoint for deltas. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checkpoint = ""  # empty: it is being written
        self._cut = 0
        self._marks: Marks = WeakKeyDictionary()

    def begin(self, blocks: Iterable[PushTarget], cut: int = 0) -> None:
        """Note from now on what changes; earlier moments are forgotten. Takes the blocks' locks.

        Args:
            blocks: Blocks and parts of tables.
            cut: Number of the cut whose moment it is; 0: of none.
        """
        self.clear()
        with self._lock:
            self._cut = cut
            for block in blocks:
                with block.lock:
                    mark = _mark(block)
                if mark is not None:
                    self._marks[block] = mark

    def commit(self, checkpoint: str, cut: int = 0) -> None:
        """What was begun, for the same cut, is the moment of a checkpoint that is written."""
        with self._lock:
            self._checkpoint = checkpoint if cut == self._cut else ""

    def of(self, checkpoint: str) -> Marks:
        """The moment of a checkpoint by block; nothing if it is another one or not known."""
        with self._lock:
            known = checkpoint and checkpoint == self._checkpoint
            return self._marks if known else WeakKeyDictionary()

    def clear(self) -> None:
        """Note nothing any more."""
        with self._lock:
            marks, self._marks, self._checkpoint = self._marks, WeakKeyDictionary(), ""
            for block, mark in marks.items():
                with block.lock:
                    if isinstance(mark, TableMark):
                        _table_of(block).table.removals.unpin(mark.pin)
                    elif isinstance(block, Block):
                        block.base_changes = None


def _mark(block: PushTarget) -> Mark | None:
    """Begin to note what changes of a block; None: it is written whole."""
    if isinstance(block, RowsByKey):
        table = _table_of(block).table
        return TableMark(table.step, table.removals.pin())
    if not isinstance(block, Block) or len(block.shards) > 1 or block.shards[0].rows < 2:
        return None
    if block.value_bytes + block.slot_bytes <= _LEAST_BYTES:
        return None
    block.base_changes = RowChanges(block)
    return block.base_changes


def _table_of(block: PushTarget) -> "KeyedBlock":
    from ...engine.keyed.block import KeyedBlock  # a ps without tables never loads it

    if not isinstance(block, KeyedBlock):
        raise TypeError(f"{block.shards[0].label!r} is no part of a table")
    return block
