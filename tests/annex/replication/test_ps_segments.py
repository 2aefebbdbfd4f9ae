"""Segments of workers that a leader hands on: numbers from the network, and what is gone."""

import gc
import os

import pytest

from ropewalk.annexes.replication.server.follower import SegmentsReceived, SegmentsSent
from ropewalk.core.errors import RefusedError
from ropewalk.core.wire.steps import HEADER_BYTES
from ropewalk.net.shared_memory import SharedSegment, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

MOST = 1 << 20


def handed_on(received: SegmentsReceived, number: int) -> SharedSegment:
    """A segment of ours that a follower has mapped."""
    segment = SharedSegment.create(1000)
    received.take(number, os.dup(segment.descriptor), segment.num_bytes)
    return segment


def test_a_part_is_what_the_worker_has_written() -> None:
    received = SegmentsReceived(MOST)
    segment = handed_on(received, 7)
    segment.memory[HEADER_BYTES : HEADER_BYTES + 4] = (1, 2, 3, 4)
    assert received.part(7, HEADER_BYTES, 4).tolist() == [1, 2, 3, 4]


def test_what_is_outside_of_a_segment_is_refused() -> None:
    received = SegmentsReceived(MOST)
    size = handed_on(received, 7).num_bytes
    assert received.part(7, size, 0).size == 0
    for offset, count in [(size, 1), (0, size + 1), (2**63, 8), (8, 2**64)]:
        with pytest.raises(RefusedError, match=f"of a segment of {size}"):
            received.part(7, offset, count)
    with pytest.raises(RefusedError, match="segment 8 was not handed on"):
        received.part(8, 0, 1)
    received.drop([7, 9])
    with pytest.raises(RefusedError, match="segment 7 was not handed on"):
        received.part(7, 0, 1)


def test_segments_have_bounds() -> None:
    received = SegmentsReceived(MOST, most=2)
    kept = [handed_on(received, number) for number in (1, 2)]
    with pytest.raises(RefusedError, match="more than 2 segments"):
        handed_on(received, 3)
    with pytest.raises(RefusedError, match="at most 100 are allowed"):
        handed_on(SegmentsReceived(100), 1)
    assert len(kept) == 2


def test_a_segment_that_no_session_has_any_more_is_told_once() -> None:
    sent = SegmentsSent()
    segment = SharedSegment.create(1000)
    assert sent.number_of(segment) == 0
    assert sent.add(segment) == sent.number_of(segment) == 1
    assert sent.take_gone() == []
    del segment
    gc.collect()
    assert sent.take_gone() == [1]
    assert sent.take_gone() == []
