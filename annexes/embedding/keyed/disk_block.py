"""Parts of growing tables that are larger than their memory, and the mapped files of their rows.

A file has no name, and goes with the process. All of it is reserved when it is made: a full disk is
an error then, and never the SIGBUS of a write to a hole. The kernel reads no more than the page
that is asked for (``MADV_RANDOM``): rows of one batch lie anywhere.

Values and slots lie in it by place, as they would in memory, so whatever runs on rows runs on
these. The rest is in memory: keys, counts, steps and the index.
"""

import errno
import logging
import mmap
import os
import platform
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ....core.arrays.dtypes import Array, DType
from ....core.errors import ConfigurationError, LimitExceededError, StorageError
from ....core.report import TableCounters
from ....core.rules.definitions import ShardDefinition
from ....engine.push_target import UpdatePart
from .block import KeyedBlock
from .definition import TableDefinition, definition_of, options_of
from .row_rules import slots_of
from .row_store import RowStore, SlotColumns
from .table import KeyedTable

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RowFile:
    """A mapped file, zero at first. Make one with :meth:`create`.

    Args:
        descriptor: The file, which has no name; owned from now on.
        num_bytes: Size of the file. Unit: bytes.

    Attributes:
        memory: All of the file, uint8, flat; lives as long as arrays of it do.
        page_bytes: Size of a page.
    """

    page_bytes = mmap.PAGESIZE

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED)
        self._mapped.madvise(mmap.MADV_RANDOM)
        self.memory: Array = np.frombuffer(self._mapped, np.uint8)
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, folder: Path, num_bytes: int, table: str) -> "RowFile":
        """Create a file of mode 0600 in a folder of mode 0700, which is made if it is not there.

        Args:
            folder: Folder on a local disk.
            num_bytes: Size of the file, which is reserved. Unit: bytes.
            table: Name of the table, for messages.

        Raises:
            ConfigurationError: The folder is open to others, or this system reserves no files.
            LimitExceededError: The disk has no room for it; names the table and both numbers.
            StorageError: The folder, or a file of it, cannot be used so.
        """
        if not hasattr(os, "posix_fallocate"):
            raise ConfigurationError(
                f"table {table!r} has memory_bytes, and {platform.system()} cannot reserve files "
                "for the rows beyond: run the ps on Linux, or leave memory_bytes out",
                table=table,
            )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder)
            descriptor, name = tempfile.mkstemp(prefix="rows-", dir=folder)  # of mode 0600
            try:
                os.unlink(name)
                os.posix_fallocate(descriptor, 0, num_bytes)
                return cls(descriptor, num_bytes)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            if error.errno in _FULL:
                raise _no_room(folder, num_bytes, table, error) from error
            raise StorageError(
                f"rows of table {table!r} cannot be kept in {folder} (table_folder): "
                f"{error.strerror or error}",
                path=str(folder),
                table=table,
            ) from error

    def fetch(self, first: int, count: int) -> None:
        """Have the disk read pages that will be used; does not wait for it.

        Args:
            first: Number of the first page.
            count: Number of pages.
        """
        os.posix_fadvise(self._descriptor, *self._bytes(first, count), os.POSIX_FADV_WILLNEED)

    def drop(self, first: int, count: int) -> None:
        """Have pages leave memory; does not wait. Those that were written leave it by a second call
        only, after the disk has them.

        Args:
            first: Number of the first page.
            count: Number of pages.
        """
        where = self._bytes(first, count)
        # The kernel keeps what is mapped. What was written stays in its cache, as of any file.
        self._mapped.madvise(mmap.MADV_DONTNEED, *where)
        os.posix_fadvise(self._descriptor, *where, os.POSIX_FADV_DONTNEED)

    def _bytes(self, first: int, count: int) -> tuple[int, int]:
        return first * self.page_bytes, count * self.page_bytes


def _check_private(folder: Path) -> None:
    """Raise if others may look into the folder, or it is not this user's."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"{folder} (table_folder) has mode {status.st_mode & 0o777:o} and belongs to user "
            f"{status.st_uid}; rows need a folder of mode 700 of this user, {os.geteuid()}: name "
            "one that is not there yet, and it is made",
            path=str(folder),
        )


def _no_room(folder: Path, num_bytes: int, table: str, error: OSError) -> LimitExceededError:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    return LimitExceededError(
        f"table {table!r} needs {num_bytes} bytes of {folder} (table_folder), where {free} are "
        f"free: {error.strerror}; free some, set ROPEWALK_TABLE_FOLDER to a larger disk, use more "
        "ps, or lower the table's max_rows",
        table=table,
        limit="table_folder",
        value=num_bytes,
    )


# -- Rows of a table that is larger than its memory: which pages of a mapped file are there ----
# Each page has a mark of when it was used last. When more were used than the budget allows, those
# that were used longest ago leave memory; the file has them. What is only copied, for a checkpoint
# or another replica, leaves first: it must not drive out what steps use.
#
# Which pages are in memory changes no value: one that was taken out too early, or is used at that
# very moment, is read again.


_ONLY_COPIED = 1  # the mark of pages that no step has used
_ROUNDS = 16  # this part of the budget is free after a round, so that not every step has one


class PagedMemory(Protocol):
    """Memory whose pages may be on disk, as a :class:`RowFile` is."""

    memory: Array
    page_bytes: int

    def fetch(self, first: int, count: int) -> None:
        """Have pages read that will be used."""

    def drop(self, first: int, count: int) -> None:
        """Have pages leave memory; those that were written leave it by a second call."""


def file_bytes(rows: int, row_bytes: list[int], page_bytes: int) -> int:
    """Compute the size of a file with so many rows in columns that begin at pages.

    Args:
        rows: Number of rows.
        row_bytes: Bytes of a row in each column.
        page_bytes: Size of a page.
    """
    return sum(_num_pages(rows * size, page_bytes) for size in row_bytes) * page_bytes


class RowPages:
    """The pages of a table's columns. :meth:`column` first; the rest is thread-safe.

    Args:
        table: The table's name, for messages.
        memory: Memory that is mapped, as large as ``file_bytes`` says.
        budget_bytes: Bytes of it that may be in memory.
    """

    def __init__(self, table: str, memory: PagedMemory, budget_bytes: int) -> None:
        self._table = table
        self._memory = memory
        self._size = memory.page_bytes
        self._most = max(1, budget_bytes // self._size)
        self._columns: list[tuple[int, int]] = []  # (first page, bytes of a row)
        self._taken = 0
        self._used = np.zeros(memory.memory.size // self._size, np.int64)  # 0: on disk alone
        self._clock = _ONLY_COPIED
        self._come = 0  # pages since the last round
        self._leaving = np.empty(0, np.int64)
        self._there = 0
        self._round = threading.Lock()

    def column(self, rows: int, width: int, dtype: DType) -> Array:
        """Take zeroed memory of the next column, shape ``(rows, width)``."""
        row_bytes = width * dtype.itemsize
        self._columns.append((self._taken, row_bytes))
        start = self._taken * self._size
        self._taken += _num_pages(rows * row_bytes, self._size)
        memory = self._memory.memory[start : start + rows * row_bytes]
        return memory.view(dtype).reshape(rows, width)

    @property
    def memory_bytes(self) -> int:
        """Bytes that are in memory, as of the last round and what came since."""
        return (self._there + self._come) * self._size

    def note(self, rows: Array) -> None:
        """Note that a step uses these rows now.

        Args:
            rows: int64, shape ``(n,)``.
        """
        self._clock += 1
        self._mark(self._pages_of(rows), self._clock)

    def fetch(self, rows: Array) -> None:
        """Have the disk read what is not in memory of these rows, which a step will use.

        Args:
            rows: int64, shape ``(n,)``.
        """
        self._clock += 1
        self._ask(self._mark(self._pages_of(rows), self._clock))

    def fetch_copied(self, rows: Array) -> None:
        """Fetch rows that will be copied, and that no step uses: as :meth:`fetch`, but they leave
        first.

        Args:
            rows: int64, shape ``(n,)``.
        """
        self._ask(self.note_copied(rows))

    def note_copied(self, rows: Array) -> Array:
        """Note that these rows are copied now, as :meth:`note`; returns the pages that were not in
        memory, ascending.

        Args:
            rows: int64, shape ``(n,)``.
        """
        pages = self._pages_of(rows)
        return self._mark(pages[self._used[pages] == 0], _ONLY_COPIED)

    def keep_budget(self) -> None:
        """Have pages leave memory if too many came since the last time. Not under a table's lock:
        it takes milliseconds.
        """
        if self._there + self._come <= self._most or not self._round.acquire(blocking=False):
            return
        try:
            self._run_round()
        except OSError as error:
            log.warning("rows of table %r cannot leave memory, and stay: %s", self._table, error)
            self._most = self._used.size
        finally:
            self._round.release()

    def _run_round(self) -> None:
        self._come = 0
        there = np.flatnonzero(self._used != 0)  # of a copy: steps mark pages meanwhile
        again = self._leaving[self._used[self._leaving] == 0]  # the disk has them by now
        self._leaving = self._oldest(there, there.size - (self._most - self._most // _ROUNDS))
        self._used[self._leaving] = 0
        self._there = there.size - self._leaving.size
        for first, count in stretches(np.union1d(again, self._leaving)):
            self._memory.drop(first, count)

    def _oldest(self, pages: Array, count: int) -> Array:
        if count <= 0:
            return pages[:0]
        return pages[np.argpartition(self._used[pages], count - 1)[:count]]

    def _mark(self, pages: Array, mark: int) -> Array:
        """Mark pages as used; those that were not in memory, ascending."""
        cold = np.unique(pages[self._used[pages] == 0])
        self._used[pages] = mark
        self._come += cold.size
        return cold

    def _ask(self, pages: Array) -> None:
        for first, count in stretches(pages):
            self._memory.fetch(first, count)

    def _pages_of(self, rows: Array) -> Array:
        numbers = [np.empty(0, np.int64)]
        for first, row_bytes in self._columns:
            begin = rows * row_bytes
            pages = begin // self._size
            numbers.append(first + pages)
            if self._size % row_bytes:  # a row may be in several
                more = (begin + row_bytes - 1) // self._size - pages
                most = int(more.max(initial=0))
                numbers += [first + i + pages[more >= i] for i in range(1, most + 1)]
        return np.concatenate(numbers)


def stretches(pages: Array) -> list[tuple[int, int]]:
    """Group ascending numbers to (first, how many follow one another)."""
    if not pages.size:
        return []
    starts = np.flatnonzero(np.diff(pages, prepend=pages[0] - 2) != 1)
    counts = np.diff(starts, append=pages.size)
    return list(zip(pages[starts].tolist(), counts.tolist(), strict=True))


def _num_pages(num_bytes: int, page_bytes: int) -> int:
    return -(-num_bytes // page_bytes)


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
    variable, budget, options = shard.variable, shard.memory_bytes, options_of(shard.variable)
    beside = options.index_bytes(shard.rows)
    if budget < beside + _LEAST_BYTES:
        raise ConfigurationError(
            f"table {variable.name!r}: memory_bytes={options.memory_bytes} leaves {budget} "
            f"for a part of {shard.rows} rows, whose keys, counts, steps and index, and what "
            f"admission remembers, take {beside}; values and slots need at least {_LEAST_BYTES} "
            "more. Raise memory_bytes, or lower max_rows",
            table=variable.name,
            value=budget,
            limit=beside + _LEAST_BYTES,
        )
    return budget - beside
