"""Frames over a connected socket: whole, in order, and an end that is told from a break."""

import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import RefusedError
from windlass.core.frame_socket import FrameSocket, peer_user

pytestmark = pytest.mark.timeout(30)

LIMIT = 8 * 1024**2
KIB64 = 64 * 1024


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, socket.socket]]:
    """Our end, and the peer's bare socket."""
    mine, theirs = socket.socketpair()
    with closing(FrameSocket(mine, LIMIT)) as frames, closing(theirs):
        yield frames, theirs


def glued(frames: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


class Sending:
    """Writes to a socket from another thread, in pieces, and closes it if it is told to."""

    def __init__(
        self, peer: socket.socket, pieces: Sequence[bytes], *, close: bool = False
    ) -> None:
        def run() -> None:
            for piece in pieces:
                peer.sendall(piece)
            if close:
                peer.shutdown(socket.SHUT_WR)

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    "size",
    [0, 1, 3, KIB64 - 5, KIB64 - 4, KIB64 - 1, KIB64, KIB64 + 1, 3 * 1024**2, LIMIT],
)
def test_a_frame_arrives_as_it_left(size: int) -> None:
    frame = noise(size)
    left, right = socket.socketpair()
    with (
        closing(FrameSocket(left, LIMIT)) as sender,
        closing(FrameSocket(right, LIMIT)) as receiver,
    ):
        thread = threading.Thread(target=sender.send, args=(frame,))
        thread.start()
        assert receiver.receive() == frame
        thread.join(10)
        sender.send(bytearray(b"next"))
        assert receiver.receive() == b"next"


def test_many_small_frames_glued_together_come_apart(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    frames = [noise(i % 97) for i in range(5000)]
    with Sending(theirs, [glued(frames)], close=True):
        for frame in frames:
            assert mine.receive() == frame
        assert mine.receive() is None


def test_a_large_frame_between_small_ones_does_not_eat_its_neighbours(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    frames = [b"a", noise(KIB64 + 1), b"", noise(3 * 1024**2), b"b", noise(KIB64 - 1), b"c"]
    with Sending(theirs, [glued(frames)]):
        assert [mine.receive() for _ in frames] == frames


@settings(deadline=None, max_examples=40)
@given(
    frames=st.lists(st.binary(max_size=300) | st.integers(0, 200_000).map(noise), max_size=6),
    cuts=st.lists(st.integers(0, 2**31), max_size=6),
)
def test_it_does_not_matter_how_the_bytes_come_in(frames: list[bytes], cuts: list[int]) -> None:
    whole = glued(frames)
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    mine, theirs = socket.socketpair()
    with (
        closing(FrameSocket(mine, LIMIT)) as reader,
        closing(theirs),
        Sending(theirs, pieces, close=True),
    ):
        assert [reader.receive() for _ in frames] == frames
        assert reader.receive() is None


# -- ends --------------------------------------------------------------------------------------


def test_a_peer_that_closes_between_frames_is_an_end(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    theirs.sendall(glued([b"last"]))
    theirs.close()
    assert mine.receive() == b"last"
    assert mine.receive() is None
    assert mine.receive() is None


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"\x05", id="in-the-length"),
        pytest.param(struct.pack("<I", 5), id="after-the-length"),
        pytest.param(glued([b"12345"])[:-1], id="in-a-small-frame"),
        pytest.param(glued([bytes(200_000)])[:-1], id="in-a-large-frame"),
    ],
)
def test_a_peer_that_closes_inside_a_frame_is_a_broken_connection(
    pair: tuple[FrameSocket, socket.socket], start: bytes
) -> None:
    mine, theirs = pair
    with Sending(theirs, [glued([b"whole"]), start], close=True):
        assert mine.receive() == b"whole"
        with pytest.raises(ConnectionError, match="ended inside a frame"):
            mine.receive()


def test_a_frame_over_the_limit_is_refused_with_both_numbers_before_memory_is_taken(
    pair: tuple[FrameSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = pair
    taken: list[int] = []

    def fill(self: FrameSocket, length: int, start: memoryview) -> bytearray:
        taken.append(length)
        return bytearray()

    monkeypatch.setattr(FrameSocket, "_fill", fill)
    for length in (LIMIT + 1, 2**32 - 1):
        theirs.sendall(struct.pack("<I", length) + b"begin")
        with pytest.raises(
            RefusedError, match=f"frame of {length} bytes is over the limit {LIMIT}"
        ):
            mine.receive()
        mine._buffer = b""
    assert taken == []


def test_a_small_frame_over_a_small_limit_is_refused_although_it_is_here_already() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(FrameSocket(right, 4)) as mine:
        left.sendall(glued([b"1234", b"12345"]))
        assert mine.receive() == b"1234"
        with pytest.raises(RefusedError, match="5 bytes is over the limit 4"):
            mine.receive()


def test_sending_to_a_peer_that_is_gone_is_an_os_error(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    theirs.close()
    for size in (10, 1_000_000):
        with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
            mine.send(bytes(size))


# -- cancelling --------------------------------------------------------------------------------


def ended(frames: FrameSocket) -> bool:
    """Whether there is nothing to be received any more: an end, or a broken connection."""
    try:
        return frames.receive() is None
    except OSError:
        return True


@pytest.mark.parametrize(
    "start", [b"", b"\x05", struct.pack("<I", 1_000_000)], ids=["idle", "length", "frame"]
)
def test_a_receive_that_waits_ends_when_it_is_cancelled_from_another_thread(
    pair: tuple[FrameSocket, socket.socket], start: bytes
) -> None:
    mine, theirs = pair
    theirs.sendall(start)
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(ended(mine)))
    thread.start()
    mine.cancel()
    thread.join(10)
    assert outcome == [True]


def test_a_send_that_waits_for_room_ends_when_it_is_cancelled(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    failed = threading.Event()

    def run() -> None:
        try:
            mine.send(bytes(LIMIT))  # more than a socket takes that nobody reads from
        except OSError:
            failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert theirs.recv(4) == struct.pack("<I", LIMIT)  # it is under way
    mine.cancel()
    thread.join(10)
    assert failed.is_set()


def test_after_cancel_everything_fails_and_closing_is_fine(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, _ = pair
    mine.cancel()
    mine.cancel()
    assert ended(mine)
    with pytest.raises(OSError, match=r"[Bb]roken pipe"):
        mine.send(b"x")
    mine.close()
    mine.close()
    mine.cancel()


def test_what_had_arrived_before_is_not_received_after_cancel(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    mine, theirs = pair
    theirs.sendall(glued([b"first", b"second"]))
    assert mine.receive() == b"first"
    mine.cancel()
    assert ended(mine)


def test_the_peers_user_is_known() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(right):
        assert peer_user(left) == peer_user(right) == os.getuid()
