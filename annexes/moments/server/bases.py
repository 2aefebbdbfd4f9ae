"""Moments since which a store knows what changed: since the whole checkpoint that deltas may name.

There is one such moment at a time: that of the last whole checkpoint which was written for deltas.
A delta of another one, or by a ps that has come to lead since, is written whole, so what it lacks
is never guessed.
"""

import logging
import threading
from weakref import WeakKeyDictionary

from ....core.errors import LimitExceededError
from ....engine.push_target import PushTarget, RowsByKey
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import COPY_BYTES
from ....server.ps.change_stream import Subscriber
from ....server.ps.store import Store

log = logging.getLogger(__name__)

_LEAST_BYTES = COPY_BYTES
"""Arrays of fewer bytes, slots included, are always written whole."""


BaseMarks = WeakKeyDictionary[PushTarget, ChangeMark]


class Bases(Subscriber):
    """The moment of a store's last whole checkpoint for deltas. Thread-safe.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._table = store.table
        self._lock = threading.Lock()
        self._checkpoint = ""  # empty: it is being written
        self._cut = 0
        self._marks: BaseMarks = WeakKeyDictionary()

    def begin(self, cut: int = 0) -> None:
        """Note from now on what changes; earlier moments are forgotten. Takes the blocks' locks.

        Args:
            cut: Number of the cut whose moment it is; 0: of none.
        """
        with self._lock:
            self._checkpoint, self._cut = "", cut
            self._marks = WeakKeyDictionary()
            for block in self._table.targets():
                if (mark := self._mark(block)) is not None:
                    self._marks[block] = mark

    def commit(self, checkpoint: str, cut: int = 0) -> None:
        """Make what was begun, for the same cut, the moment of a checkpoint that is written."""
        with self._lock:
            self._checkpoint = checkpoint if cut == self._cut else ""

    def of(self, checkpoint: str) -> BaseMarks:
        """Find the moment of a checkpoint by block; nothing if it is another one or not known."""
        with self._lock:
            is_current = checkpoint and checkpoint == self._checkpoint
            return self._marks if is_current else WeakKeyDictionary()

    def interrupted(self, why: str) -> None:  # noqa: ARG002 - the interface's
        """Note nothing any more: what a leader has sent was not noted."""
        self.clear()

    def clear(self) -> None:
        """Note nothing any more."""
        with self._lock:
            self._marks, self._checkpoint = WeakKeyDictionary(), ""
            self._table.unfollow(self)

    def _mark(self, block: PushTarget) -> ChangeMark | None:
        """Mark the moment of now, from which on changes are noted; None: the block is written
        whole.
        """
        if not _is_large(block):
            return None
        try:
            changes = self._table.follow(block, 0, self)
        except LimitExceededError as error:
            log.warning("all of %s goes into deltas: %s", block.shards[0].label, error.message)
            return None
        with block.lock:
            return ChangeMark(changes, changes.advance())


def _is_large(block: PushTarget) -> bool:
    if isinstance(block, RowsByKey):
        return True
    is_array_of_rows = len(block.shards) == 1 and block.shards[0].rows > 1
    return is_array_of_rows and block.value_bytes + block.slot_bytes > _LEAST_BYTES
