"""Changes of a growing table since a whole checkpoint, copied while training goes on.

The changed places are listed first, with their keys, since the head of a file says how many there
are; then they are copied as those of a whole checkpoint are. A place that belongs to another key by
then, or to none, is saved as free, which says that the listed key has no row any more. The keys
that have lost their rows since the whole checkpoint are an array beside them. Of a table that a cut
keeps at one moment the rows are taken at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.checkpoint.delta import REMOVED, superseded
from ....core.checkpoint.saved_part import SavedShard
from ....engine.keyed.row_store import FREE
from ....engine.row_changes import ChangeMark
from ....server.ps.block_reader import BlockReader, PlannedTensor, copy_in_parts, parts_of
from ....server.ps.table_copies import TableCopy

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
            for name, column in self.block.table.columns.items():
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
        places, columns = listed["places"], self.block.table.columns
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
        copy.block.table.note_copied(rows)
    return {name: column[rows] for name, column in columns.items()}


def _listed(copy: TableCopy, mark: ChangeMark) -> TableDelta | None:
    """List changed places without the lock: a row that a push changes now may be there or not."""
    block, left = copy.block, _most(copy)
    with block.lock:
        columns = block.table.columns
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
