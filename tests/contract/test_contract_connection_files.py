"""Open files that come with a frame over a Unix socket: taken once, bounded, never left open."""

import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from helpers.connections import LIMIT, MIB, MakePair, Pair, again_and_again, received
from helpers.streams import (
    open_descriptors,
    result,
    start,
)
from ropewalk.core.errors import RefusedError
from ropewalk.net.connection import Connection

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def unix_pair(make_unix: MakePair) -> Iterator[Pair]:
    left, right = make_unix()
    with closing(Connection(left, LIMIT)) as mine, closing(Connection(right, LIMIT)) as theirs:
        yield mine, theirs


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_an_open_file_comes_with_its_frame(unix_pair: Pair, pipe: tuple[int, int]) -> None:
    left, right = unix_pair
    left.send_in_background([b"before"], [memoryview(bytes(4 * MIB))], 4 * MIB)
    sending = start(lambda: left.send_with_descriptor(b"file", pipe[1]))
    assert received(right) == (b"before", bytes(4 * MIB))
    assert received(right) == (b"file", b"")
    result(sending)
    taken = right.stream.take_descriptor()
    os.write(taken, b"hello")
    assert os.read(pipe[0], 5) == b"hello"
    assert not os.get_inheritable(taken)
    os.close(taken)
    with pytest.raises(RefusedError, match="no file"):
        right.stream.take_descriptor()


def test_a_file_nobody_takes_is_closed(unix_pair: Pair, pipe: tuple[int, int]) -> None:
    before = open_descriptors()
    for _ in range(5):
        unix_pair[0].send_with_descriptor(b"file", pipe[0])
        received(unix_pair[1])
    assert open_descriptors() == before + 5
    unix_pair[1].close()
    assert open_descriptors() == before - 1


def test_too_many_files_are_refused_and_closed(unix_pair: Pair, pipe: tuple[int, int]) -> None:
    before = open_descriptors()
    for _ in range(17):
        unix_pair[0].send_with_descriptor(b"file", pipe[0])
    with pytest.raises(ConnectionError, match="more than 16 open files"):
        again_and_again(lambda: received(unix_pair[1]))
    unix_pair[1].close()
    assert open_descriptors() == before - 1


def test_a_file_that_nobody_takes_in_is_given_up_at_the_deadline(
    unix_pair: Pair, pipe: tuple[int, int]
) -> None:
    unix_pair[0].deadline = time.monotonic() + 0.1
    with pytest.raises(TimeoutError):
        again_and_again(lambda: unix_pair[0].send_with_descriptor(bytes(MIB), pipe[0]))


def test_only_unix_sockets_pass_files(pair: Pair, pipe: tuple[int, int]) -> None:
    if pair[0].stream.passes_files:
        pytest.skip("this one does")
    with pytest.raises(RefusedError, match="Unix socket"):
        pair[0].send_with_descriptor(b"file", pipe[0])
    with pytest.raises(RefusedError, match="no file"):
        pair[0].stream.take_descriptor()
