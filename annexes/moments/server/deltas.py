"""Deltas: what changed of arrays and tables since the whole checkpoint that they name."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.checkpoint.delta import REMOVED, ROWS, changed_slot, superseded
from ....core.checkpoint.manifest import SavedShard
from ....core.checkpoint.tensor_file import TensorSpec
from ....core.errors import LimitExceededError
from ....engine.push_target import FREE, PushTarget, RowsByKey
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import (
    COPY_BYTES,
    BlockReader,
    PlannedTensor,
    TableCopy,
    copy_in_parts,
    parts_of,
)
from ....server.ps.change_stream import Subscriber
from ....server.ps.store import Store
from .image import BlockImage, KeptPiece

log = logging.getLogger(__name__)

# -- The moment since which a store knows what changed -----------------------------------------
# There is one at a time: that of the last whole checkpoint which was written for deltas. A delta of
# another one, or by a ps that has come to lead since, is written whole, so what it lacks is never
# guessed.

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


# -- Changes of a large array since a whole checkpoint: numbers of rows, values and slots ------
# Rows are listed first, range by range, since the head of a file says how many there are, and
# copied when they are written. Of a cut they are of its moment, as all rows of a range are kept
# before a push changes some of them; more rows than changed until that moment may be listed.

_MOST_CHANGED_ROWS = 0.5
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
    if sum(rows.size for rows in changed) > shard.rows * _MOST_CHANGED_ROWS:
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


# -- Changes of a growing table since a whole checkpoint, copied while training goes on --------
# The changed places are listed first, with their keys, since the head of a file says how many
# there are; then they are copied as those of a whole checkpoint are. A place that belongs to
# another key by then, or to none, is saved as free, which says that the listed key has no row any
# more. The keys that have lost their rows since the whole checkpoint are an array beside them. Of
# a table that a cut keeps at one moment the rows are taken at once.

_MOST_CHANGED = 0.25
"""Part of all places: of more the whole table is written, and no longer list is kept."""
_LISTED_AT_ONCE = 1 << 20  # places whose steps are compared at a time


class TableDelta(BlockReader):
    """Reads the changes of a part of a table. Make one with :func:`delta_of_table`.

    Args:
        copy: The whole part, planned at the moment that is saved. Its rows are not read.
        rows: Columns of the changed rows; or their places, and the keys that were there.
        removed: Keys that lost their rows, ascending.
    """

    since_base = True

    def __init__(self, copy: TableCopy, rows: Mapping[str, Array], removed: Array) -> None:
        self.block, self.applied, self.part = copy.block, copy.applied, copy.part
        self._copy, self._rows, self._removed = copy, rows, removed
        self._planned = [*self._plan()]

    def _plan(self) -> Iterator[PlannedTensor]:
        copy, label, removed = self._copy, self._copy.shard.label, self._removed
        yield from copy.planned_state
        yield copy.planned_array(REMOVED, f"{label}:{REMOVED}", removed, 0, removed.size)
        for start, stop in self._tiles():
            for name, column in self.block.columns.items():
                of = f"{label}[changed {start}:{stop}]:{name}"
                yield copy.planned_array(name, of, column, start, stop - start)

    @property
    def planned(self) -> list[PlannedTensor]:
        """See :attr:`BlockReader.planned`."""
        return self._planned

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:  # noqa: ARG002 - as those of a table
        """See :meth:`BlockReader.read`."""
        return parts_of(self.arrays())

    def saved(self, number: int) -> list[SavedShard]:
        """See :meth:`BlockReader.saved`."""
        return [replace(shard, since_base=True) for shard in self._copy.saved(number)]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the arrays, in order."""
        yield from self._copy.state.values()
        yield self._removed
        for start, stop in self._tiles():
            rows = {name: column[start:stop] for name, column in self._rows.items()}
            yield from (rows if "values" in rows else self._copied(rows)).values()

    def _tiles(self) -> Iterator[tuple[int, int]]:
        size, step = self._rows["keys"].size, self._copy.step
        for start in range(0, size, step):
            yield start, min(start + step, size)

    def _copied(self, listed: Mapping[str, Array]) -> dict[str, Array]:
        """Copy the rows of listed places, by column; free where they are those of other keys."""
        places, columns = listed["places"], self.block.columns
        self.block.fetch_copied(places)
        copies = {
            name: np.empty((places.size, *column.shape[1:]), column.dtype)
            for name, column in columns.items()
        }

        def copy_places(part: slice) -> None:
            for name, column in columns.items():
                copies[name][part] = column[places[part]]

        copy_in_parts(self.block.lock, places.size, self._copy.row_bytes, copy_places)
        copies["last"][copies["keys"] != listed["keys"]] = FREE
        copies["keys"] = listed["keys"]
        return copies


def delta_of_table(copy: TableCopy, mark: ChangeMark) -> TableDelta | None:
    """Collect what changed of a part of a table since a moment; None: too much, or it is not known.

    Args:
        copy: The whole part, planned at the moment that is saved. If this is not None, no push
            keeps anything of it any more.
        mark: The moment of the whole checkpoint.
    """
    if not copy.is_of_one_moment:
        return _listed(copy, mark)
    with copy.block.lock:
        is_kept = copy.is_kept
        removed = _removed(copy, mark, copy.moment if is_kept else None)
        taken = None if is_kept else _taken(copy, mark)
    if is_kept:  # it no longer changes
        taken = _taken(copy, mark)
    if removed is None or taken is None:
        return None
    with copy.block.lock:
        copy.drop()
    return TableDelta(copy, taken, superseded(removed))


def _taken(copy: TableCopy, mark: ChangeMark) -> dict[str, Array] | None:
    """Take the columns of rows that changed, as they were planned; None: too many.

    Of rows that a push has kept, some may have changed only since then.
    """
    columns = copy.planned_columns()
    rows = _changed(columns["last"], mark, 0)
    if rows.size > _most(copy):
        return None
    if not copy.is_kept:
        copy.block.note_copied(rows)
    return {name: column[rows] for name, column in columns.items()}


def _listed(copy: TableCopy, mark: ChangeMark) -> TableDelta | None:
    """List changed places without the lock: a row that a push changes now may be there or not."""
    block, left = copy.block, _most(copy)
    with block.lock:
        columns = block.columns
    places, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, copy.used, _LISTED_AT_ONCE):
        stop = min(start + _LISTED_AT_ONCE, copy.used)
        changed = _changed(columns["last"], mark, start, stop)
        keys.append(columns["keys"][changed])
        places.append(changed)
        left -= changed.size
        if left < 0:
            return None
    with block.lock:  # after the list: a row that went before its place was read is among these
        removed = _removed(copy, mark)
    if removed is None:
        return None
    rows = {"places": np.concatenate(places), "keys": np.concatenate(keys)}
    return TableDelta(copy, rows, superseded(removed))


def _removed(copy: TableCopy, mark: ChangeMark, before: int | None = None) -> list[Array] | None:
    """List the keys that lost their rows since a moment, before a position or until now; None: not
    known.

    The caller locks the block.
    """
    if not copy.block.knows(mark) or copy.moment < mark.position:
        return None
    return mark.changes.removed_parts(mark.position, before)


def _changed(last: Array, mark: ChangeMark, start: int, stop: int | None = None) -> Array:
    """Find the places in ``[start, stop)`` that changed and have a row, by the steps of all
    places.
    """
    changed = mark.changes.since(mark.position, start, last.size if stop is None else stop)
    return np.asarray(changed[last[changed] != FREE])


def _most(copy: TableCopy) -> int:
    return int(copy.used * _MOST_CHANGED)
