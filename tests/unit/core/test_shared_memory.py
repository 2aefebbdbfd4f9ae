"""Segments: shared without a name, sealed, and never mistaken for another."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from windlass.core.errors import RefusedError
from windlass.net.shared_memory import HEADER_BYTES, SharedSegment, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


def test_what_one_side_writes_the_other_reads() -> None:
    mine = SharedSegment.create(1000)
    theirs = SharedSegment.open(mine.address)
    mine.memory[HEADER_BYTES : HEADER_BYTES + 3] = [1, 2, 3]
    assert theirs.memory[HEADER_BYTES : HEADER_BYTES + 4].tolist() == [1, 2, 3, 0]
    theirs.memory[HEADER_BYTES] = 9
    assert mine.memory[HEADER_BYTES] == 9


def test_another_process_of_this_user_can_open_it() -> None:
    mine = SharedSegment.create(100)
    address = mine.address
    code = (
        "from windlass.net.shared_memory import *\n"
        f"address = SegmentAddress({address.pid}, {address.fd}, {address.num_bytes}, "
        f"{address.word!r})\ns = SharedSegment.open(address)\n"
        "s.memory[HEADER_BYTES] = 7"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=environment)
    assert mine.memory[HEADER_BYTES] == 7


def test_memory_lives_as_long_as_an_array_of_it() -> None:
    segment = SharedSegment.create(100)
    memory = segment.memory
    address = segment.address
    segment.close()
    memory[HEADER_BYTES] = 5
    assert memory[HEADER_BYTES] == 5
    with pytest.raises(RefusedError, match="not on one machine"):
        SharedSegment.open(address)


def test_nobody_can_take_the_memory_away() -> None:
    segment = SharedSegment.create(100)
    theirs = SharedSegment.open(segment.address)
    with pytest.raises(PermissionError):
        os.ftruncate(theirs.address.fd, 10)


def test_what_was_opened_is_what_was_meant(tmp_path_factory: pytest.TempPathFactory) -> None:
    segment, other = SharedSegment.create(100), SharedSegment.create(100)
    wrong_word = replace(other.address, word=segment.address.word)
    with pytest.raises(RefusedError, match="another segment"):
        SharedSegment.open(wrong_word)
    with pytest.raises(RefusedError, match="another file"):
        SharedSegment.open(replace(segment.address, num_bytes=segment.num_bytes * 2))
    with pytest.raises(RefusedError, match="not on one machine"):
        SharedSegment.open(replace(segment.address, pid=2**22 - 1))
    path = tmp_path_factory.mktemp("plain") / "file"
    path.write_bytes(bytes(segment.num_bytes))
    with path.open("r+b") as file, pytest.raises(RefusedError, match="not a segment"):
        SharedSegment.open(replace(segment.address, fd=file.fileno()))


def test_descriptors_go_with_their_segments() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(20):
        mine = SharedSegment.create(10)
        theirs = SharedSegment.open(mine.address)
        assert np.array_equal(mine.memory, theirs.memory)
        del mine, theirs
    assert descriptors() == before
