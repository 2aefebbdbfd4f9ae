"""Frames over a connected socket: whole, in order, and an end that is told from a break."""

import itertools
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windlass.net.frame_socket import (
    FrameSocket,
    SocketWriter,
    frame_head,
    peer_user,
    prepare_tcp,
)

from windlass.core.arrays import Array
from windlass.core.errors import RefusedError

pytestmark = pytest.mark.timeout(30)

LIMIT = 8 * 1024**2
KIB64 = 64 * 1024
MIB = 1024**2

Frame = tuple[bytes, bytes]
"""A message and its payload."""
Pair = tuple[FrameSocket, socket.socket]


@pytest.fixture(params=["unix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Our end, and the peer's bare socket."""
    mine, theirs = socket.socketpair() if request.param == "unix" else tcp_pair()
    with closing(FrameSocket(mine, LIMIT)) as frames, closing(theirs):
        yield frames, theirs


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname(), 5)
        theirs.settimeout(None)
        mine, _ = listener.accept()
    prepare_tcp(mine)
    return mine, theirs


def lengths(message: int, payload: int) -> bytes:
    """What a frame begins with: little-endian uint32 and uint64."""
    return struct.pack("<IQ", message, payload)


def glued(*frames: Frame) -> bytes:
    return b"".join(lengths(len(m), len(p)) + m + p for m, p in frames)


def received(frames: FrameSocket) -> bytes | None:
    message = frames.receive()
    return None if message is None else bytes(message)


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def no_memory(count: int) -> Array:
    raise AssertionError(f"asked for memory of {count} bytes")


class Lent:
    """Lends one piece of memory for everything, as large as the largest."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.asked: list[int] = []

    def __call__(self, count: int) -> Array:
        self.asked.append(count)
        return self.memory


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


# -- messages ----------------------------------------------------------------------------------

SIZES = [0, 1, 3, KIB64 - 13, KIB64 - 12, KIB64 - 11, KIB64 - 1, KIB64, KIB64 + 1, 3 * MIB, LIMIT]


@pytest.mark.parametrize("size", SIZES)
def test_a_message_arrives_as_it_left(size: int) -> None:
    message = noise(size)
    left, right = socket.socketpair()
    with (
        closing(FrameSocket(left, LIMIT)) as sender,
        closing(FrameSocket(right, LIMIT)) as receiver,
    ):
        thread = threading.Thread(target=sender.write, args=(frame_head(message),))
        thread.start()
        assert received(receiver) == message
        assert receiver.unread_bytes == 0
        thread.join(10)
        sender.write(memoryview(frame_head(b"next")))
        assert received(receiver) == b"next"


def test_a_frame_begins_with_the_lengths_of_its_message_and_payload() -> None:
    assert frame_head(b"abc", 0x0102030405) == b"\3\0\0\0" + b"\5\4\3\2\1\0\0\0" + b"abc"
    assert frame_head(b"") == bytes(12)


def test_many_small_messages_glued_together_come_apart(pair: Pair) -> None:
    mine, theirs = pair
    messages = [noise(i % 97) for i in range(5000)]
    with Sending(theirs, [glued(*((message, b"") for message in messages))], close=True):
        for message in messages:
            assert received(mine) == message
        assert mine.receive() is None


def test_a_large_message_between_small_ones_does_not_eat_its_neighbours(pair: Pair) -> None:
    mine, theirs = pair
    messages = [b"a", noise(KIB64 + 1), b"", noise(3 * MIB), b"b", noise(KIB64 - 1), b"c"]
    with Sending(theirs, [glued(*((message, b"") for message in messages))]):
        assert [received(mine) for _ in messages] == messages


# -- payloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, KIB64 - 1, KIB64, KIB64 + 1, 3 * MIB])
def test_a_payload_is_read_at_once_or_into_place_or_skipped(pair: Pair, size: int) -> None:
    mine, theirs = pair
    payload = noise(size)
    with Sending(theirs, [glued((b"m", payload), (b"m", payload), (b"m", payload), (b"end", b""))]):
        assert received(mine) == b"m"
        assert mine.unread_bytes == size
        assert bytes(mine.read(size, Lent(size))) == payload
        assert mine.unread_bytes == 0
        assert received(mine) == b"m"
        target = bytearray(size)
        mine.read_into(memoryview(target))
        assert target == payload
        assert received(mine) == b"m"
        mine.skip()
        mine.skip()  # there is nothing
        assert received(mine) == b"end"


def test_small_pieces_need_no_memory_and_large_ones_are_put_into_what_is_lent(pair: Pair) -> None:
    mine, theirs = pair
    payload = noise(KIB64 + 200_000)
    lent = Lent(300_000)
    with Sending(theirs, [glued((b"m", payload))]):
        mine.receive()
        assert bytes(mine.read(0, no_memory)) == b""
        assert bytes(mine.read(KIB64, no_memory)) == payload[:KIB64]
        piece = mine.read(200_000, lent)
    assert piece == payload[KIB64:]
    assert lent.asked == [200_000]
    assert np.shares_memory(np.frombuffer(piece, np.uint8), lent.memory)


def test_pieces_of_a_payload_come_before_the_rest_of_it(pair: Pair) -> None:
    """The ps applies the first shard while the others are on their way."""
    mine, theirs = pair
    theirs.sendall(lengths(1, 100_000 + 70_000) + b"m" + bytes(100_000))
    assert received(mine) == b"m"
    assert bytes(mine.read(100_000, Lent(100_000))) == bytes(100_000)
    theirs.sendall(b"x" * 70_000)
    assert bytes(mine.read(70_000, Lent(100_000))) == b"x" * 70_000


READS = st.tuples(st.sampled_from(["read", "into"]), st.integers(0, 150_000))


@settings(deadline=None, max_examples=60)
@given(
    frames=st.lists(
        st.tuples(
            st.binary(max_size=300) | st.integers(0, 100_000).map(noise),
            st.binary(max_size=300) | st.integers(0, 200_000).map(noise),
            st.lists(READS, max_size=4),
        ),
        max_size=5,
    ),
    cuts=st.lists(st.integers(0, 2**31), max_size=6),
)
def test_it_does_not_matter_how_the_bytes_come_in_nor_how_they_are_taken(
    frames: list[tuple[bytes, bytes, list[tuple[str, int]]]], cuts: list[int]
) -> None:
    bytes_of = glued(*((message, payload) for message, payload, _ in frames))
    edges = sorted({0, len(bytes_of), *(cut % (len(bytes_of) + 1) for cut in cuts)})
    pieces = [bytes_of[a:b] for a, b in itertools.pairwise(edges)]
    mine, theirs = socket.socketpair()
    with (
        closing(FrameSocket(mine, LIMIT)) as reader,
        closing(theirs),
        Sending(theirs, pieces, close=True),
    ):
        for message, payload, reads in frames:
            assert received(reader) == message
            taken = b""
            for how, wanted in reads:
                assert reader.unread_bytes == len(payload) - len(taken)
                size = min(wanted, reader.unread_bytes)
                if how == "read":
                    taken += reader.read(size, Lent(size))
                else:
                    target = bytearray(size)
                    reader.read_into(memoryview(target))
                    taken += target
            assert taken == payload[: len(taken)]
            reader.skip()
        assert reader.receive() is None


@pytest.mark.parametrize("read", [0, 1, 9], ids=["all", "some", "most"])
def test_a_payload_that_nobody_read_is_refused_and_not_taken_for_a_frame(
    pair: Pair, read: int
) -> None:
    mine, theirs = pair
    theirs.sendall(glued((b"m", bytes(10)), (b"next", b"")))
    mine.receive()
    mine.read(read, no_memory)
    for _ in range(2):
        with pytest.raises(RefusedError, match=f"{10 - read} bytes came that no message speaks of"):
            mine.receive()
    mine.skip()
    assert received(mine) == b"next"


@pytest.mark.parametrize("payload", [0, 10, 100_000])
def test_more_than_the_payload_has_left_is_refused_and_not_waited_for(
    pair: Pair, payload: int
) -> None:
    mine, theirs = pair
    with Sending(theirs, [glued((b"m", bytes(payload)), (b"next", b"later"))]):
        mine.receive()
        mine.read(payload // 2, Lent(payload))
        left = payload - payload // 2
        words = f"{left + 1} bytes of a payload that has {left} left"
        with pytest.raises(RefusedError, match=words):
            mine.read(left + 1, no_memory)
        with pytest.raises(RefusedError, match=words):
            mine.read_into(memoryview(bytearray(left + 1)))
        assert bytes(mine.read(left, Lent(payload))) == bytes(left)
        assert received(mine) == b"next"
        mine.skip()


def test_before_the_first_frame_there_is_no_payload(pair: Pair) -> None:
    mine, _ = pair
    assert mine.unread_bytes == 0
    mine.skip()
    with pytest.raises(RefusedError, match="has 0 left"):
        mine.read(1, no_memory)


def test_a_payload_that_cannot_be_is_announced_and_costs_nothing(pair: Pair) -> None:
    """Whoever knows what a step may have refuses it; nothing is taken for it here."""
    mine, theirs = pair
    theirs.sendall(lengths(1, 2**64 - 1) + b"m")
    assert received(mine) == b"m"
    assert mine.unread_bytes == 2**64 - 1


# -- ends --------------------------------------------------------------------------------------


def test_a_peer_that_closes_between_frames_is_an_end(pair: Pair) -> None:
    mine, theirs = pair
    theirs.sendall(glued((b"last", b"payload")))
    theirs.close()
    assert received(mine) == b"last"
    assert bytes(mine.read(7, no_memory)) == b"payload"
    assert mine.receive() is None
    assert mine.receive() is None


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"\x05", id="in-the-lengths"),
        pytest.param(lengths(5, 0), id="after-the-lengths"),
        pytest.param(lengths(5, 0) + b"1234", id="in-a-small-message"),
        pytest.param(lengths(200_000, 0), id="before-a-large-message"),
        pytest.param(lengths(200_000, 0) + bytes(199_999), id="in-a-large-message"),
    ],
)
def test_a_peer_that_closes_inside_a_message_is_a_broken_connection(
    pair: Pair, start: bytes
) -> None:
    mine, theirs = pair
    with Sending(theirs, [glued((b"whole", b"")), start], close=True):
        assert received(mine) == b"whole"
        with pytest.raises(ConnectionError, match="ended inside a frame"):
            mine.receive()


@pytest.mark.parametrize("how", ["read", "into", "skip"])
@pytest.mark.parametrize(
    ("size", "sent"),
    [(10, 0), (10, 9), (200_000, 0), (200_000, 199_999)],
    ids=["small-none", "small-some", "large-none", "large-some"],
)
def test_a_peer_that_closes_inside_a_payload_is_a_broken_connection(
    pair: Pair, how: str, size: int, sent: int
) -> None:
    mine, theirs = pair
    take: dict[str, Callable[[], object]] = {
        "read": lambda: mine.read(size, Lent(size)),
        "into": lambda: mine.read_into(memoryview(bytearray(size))),
        "skip": mine.skip,
    }
    with Sending(theirs, [lengths(1, size) + b"m" + bytes(sent)], close=True):
        assert received(mine) == b"m"
        with pytest.raises(ConnectionError, match="ended inside a frame"):
            take[how]()


def test_a_message_over_the_limit_is_refused_with_both_numbers_before_memory_is_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = pair
    filled: list[int] = []
    monkeypatch.setattr(FrameSocket, "_fill", lambda _, target: filled.append(len(target)))
    for length in (LIMIT + 1, 2**32 - 1):
        theirs.sendall(lengths(length, 0) + b"begin")
        with pytest.raises(
            RefusedError, match=f"message of {length} bytes is over the limit {LIMIT}"
        ):
            mine.receive()
        mine._buffer, mine._at = b"", 0
    assert filled == []


def test_a_small_message_over_a_small_limit_is_refused_although_it_is_here_already() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(FrameSocket(right, 4)) as mine:
        left.sendall(glued((b"1234", b""), (b"12345", b"")))
        assert received(mine) == b"1234"
        with pytest.raises(RefusedError, match="5 bytes is over the limit 4"):
            mine.receive()


def test_sending_to_a_peer_that_is_gone_is_an_os_error(pair: Pair) -> None:
    mine, theirs = pair
    theirs.close()
    with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):  # noqa: PT012 - tcp learns of it later
        for _ in range(100):
            mine.write(bytes(1_000_000))
    with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
        mine.write(b"x")


# -- cancelling --------------------------------------------------------------------------------


def ended(frames: FrameSocket) -> bool:
    """Whether there is nothing to be received any more: an end, or a broken connection."""
    try:
        return frames.receive() is None
    except OSError:
        return True


@pytest.mark.parametrize(
    "start", [b"", b"\x05", lengths(1_000_000, 0)], ids=["idle", "lengths", "message"]
)
def test_a_receive_that_waits_ends_when_it_is_cancelled_from_another_thread(
    pair: Pair, start: bytes
) -> None:
    mine, theirs = pair
    theirs.sendall(start)
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(ended(mine)))
    thread.start()
    mine.cancel()
    thread.join(10)
    assert outcome == [True]


@pytest.mark.parametrize("how", ["small", "large", "into", "skip"])
def test_whoever_waits_for_a_payload_is_woken_by_cancel(pair: Pair, how: str) -> None:
    mine, theirs = pair
    size = 1000 if how == "small" else 1_000_000
    theirs.sendall(lengths(1, size) + b"m" + bytes(500))
    assert received(mine) == b"m"
    take: dict[str, Callable[[], object]] = {
        "small": lambda: mine.read(size, no_memory),
        "large": lambda: mine.read(size, Lent(size)),
        "into": lambda: mine.read_into(memoryview(bytearray(size))),
        "skip": mine.skip,
    }
    outcome: queue.SimpleQueue[str] = queue.SimpleQueue()
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            take[how]()
        except OSError:
            outcome.put("broken")
        else:
            outcome.put("read")

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(5)
    mine.cancel()
    assert outcome.get(timeout=10) == "broken"
    thread.join(10)


def test_a_write_that_waits_for_room_ends_when_it_is_cancelled(pair: Pair) -> None:
    mine, theirs = pair
    failed = threading.Event()

    def run() -> None:
        try:
            while True:
                mine.write(frame_head(bytes(LIMIT)))  # nobody reads on
        except OSError:
            failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert theirs.recv(4) == struct.pack("<I", LIMIT)  # it is under way
    mine.cancel()
    thread.join(10)
    assert failed.is_set()


def test_after_cancel_everything_fails_and_closing_is_fine(pair: Pair) -> None:
    mine, _ = pair
    mine.cancel()
    mine.cancel()
    assert ended(mine)
    with pytest.raises(OSError, match=r"[Bb]roken pipe"):
        mine.write(b"x")
    mine.close()
    mine.close()
    mine.cancel()


def test_what_had_arrived_before_is_not_received_after_cancel(pair: Pair) -> None:
    mine, theirs = pair
    theirs.sendall(glued((b"first", b""), (b"second", b"")))
    assert received(mine) == b"first"
    mine.cancel()
    assert ended(mine)


def test_a_peer_that_waits_for_room_hears_of_the_close_after_a_cancel(pair: Pair) -> None:
    """Also if all that had arrived was read after the cancel: then TCP tells nobody of the room there is."""
    mine, theirs = pair
    size = 64 * MIB
    heard = threading.Event()

    def run() -> None:
        try:
            theirs.sendall(lengths(1, size) + b"m" + bytes(size))
        except OSError:
            heard.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert mine.receive() is not None
    while select.select([], [theirs], [], 0.1)[1]:
        pass  # it has room yet
    mine.cancel()
    with pytest.raises(ConnectionError):
        mine.read_into(memoryview(bytearray(size)))
    mine.close()
    assert heard.wait(5)
    thread.join(5)


def test_one_thread_may_write_while_another_reads(pair: Pair) -> None:
    """More than the socket's buffers hold goes both ways: neither waits for the other."""
    mine, theirs = pair
    size = 16 * MIB
    with closing(FrameSocket(theirs.dup(), LIMIT)) as other:
        writers = [
            threading.Thread(target=end.write, args=(frame_head(b"m", size) + bytes(size),))
            for end in (mine, other)
        ]
        for writer in writers:
            writer.start()
        target = memoryview(bytearray(size))

        def read() -> None:
            assert received(other) == b"m"
            other.skip()

        reader = threading.Thread(target=read)
        reader.start()
        assert received(mine) == b"m"
        mine.read_into(target)
        for thread in (*writers, reader):
            thread.join(10)
            assert not thread.is_alive()


def test_the_peers_user_is_known() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(right):
        assert peer_user(left) == peer_user(right) == os.getuid()


def test_a_tcp_connection_sends_at_once_and_notices_a_peer_that_vanished() -> None:
    mine, theirs = tcp_pair()
    with closing(mine), closing(theirs):
        assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        # A peer that lives and does not read for long is none that vanished.
        assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


# -- writing a frame ---------------------------------------------------------------------------


def address_of(piece: bytes | memoryview) -> int:
    return int(np.frombuffer(piece, np.uint8).ctypes.data)


def part(size: int, seed: int = 0) -> memoryview:
    """Bytes that can be changed."""
    return memoryview(bytearray(np.random.default_rng(seed).bytes(size)))


def test_small_parts_go_together_with_the_message() -> None:
    parts = [part(size, size) for size in (3, 0, 70, KIB64 - 1)]
    total = sum(map(len, parts))
    writer = SocketWriter(b"message", total)
    assert [list(writer.add(each)) for each in parts] == [[], [], [], []]
    [piece] = writer.finish()
    assert piece == glued((b"message", b"".join(parts)))
    assert list(writer.finish()) == []


def test_a_frame_without_payload_is_its_head() -> None:
    [piece] = SocketWriter(b"message", 0).finish()
    assert piece == frame_head(b"message")


def test_many_small_parts_do_not_wait_for_the_end() -> None:
    """What is gathered is bounded, however many there are."""
    each = part(60_000)
    writer = SocketWriter(b"m", 60_000 * 100)
    sizes = [len(piece) for _ in range(100) for piece in writer.add(each)]
    assert sizes
    assert max(sizes) <= MIB + KIB64 + 13


def test_a_large_part_goes_alone_and_is_not_copied() -> None:
    small, large, last = part(10, 1), part(KIB64, 2), part(20, 3)
    writer = SocketWriter(b"m", len(small) + len(large) + len(last))
    assert list(writer.add(small)) == []
    head, alone = writer.add(large)
    assert head == frame_head(b"m", 30 + KIB64) + bytes(small)
    assert address_of(alone) == address_of(large)
    assert list(writer.add(last)) == []
    assert list(writer.finish()) == [last]


def test_parts_may_change_as_soon_as_they_are_added_if_there_is_memory() -> None:
    """What the ps pulls is copied under the lock of a block, and sent without it."""
    small, large = part(10, 1), part(200_000, 2)
    expected = glued((b"m", bytes(small) + bytes(large)))
    lent = Lent(300_000)
    writer = SocketWriter(b"m", 200_010, lent)
    pieces = list(writer.add(small))
    small[:] = bytes(10)
    pieces += writer.add(large)
    large[:] = bytes(200_000)
    assert address_of(pieces[-1]) == address_of(lent.memory.data)
    assert lent.asked == [200_000]
    assert b"".join([*pieces, *writer.finish()]) == expected


@settings(deadline=None, max_examples=60)
@given(
    message=st.binary(max_size=100),
    sizes=st.lists(st.integers(0, 300) | st.integers(0, 400_000), max_size=8),
    copied=st.booleans(),
)
def test_whatever_the_parts_the_pieces_are_the_frame(
    message: bytes, sizes: list[int], copied: bool
) -> None:
    parts = [part(size, seed) for seed, size in enumerate(sizes)]
    expected = glued((message, b"".join(parts)))
    writer = SocketWriter(message, sum(sizes), Lent(400_000) if copied else None)
    written = bytearray()
    for each in parts:
        for piece in writer.add(each):
            written += piece  # before the next one is asked for
        if copied:
            each[:] = bytes(len(each))
    for piece in writer.finish():
        written += piece
    assert written == expected
