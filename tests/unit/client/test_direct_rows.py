"""Rows read out of a ps's memory while it may be writing."""

import threading

import numpy as np
import pytest

from helpers.calls import Calls
from ropewalk.client.ps import direct_pull
from ropewalk.client.ps.direct_pull import DirectRows, MemoryReading
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.wire.steps import (
    Encoding,
    LayoutEntry,
    MemoryLocation,
    MemoryRegion,
    Operation,
    PullTarget,
    WireLayout,
)
from ropewalk.net.shared_memory import SharedSegment, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())
F32 = np.dtype(np.float32)
ROWS, WIDTH = 200, 4


class Table:
    """A table in a slab, as a ps keeps it, and a pull of some of its rows."""

    def __init__(self, rows: Array) -> None:
        self.slab = SharedSegment.create(64 * 1024)
        self.sequence = self.slab.memory[64:72].view(np.int64)
        self.values = self.slab.memory[128 : 128 + ROWS * WIDTH * 4].view(F32).reshape(ROWS, WIDTH)
        self.values[...] = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
        entry = LayoutEntry("table", 0, Operation.PULL, Encoding.ROWS)
        region = MemoryRegion(MemoryLocation(0, 128, 64), ROWS * WIDTH * 4, F32, WIDTH * 4)
        self.rows = DirectRows(
            WireLayout(1, (entry,)), [rows], {("table", 0): region}, {0: self.slab}
        )
        self.out = np.zeros((rows.size, WIDTH), F32)

    def begin(self) -> MemoryReading:
        return self.rows.begin(PullTarget([self.out.reshape(-1).view(np.uint8).data]))


def test_the_rows_asked_for_are_copied_and_counted() -> None:
    rows = np.array([3, 0, 199], np.int64)
    table = Table(rows)
    reading = table.begin()
    assert reading.go_on()
    np.testing.assert_array_equal(table.out, table.values[rows])
    assert reading.finish() == table.rows.num_bytes == 3 * WIDTH * 4


def test_a_block_that_is_being_written_all_the_time_is_not_waited_for_long() -> None:
    table = Table(np.arange(2))
    table.sequence[0] = 1
    assert not table.begin().go_on()


def test_rows_that_changed_while_they_were_copied_are_copied_again(
    calls: Calls,
) -> None:
    table = Table(np.array([0, 199], np.int64))

    def write(*_: object) -> None:
        if not table.sequence[0]:  # a ps writes both rows, of which one was copied before
            table.sequence[0] = 2
            table.values[[0, 199]] = 7

    calls.after(direct_pull, "gather_rows", write)
    assert table.begin().go_on()
    assert (table.out == 7).all()


def test_rows_are_never_of_two_moments() -> None:
    rows = np.arange(ROWS, dtype=np.int64)
    table, stop = Table(rows), threading.Event()
    table.values[...] = 0

    def write() -> None:
        mark = 0
        while not stop.is_set():
            mark += 1
            table.sequence[0] += 1
            table.values[: ROWS // 2] = mark
            table.values[ROWS // 2 :] = mark
            table.sequence[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        read = 0
        for _ in range(300):
            if table.begin().go_on():
                read += 1
                assert (table.out == table.out[0, 0]).all()
        assert read
    finally:
        stop.set()
        writer.join()
