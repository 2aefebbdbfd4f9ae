"""Segments: handed over as open files, sealed, and gone with whoever uses them."""

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from helpers.mapped_memory import wants_huge_pages
from helpers.streams import open_descriptors
from ropewalk.core.errors import RefusedError
from ropewalk.core.wire.steps import HEADER_BYTES
from ropewalk.net.shared_memory import SharedSegment, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


def received(segment: SharedSegment, *, writable: bool = True) -> SharedSegment:
    """The other process's, as far as memory is concerned."""
    return SharedSegment.receive(os.dup(segment.descriptor), segment.num_bytes, writable=writable)


def test_what_one_side_writes_the_other_reads() -> None:
    mine = SharedSegment.create(1000)
    theirs = received(mine)
    assert mine.num_bytes % mmap.PAGESIZE == 0
    assert mine.num_bytes >= HEADER_BYTES + 1000
    assert not theirs.memory.any()
    mine.memory[HEADER_BYTES] = 7
    theirs.memory[HEADER_BYTES + 1] = 9
    mine.counters[1] = 2**40
    assert theirs.memory[HEADER_BYTES] == 7
    assert mine.memory[HEADER_BYTES + 1] == 9
    assert theirs.counters[1] == 2**40


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs huge pages"
)
def test_large_segments_ask_for_huge_pages_and_small_ones_do_not() -> None:
    small, large = SharedSegment.create(1 << 20), SharedSegment.create(64 << 20)
    assert wants_huge_pages(large.memory)
    assert wants_huge_pages(received(large, writable=False).memory)
    assert not wants_huge_pages(small.memory)


def test_memory_lives_as_long_as_an_array_of_it() -> None:
    gc.collect()
    before = open_descriptors()
    mine = SharedSegment.create(100)
    theirs, memory = received(mine), mine.memory
    for segment in (mine, theirs, mine):
        segment.close()
    assert mine.descriptor == -1
    theirs.memory[HEADER_BYTES] = 5
    del mine, theirs, segment
    gc.collect()
    assert memory[HEADER_BYTES] == 5
    del memory
    gc.collect()
    assert open_descriptors() <= before


def test_files_go_with_segments_nobody_closed() -> None:
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        mine = SharedSegment.create(10)
        assert np.array_equal(mine.memory, received(mine).memory)
    del mine
    gc.collect()
    assert open_descriptors() <= before


def test_nobody_can_take_the_memory_away() -> None:
    mine = SharedSegment.create(100)
    theirs = received(mine)
    for descriptor in (mine.descriptor, theirs.descriptor):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 10)


def test_what_is_read_only_for_others_cannot_be_written_by_them() -> None:
    mine = SharedSegment.create(100, others_read_only=True)
    theirs = received(mine, writable=False)
    mine.memory[HEADER_BYTES] = 3
    assert theirs.memory[HEADER_BYTES] == 3
    with pytest.raises(ValueError, match="read-only"):
        theirs.memory[HEADER_BYTES] = 4
    with pytest.raises(RefusedError, match="cannot be mapped: Operation not permitted"):
        received(mine)


def test_what_is_handed_over_is_what_was_said_and_else_refused_and_closed(tmp_path: Path) -> None:
    mine = SharedSegment.create(100)
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, mine.num_bytes)
    (tmp_path / "file").write_bytes(bytes(mine.num_bytes))
    file = os.open(tmp_path / "file", os.O_RDWR)
    pipe = os.pipe()
    gc.collect()
    before = open_descriptors()
    for descriptor, num_bytes, says in (
        (mine.descriptor, mine.num_bytes * 2, rf"has {mine.num_bytes} bytes, its sender says"),
        (mine.descriptor, 0, "its sender says 0"),
        (mine.descriptor, 2**64 - 1, "its sender says"),
        (plain, mine.num_bytes, "not sealed"),
        (file, mine.num_bytes, "cannot be mapped"),
        (pipe[0], mine.num_bytes, "has 0 bytes"),
    ):
        with pytest.raises(RefusedError, match=says):
            SharedSegment.receive(os.dup(descriptor), num_bytes)
    assert open_descriptors() <= before
    for each in (plain, file, *pipe):
        os.close(each)
