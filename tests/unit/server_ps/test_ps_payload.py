"""Reading a payload from wherever it is: in order, copied only where it must be, or not at all."""

import struct
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.waiting import scaled
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import RefusedError
from ropewalk.core.wire.steps import HEADER_BYTES
from ropewalk.net.connection import Connection
from ropewalk.net.shared_memory import APPLIED, WRITTEN, SharedSegment, unavailable
from ropewalk.server.ps.payload import BufferPayload, ConnectionPayload, Payload, SegmentPayload

DATA = bytes(range(1, 31))
shm = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


def cut(data: bytes, sizes: Sequence[int]) -> list[memoryview]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [memoryview(data)[start:stop] for start, stop in pairwise(ends)]


class Arrived:
    """As much of a stream as is needed to receive what has come."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def receive(self, _deadline: float) -> bytes:
        some, self._data = self._data[:20], self._data[20:]
        return some

    def receive_into(self, target: memoryview, _deadline: float) -> int:
        some, self._data = self._data[: len(target)], self._data[len(target) :]
        target[: len(some)] = some
        return len(some)


def connected(data: bytes, announced: int) -> Connection:
    stream: Any = Arrived(struct.pack("<IQ", 1, announced) + b"m" + data)
    connection = Connection(stream, 100)
    assert bytes(connection.receive() or b"") == b"m"
    return connection


def behind_a_message(data: bytes) -> Payload:
    memory = np.zeros(1_000_000, np.uint8)
    return ConnectionPayload(connected(data, len(data)), lambda _count: memory)


def in_a_segment(data: bytes) -> Payload:
    worker = Writer(len(data))
    worker.write(data)
    return SegmentPayload(worker.segment, len(data), lambda: True)


def in_buffers(data: bytes) -> Payload:
    return BufferPayload(cut(data, [7, 0, len(data) - 7]))


PAYLOADS = pytest.mark.parametrize(
    "make", [behind_a_message, pytest.param(in_a_segment, marks=shm), in_buffers],
    ids=["connection", "segment", "buffers"],
)  # fmt: skip
Make = Callable[[bytes], Payload]


class Writer:
    """A worker's segment."""

    def __init__(self, total: int) -> None:
        self.segment = SharedSegment.create(total)

    def write(self, data: bytes) -> None:
        self.segment.memory[HEADER_BYTES : HEADER_BYTES + len(data)] = np.frombuffer(data, np.uint8)
        self.segment.counters[WRITTEN] = len(data)


@PAYLOADS
@pytest.mark.parametrize(
    "sizes", [[30], [4, 0, 16, 10], [7, 23], [1] * 30, [0, 30, 0]],
    ids=["whole", "some", "cuts", "bytes", "none"],
)  # fmt: skip
def test_parts_come_in_order(make: Make, sizes: list[int]) -> None:
    payload = make(DATA)
    assert [bytes(payload.take(size)) for size in sizes] == [bytes(p) for p in cut(DATA, sizes)]


@PAYLOADS
def test_large_parts_come_whole(make: Make) -> None:
    data = np.random.default_rng(0).integers(0, 255, 200_000).astype(np.uint8).tobytes()
    payload = make(data)
    parts = [bytes(payload.take(size)) for size in (3, len(data) - 10, 7)]
    assert b"".join(parts) == data


@PAYLOADS
def test_more_than_there_is_is_refused(make: Make) -> None:
    payload = make(DATA)
    payload.take(25)
    with pytest.raises(RefusedError):
        payload.take(6)


@PAYLOADS
@pytest.mark.parametrize("taken", [0, 8, 30])
def test_what_is_left_of_a_refused_step_is_read(make: Make, taken: int) -> None:
    payload = make(DATA)
    payload.take(taken)
    payload.mark_applied()
    payload.drain()


def test_a_payload_that_ends_early_is_a_broken_connection() -> None:
    connection = connected(DATA[:10], 30)
    payload = ConnectionPayload(connection, lambda count: np.empty(count, np.uint8))
    payload.take(10)
    with pytest.raises(OSError, match="ended inside a frame"):
        payload.take(1)


def test_what_is_left_of_a_refused_step_does_not_stand_in_the_way_of_the_next_message() -> None:
    connection = connected(DATA + struct.pack("<IQ", 4, 0) + b"next", 30)
    payload = ConnectionPayload(connection, lambda count: np.empty(count, np.uint8))
    payload.take(4)
    payload.drain()
    assert bytes(connection.receive() or b"") == b"next"


@given(st.lists(st.binary(max_size=20), max_size=8), st.data())
def test_however_buffers_are_cut_the_bytes_come_in_order(
    buffers: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(buffers)
    payload, found = BufferPayload(map(memoryview, buffers)), b""
    while len(found) < len(whole):
        found += bytes(payload.take(data.draw(st.integers(0, len(whole) - len(found)))))
    assert found == whole
    with pytest.raises(RefusedError, match="fewer bytes than its layout"):
        payload.take(1)


def test_a_part_inside_one_buffer_is_not_copied() -> None:
    own: Array = np.arange(30, dtype=np.uint8)
    part = BufferPayload([own.data]).take(10)
    assert np.shares_memory(np.frombuffer(part, np.uint8), own)


# -- a segment that is still being written -----------------------------------------------------


@shm
def test_what_is_in_a_segment_is_neither_copied_nor_can_it_be_written() -> None:
    writer = Writer(30)
    writer.write(DATA)
    part = SegmentPayload(writer.segment, 30, lambda: True).take(10)
    assert part.readonly
    assert np.shares_memory(np.frombuffer(part, np.uint8), writer.segment.memory)


@shm
def test_a_part_is_taken_when_its_last_byte_is_there() -> None:
    writer, written = Writer(30), [9, 10, 11]

    def is_open() -> bool:
        writer.write(DATA[: written.pop(0)])
        return True

    payload = SegmentPayload(writer.segment, 30, is_open)
    assert bytes(payload.take(11)) == DATA[:11]
    assert written == []


@shm
@pytest.mark.parametrize(("written", "is_there"), [(20, False), (30, True)], ids=["some", "all"])
def test_a_worker_that_left_is_missed_only_if_it_had_not_written_all(
    written: int, is_there: bool
) -> None:
    writer = Writer(30)
    writer.write(DATA[:written])
    payload = SegmentPayload(writer.segment, 30, lambda: False)
    payload.take(20)
    if is_there:
        assert bytes(payload.take(10)) == DATA[20:]
    else:
        with pytest.raises(ConnectionError, match="left while it wrote"):
            payload.take(10)


@shm
def test_a_worker_in_another_thread_is_waited_for() -> None:
    writer = Writer(30)
    payload = SegmentPayload(writer.segment, 30, lambda: True)
    timer = threading.Timer(0.02, writer.write, [DATA])
    timer.start()
    assert bytes(payload.take(30)) == DATA
    timer.join(scaled(5))


@shm
def test_what_is_applied_is_said_to_the_worker() -> None:
    writer = Writer(30)
    writer.write(DATA)
    payload, said = SegmentPayload(writer.segment, 30, lambda: True), list[int]()
    for size in (4, 0, 26):
        payload.take(size)
        payload.mark_applied()
        said.append(writer.segment.counters[APPLIED])
    assert said == [4, 4, 30]


@shm
def test_a_payload_larger_than_its_segment_is_refused() -> None:
    segment = Writer(30).segment
    with pytest.raises(RefusedError, match="a payload of 1000000 bytes in a segment of"):
        SegmentPayload(segment, 1_000_000, lambda: True)
