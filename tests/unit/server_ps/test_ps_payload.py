"""Reading a payload, wherever it is: every byte in order, copied only where it must be, never too
many.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.arrays import Array
from windlass.core.errors import RefusedError
from windlass.net.shared_memory import HEADER_BYTES
from windlass.server.ps.payload import FramesReader, SegmentReader, SocketReader


class StreamEndedError(Exception):
    """What a transport raises when the other side is gone."""


def reader(frames: list[bytes], total: int | None = None) -> FramesReader:
    """A reader whose first frame came with the header."""
    rest: Iterator[bytes] = iter(frames[1:])

    def more() -> bytes:
        for frame in rest:
            return frame
        raise StreamEndedError

    return FramesReader(frames[0], sum(map(len, frames)) if total is None else total, more)


def shares_memory(piece: memoryview, frame: bytes) -> bool:
    return np.shares_memory(np.frombuffer(piece, np.uint8), np.frombuffer(frame, np.uint8))


def test_pieces_inside_a_frame_are_not_copied() -> None:
    frames = [bytes(range(10)), bytes(range(10, 30))]
    payload = reader(frames)
    for count, frame in ((4, frames[0]), (6, frames[0])):
        assert shares_memory(payload.take(count), frame)
    assert bytes(payload.take(3)) == bytes(range(10, 13))  # begins a frame: how it came is its own
    assert shares_memory(payload.take(17), frames[1])


def test_a_piece_across_frames_is_put_together() -> None:
    payload = reader([b"ab", b"cde", b"f", b"gh"])
    assert bytes(payload.take(1)) == b"a"
    assert bytes(payload.take(6)) == b"bcdefg"
    assert bytes(payload.take(1)) == b"h"


def test_pieces_across_frames_share_one_staging_buffer() -> None:
    """A step of many large shards needs the memory of the largest alone."""
    payload = reader([b"a" * 6, b"b" * 6, b"c" * 6])
    first = payload.take(8)
    assert bytes(first) == b"a" * 6 + b"b" * 2
    second = payload.take(6)
    assert bytes(second) == b"b" * 4 + b"c" * 2
    assert np.shares_memory(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8))


@pytest.mark.parametrize("first", [b"", b"abc"], ids=["empty-first-frame", "some"])
def test_nothing_may_be_taken_at_any_time(first: bytes) -> None:
    payload = reader([first, b"xy"])
    assert bytes(payload.take(0)) == b""
    assert bytes(payload.take(len(first) + 2)) == first + b"xy"
    assert bytes(payload.take(0)) == b""


frames_of_bytes = st.lists(st.binary(min_size=1, max_size=20), max_size=8)


@given(first=st.binary(max_size=20), later=frames_of_bytes, sizes=st.lists(st.integers(0, 50)))
def test_whatever_the_frames_and_pieces_the_bytes_come_in_order(
    first: bytes, later: list[bytes], sizes: list[int]
) -> None:
    payload, left = reader([first, *later]), len(first) + sum(map(len, later))
    pieces = []
    for size in [*sizes, left]:
        pieces.append(bytes(payload.take(min(size, left))))
        left -= len(pieces[-1])
    assert b"".join(pieces) == b"".join([first, *later])
    payload.drain()


def test_a_first_frame_longer_than_the_payload_is_refused() -> None:
    with pytest.raises(RefusedError, match="a frame of 5 bytes in a payload of 4"):
        reader([b"abcde"], total=4)


@pytest.mark.parametrize("how", ["take", "drain"])
def test_a_later_frame_longer_than_the_payload_is_refused(how: str) -> None:
    payload = reader([b"ab", b"cdef"], total=5)
    with pytest.raises(RefusedError, match="a frame of 4 bytes where 3 bytes"):
        payload.take(4) if how == "take" else payload.drain()


@pytest.mark.parametrize("how", ["take", "drain"])
def test_an_empty_frame_is_refused_and_not_waited_on_forever(how: str) -> None:
    payload = reader([b"ab", b"", b"cd"])
    with pytest.raises(RefusedError, match="a frame of 0 bytes where 2 bytes"):
        payload.take(4) if how == "take" else payload.drain()


def test_more_than_was_announced_is_not_waited_for() -> None:
    rest = iter([b"cd", b"the next step"])
    payload = FramesReader(b"ab", 4, lambda: next(rest))
    payload.take(2)
    with pytest.raises(RefusedError, match="where 0 bytes of the payload were left"):
        payload.take(3)
    assert next(rest) == b"the next step"


@pytest.mark.parametrize("how", ["take", "drain"])
def test_the_end_of_the_stream_is_told_as_the_transport_tells_it(how: str) -> None:
    payload = reader([b"ab", b"cd"], total=9)
    with pytest.raises(StreamEndedError):
        payload.take(9) if how == "take" else payload.drain()


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 6, 7])
def test_drain_reads_to_the_end_of_this_payload_and_no_further(taken: int) -> None:
    rest = iter([b"cd", b"efg", b"the next step"])
    payload = FramesReader(b"ab", 7, lambda: next(rest))
    payload.take(taken)
    payload.drain()
    payload.drain()  # again is harmless
    assert next(rest) == b"the next step"


# -- on a socket -------------------------------------------------------------------------------


class Behind:
    """The payload behind a message, as a FrameSocket has it."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self.lent = payload, list[Array]()
        self.memory = np.zeros(1000, np.uint8)

    @property
    def unread_bytes(self) -> int:
        return len(self._payload)

    def read(self, count: int, memory: Callable[[int], Array]) -> memoryview:
        view = memory(count)[:count].data
        view[:], self._payload = self._payload[:count], self._payload[count:]
        return view

    def skip(self) -> None:
        self._payload = b""

    def lend(self, count: int) -> Array:
        self.lent.append(self.memory)
        return self.memory

    def reader(self, total: int) -> SocketReader:
        frames: Any = self
        return SocketReader(frames, total, self.lend)


def test_on_a_socket_pieces_come_in_order_into_memory_that_is_lent() -> None:
    behind = Behind(bytes(range(30)))
    payload = behind.reader(30)
    first = payload.take(10)
    assert bytes(first) == bytes(range(10))
    assert np.shares_memory(np.frombuffer(first, np.uint8), behind.memory)
    assert bytes(payload.take(20)) == bytes(range(10, 30))
    assert not payload.torn


@pytest.mark.parametrize("total", [0, 29, 31])
def test_on_a_socket_another_size_than_the_step_says_is_refused(total: int) -> None:
    behind = Behind(bytes(30))
    with pytest.raises(RefusedError, match=f"30 bytes follow a step of {total}"):
        behind.reader(total)
    assert behind.unread_bytes == 30


def test_on_a_socket_a_refused_step_is_read_to_its_end() -> None:
    behind = Behind(bytes(30))
    payload = behind.reader(30)
    payload.take(4)
    payload.drain()
    assert behind.unread_bytes == 0


# -- in shared memory --------------------------------------------------------------------------


class Shared:
    """As much of a SharedSegment as its reader looks at."""

    def __init__(self, payload: bytes) -> None:
        self.memory = np.frombuffer(bytes(HEADER_BYTES) + payload, np.uint8).copy()
        self.num_bytes = self.memory.size
        self.counters = np.array([len(payload), 0], np.int64).data


def test_in_shared_memory_nothing_is_copied_and_nothing_can_be_written() -> None:
    segment: Any = Shared(bytes(range(30)))
    payload = SegmentReader(segment, 30, lambda: True)
    first = payload.take(10)
    assert bytes(first) == bytes(range(10))
    assert first.readonly
    assert np.shares_memory(np.frombuffer(first, np.uint8), segment.memory)
    assert bytes(payload.take(20)) == bytes(range(10, 30))
    payload.drain()
    assert not payload.torn


def test_in_shared_memory_more_than_the_segment_has_is_refused() -> None:
    segment: Any = Shared(bytes(30))
    with pytest.raises(RefusedError, match="a payload of 31 bytes in a segment of"):
        SegmentReader(segment, 31, lambda: True)
