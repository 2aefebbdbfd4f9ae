"""A payload in shared memory that is still being written: taken when it is there, or not at all."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from windlass.core.errors import RefusedError
from windlass.net.shared_memory import APPLIED, HEADER_BYTES, WRITTEN, SharedSegment, unavailable
from windlass.server.ps.payload import SegmentReader

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


class Worker:
    """Writes a payload of so many bytes, 1, 2, 3 …, into its segment; the ps opened it as its own.

    Args:
        total: Of the payload.
    """

    def __init__(self, total: int) -> None:
        self.segment = SharedSegment.create(total)
        self.theirs = SharedSegment.open(self.segment.address)
        self.total = total
        self.here = True
        self.asked = 0
        self.when_asked: Callable[[], None] = lambda: None

    def write(self, written: int) -> None:
        content = np.arange(1, written + 1, dtype=np.uint64).astype(np.uint8)
        self.segment.memory[HEADER_BYTES : HEADER_BYTES + written] = content
        self.segment.counters[WRITTEN] = written

    def is_open(self) -> bool:
        self.asked += 1
        self.when_asked()
        return self.here

    def reader(self) -> SegmentReader:
        return SegmentReader(self.theirs, self.total, self.is_open)


def test_what_is_written_is_taken_in_order_and_not_copied() -> None:
    worker = Worker(30)
    worker.write(30)
    reader = worker.reader()
    pieces = [reader.take(count) for count in (4, 0, 16, 10)]
    assert b"".join(map(bytes, pieces)) == bytes(range(1, 31))
    assert worker.asked == 0
    memory = np.frombuffer(pieces[2], np.uint8)
    assert np.shares_memory(memory, worker.theirs.memory)
    assert pieces[2].readonly


def test_a_piece_is_taken_when_its_last_byte_is_there() -> None:
    worker = Worker(30)
    worker.write(9)
    reader = worker.reader()
    assert bytes(reader.take(4)) == bytes([1, 2, 3, 4])
    moves = iter([13, 14, 15, 30])
    worker.when_asked = lambda: worker.write(next(moves))
    piece = reader.take(11)
    assert worker.segment.counters[WRITTEN] == 15
    assert bytes(piece) == bytes(range(5, 16))
    assert worker.asked == 3


def test_a_worker_in_another_thread_is_waited_for() -> None:
    worker = Worker(1000)
    reader = worker.reader()
    begun = threading.Event()
    worker.when_asked = begun.set

    def write() -> None:
        begun.wait(5)
        for written in range(0, 1001, 100):
            worker.write(written)

    thread = threading.Thread(target=write)
    thread.start()
    assert len(reader.take(1000)) == 1000
    thread.join(5)
    assert not thread.is_alive()


def test_a_worker_that_leaves_while_it_writes_is_a_broken_connection() -> None:
    worker = Worker(30)
    worker.write(12)
    reader = worker.reader()
    assert len(reader.take(12)) == 12
    reader.applied()
    worker.here = False
    with pytest.raises(ConnectionError, match="left while it wrote"):
        reader.take(1)
    assert worker.asked == 1
    assert worker.segment.counters[APPLIED] == 12


def test_a_worker_that_left_after_it_wrote_all_is_not_missed() -> None:
    """The step may be applied: whoever repeats it is told so."""
    worker = Worker(30)
    worker.write(30)
    worker.here = False
    assert len(worker.reader().take(30)) == 30

    late = Worker(30)
    late.here = False
    late.when_asked = lambda: late.write(30)
    assert len(late.reader().take(30)) == 30


def test_nothing_is_waited_for_where_nothing_is_taken() -> None:
    worker = Worker(30)
    worker.here = False
    assert len(worker.reader().take(0)) == 0
    assert worker.asked == 0


def test_what_is_applied_is_said_to_the_worker() -> None:
    worker = Worker(30)
    worker.write(30)
    reader = worker.reader()
    said = []
    for count in (10, 15, 5):
        reader.take(count)
        said.append(worker.segment.counters[APPLIED])  # taken is not applied
        reader.applied()
        said.append(worker.segment.counters[APPLIED])
    assert said == [0, 10, 10, 25, 25, 30]
    assert worker.segment.counters[WRITTEN] == 30


def test_a_refused_step_is_not_waited_for() -> None:
    worker = Worker(30)
    reader = worker.reader()
    reader.drain()
    assert worker.asked == 0
    assert worker.segment.counters[APPLIED] == 0
    assert not reader.torn


def test_a_payload_larger_than_its_segment_is_refused() -> None:
    segment = SharedSegment.create(100)
    room = segment.num_bytes - HEADER_BYTES
    SegmentReader(segment, room, lambda: True)
    with pytest.raises(RefusedError, match=f"{room + 1} bytes in a segment of"):
        SegmentReader(segment, room + 1, lambda: True)


def test_no_more_than_the_payload_is_taken() -> None:
    """What the segment has after it is of another step."""
    worker = Worker(30)
    worker.write(30)
    reader = worker.reader()
    reader.take(20)
    with pytest.raises(RefusedError, match="20 bytes of a payload that has 10 left"):
        reader.take(20)
    assert len(reader.take(10)) == 10
