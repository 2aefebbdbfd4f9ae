"""Rows of a table that is larger than its memory: which pages of a mapped file are there.

Each page has a mark of when it was used last. When more were used than the budget allows, those
that were used longest ago leave memory; the file has them. What is only copied, for a checkpoint or
another replica, leaves first: it must not drive out what steps use.

Which pages are in memory changes no value: one that was taken out too early, or is used at that
very moment, is read again.
"""

import logging
import threading
from typing import Protocol

import numpy as np

from ...core.arrays.dtypes import Array, DType

log = logging.getLogger(__name__)

_ONLY_COPIED = 1  # the mark of pages that no step has used
_ROUNDS = 16  # this part of the budget is free after a round, so that not every step has one


class PagedMemory(Protocol):
    """Memory whose pages may be on disk; see :mod:`~ropewalk.engine.keyed.row_file`."""

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
