"""Which pages of a table leave memory, and which are asked for before they are needed."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers.calls import Calls
from ropewalk.annexes.embedding.keyed.disk_block import RowPages, file_bytes, stretches
from ropewalk.core.arrays.dtypes import Array

F32 = np.dtype(np.float32)
PAGE = 64  # of four rows of four elements


class Memory:
    """Memory that remembers what was asked of its pages."""

    page_bytes = PAGE

    def __init__(self, num_pages: int) -> None:
        self.memory = np.zeros(num_pages * PAGE, np.uint8)
        self.fetched: list[tuple[int, int]] = []
        self.dropped: list[tuple[int, int]] = []

    def fetch(self, first: int, count: int) -> None:
        self.fetched.append((first, count))

    def drop(self, first: int, count: int) -> None:
        self.dropped.append((first, count))


def pages_of(budget: int, rows: int = 400, width: int = 4) -> tuple[RowPages, Memory]:
    memory = Memory(file_bytes(rows, [4 * width], PAGE) // PAGE)
    pages = RowPages("t", memory, budget * PAGE)
    pages.column(rows, width, F32)
    return pages, memory


def rows(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def test_the_pages_that_were_used_longest_ago_leave_until_the_rest_fits() -> None:
    pages, memory = pages_of(budget=32)
    for page in range(40):
        pages.note(rows(4 * page))
    pages.note(rows(0, 4))  # again
    pages.keep_budget()
    assert memory.dropped == [(2, 10)]
    assert pages.memory_bytes == 30 * PAGE
    assert memory.fetched == []


def test_nothing_leaves_within_the_budget() -> None:
    pages, memory = pages_of(budget=32)
    pages.note(np.arange(4 * 32))
    pages.keep_budget()
    assert memory.dropped == []
    assert pages.memory_bytes == 32 * PAGE


def test_what_was_written_is_told_to_leave_twice_and_not_if_it_is_used_again() -> None:
    pages, memory = pages_of(budget=16)
    pages.note(np.arange(4 * 17))
    pages.keep_budget()
    assert sum(count for _, count in memory.dropped) == 2
    gone = [first + i for first, count in memory.dropped for i in range(count)]
    memory.dropped.clear()
    pages.note(rows(4 * gone[0]))
    pages.note(np.arange(200, 208))
    pages.keep_budget()
    again = {first + i for first, count in memory.dropped for i in range(count)}
    assert gone[1] in again
    assert gone[0] not in again


def test_what_is_only_copied_leaves_before_what_steps_use() -> None:
    pages, memory = pages_of(budget=16)
    pages.note(np.arange(4 * 10))
    for start in range(40, 400, 40):
        pages.keep_budget()
        pages.fetch_copied(np.arange(start, start + 40))
    assert min(first for first, _ in memory.dropped) >= 10
    memory.fetched.clear()
    pages.fetch(np.arange(4 * 10))
    assert memory.fetched == [], "they are still there"


def test_steps_of_other_workers_may_use_pages_while_others_leave() -> None:
    pages, memory = pages_of(budget=8, rows=1 << 20)
    some = np.random.default_rng(0).integers(0, 1 << 20, 1 << 14)
    ended = threading.Event()

    def use() -> None:
        while not ended.is_set():
            pages.note(some)

    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use)
        try:
            for _ in range(100):
                pages.fetch(some[:16])
                pages.keep_budget()
        finally:
            ended.set()
        using.result()
    pages.keep_budget()  # if the other thread has had no turn to say what it has marked
    assert memory.dropped


def test_only_pages_that_are_not_there_are_asked_for_each_once() -> None:
    pages, memory = pages_of(budget=100)
    pages.note(rows(20))
    pages.fetch(rows(41, 0, 3, 4, 40, 20, 23))
    assert memory.fetched == [(0, 2), (10, 1)]
    pages.fetch(rows(41, 0))
    assert len(memory.fetched) == 2


@pytest.mark.parametrize("width", [3, 5, 7, 16, 17, 100])
def test_a_row_is_in_all_of_its_pages(width: int) -> None:
    row_bytes = 4 * width
    for row in range(40):
        pages, memory = pages_of(1000, rows=40, width=width)
        pages.fetch(rows(row))
        begin, end = row * row_bytes, (row + 1) * row_bytes
        expected = (begin // PAGE, (end - 1) // PAGE - begin // PAGE + 1)
        assert memory.fetched == [expected]


def test_columns_begin_at_pages_and_all_of_them_are_asked_for() -> None:
    memory = Memory(file_bytes(10, [16, 4, 12], PAGE) // PAGE)
    pages = RowPages("t", memory, 1 << 20)
    columns = [pages.column(10, width, F32) for width in (4, 1, 3)]
    assert [column.shape for column in columns] == [(10, 4), (10, 1), (10, 3)]
    columns[0][:], columns[2][:] = 1, 2
    assert not columns[1].any()
    pages.fetch(rows(9))
    assert memory.fetched == [(2, 2), (5, 1)]  # pages 0 to 2, 3, 4 and 5


def test_pages_that_cannot_leave_stay_and_that_is_said(
    caplog: pytest.LogCaptureFixture, calls: Calls
) -> None:
    pages, memory = pages_of(budget=8)
    calls.fail(memory, "drop", OSError(22, "pages are locked"))
    with caplog.at_level(logging.WARNING):
        for start in range(0, 400, 80):
            pages.note(np.arange(start, start + 80))
            pages.keep_budget()
    assert caplog.text.count("rows of table 't' cannot leave memory, and stay") == 1


def test_stretches_are_the_numbers_they_stand_for() -> None:
    assert stretches(rows()) == []
    assert stretches(rows(0)) == [(0, 1)]
    assert stretches(rows(3, 4, 5, 7, 9, 10)) == [(3, 3), (7, 1), (9, 2)]
