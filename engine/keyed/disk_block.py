"""A part of a growing table that is larger than its memory.

Values and slots lie in a mapped file, by place, as they would in memory, so whatever runs on rows
runs on these. The rest is in memory: keys, counts, steps and the index.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np

from ...core.arrays.dtypes import Array, DType
from ...core.errors import ConfigurationError
from ...core.report import TableCounters
from ...core.rules.definitions import ShardDefinition
from ..push_target import UpdatePart
from .block import KeyedBlock
from .definition import TableDefinition, definition_of
from .pages import PagedMemory, RowPages, file_bytes
from .row_rules import slots_of
from .row_store import RowStore, SlotColumns
from .table import KeyedTable

_LEAST_BYTES = 1 << 16  # of values and slots in memory: some rows at least


class StoreOnDisk(RowStore):
    """Rows whose values and slots are in a mapped file. Not thread-safe.

    Args:
        pages: Pages of the file.
        name: Name of the table; this and the others are those of :class:`RowStore`.
    """

    def __init__(
        self,
        pages: RowPages,
        name: str,
        max_rows: int,
        width: int,
        dtype: DType,
        slots: SlotColumns,
    ) -> None:
        self._pages = pages
        super().__init__(name, max_rows, width, dtype, slots)

    def column(self, width: int, dtype: DType) -> Array:
        """Allocate a column in memory of the file."""
        return self._pages.column(self.max_rows, width, dtype)

    def make(self, keys: Array) -> Array:
        """Make rows, as every store does; what it writes is in memory then."""
        rows = super().make(keys)
        self._pages.note(rows)
        return rows

    def note_copied(self, rows: Array) -> None:
        """Note rows that are copied now: they are in memory then, and no step uses them."""
        self._pages.note_copied(rows)

    def touch(self, rows: Array, step: int) -> None:
        """Touch rows, as every store does; a push uses them now."""
        super().touch(rows, step)
        self._pages.note(rows)


class BlockOnDisk(KeyedBlock):
    """A part of a table whose rows beyond its memory are on disk.

    Args:
        shard: The part. Its ``file_bytes`` are not 0.
        number: Number of the block among those of its store.
        create: Makes the file: memory of at least so many bytes, zero.
        page_bytes: Size of a page.

    Raises:
        ConfigurationError: The definition is that of no table, or does not fit its update rule, or
            its memory is too small.
    """

    def __init__(
        self,
        shard: ShardDefinition,
        number: int,
        create: Callable[[int], PagedMemory],
        page_bytes: int,
    ) -> None:
        definition, budget = definition_of(shard), row_budget(shard)
        slots = slots_of(definition.name, definition.rule, definition.dim)
        widths = [definition.dim, *(elements for elements, _ in slots.values())]
        row_bytes = [width * definition.dtype.itemsize for width in widths]
        self._file_bytes = file_bytes(shard.rows, row_bytes, page_bytes)
        self._row_bytes = sum(row_bytes)
        self._pages = RowPages(definition.name, create(self._file_bytes), budget)
        self._store: StoreOnDisk | None = None
        super().__init__(shard, number)

    def _new_table(self, definition: TableDefinition) -> KeyedTable:
        return KeyedTable(definition, self._emptied)

    def _emptied(
        self, name: str, rows: int, width: int, dtype: DType, slots: SlotColumns
    ) -> RowStore:
        """Return the store, which is made once: there may be no disk for a second one."""
        if self._store is None:
            self._store = StoreOnDisk(self._pages, name, rows, width, dtype, slots)
        self._store.release(self._store.in_use(0, rows))
        return self._store

    @property
    def most_bytes(self) -> int:
        """Memory that the table may come to have, and of what is noted about changes."""
        return self.shards[0].memory_bytes + self.followed_bytes

    @property
    def reserved_bytes(self) -> int:
        """Size of the file."""
        return self._file_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of values and slots that are on disk alone."""
        return max(0, self.table.places * self._row_bytes - self._pages.memory_bytes)

    @property
    def counters(self) -> TableCounters:
        """Counters of what the table holds in memory and on disk, and what happened to it. Also
        without the lock.
        """
        counters, on_disk = super().counters, self.disk_bytes
        return replace(counters, num_bytes=counters.num_bytes - on_disk, disk_bytes=on_disk)

    def reading(self, rows: Array | None) -> AbstractContextManager[object]:
        """Hold the lock, after the rows of these keys were asked for, and their slots: a push
        follows.
        """
        if rows is not None:
            self._fetch([rows])
        return self.lock

    @contextmanager
    def writing(self, parts: Sequence[UpdatePart] = ()) -> Iterator[None]:
        """Hold the lock, after the rows were asked for."""
        self._fetch([part.gradient.rows for part in parts if part.gradient.rows is not None])
        with self.lock:
            yield

    def _fetch(self, keys: Sequence[Array]) -> None:
        """Ask for rows, once what is too much in memory has left it: not what is asked for now."""
        self._pages.keep_budget()
        for wanted in keys:
            with self.lock:
                rows = self.table.places_of(wanted)
            self._pages.fetch(rows)

    def fetch_copied(self, places: Array | range) -> None:
        """Have rows come from disk that will be copied, and leave first. Without the lock."""
        if isinstance(places, range):
            places = np.arange(places.start, places.stop)
        self._pages.keep_budget()
        self._pages.fetch_copied(places)


def row_budget(shard: ShardDefinition) -> int:
    """Compute the memory of a part's values and slots.

    Raises:
        ConfigurationError: The table's memory is not enough for what is beside them.
    """
    variable, budget = shard.variable, shard.memory_bytes
    if variable.table is None:
        raise TypeError(f"{variable.name!r} is no table")
    beside = variable.table.index_bytes(shard.rows)
    if budget < beside + _LEAST_BYTES:
        raise ConfigurationError(
            f"table {variable.name!r}: memory_bytes={variable.table.memory_bytes} leaves {budget} "
            f"for a part of {shard.rows} rows, whose keys, counts, steps and index, and what "
            f"admission remembers, take {beside}; values and slots need at least {_LEAST_BYTES} "
            "more. Raise memory_bytes, or lower max_rows",
            table=variable.name,
            value=budget,
            limit=beside + _LEAST_BYTES,
        )
    return budget - beside
