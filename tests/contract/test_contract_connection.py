"""A connection over any stream: frames whole and in order, ends and breaks, bounded waits."""

import itertools
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.connections import (
    KIB64,
    LIMIT,
    MIB,
    MakePair,
    Pair,
    again_and_again,
    ended,
    glued,
    lengths,
    memory_of,
    next_message,
    noise,
    received,
)
from helpers.faulty_stream import FaultyStream
from helpers.streams import (
    StreamPair,
    open_descriptors,
    own_threads,
    result,
    start,
)
from helpers.waiting import wait_until
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import LimitExceededError, RefusedError
from ropewalk.net.connection import Connection
from ropewalk.net.stream import NEVER, ByteStream

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=[False, True], ids=["to the server", "to the client"])
def raw(request: pytest.FixtureRequest, streams: StreamPair) -> tuple[ByteStream, Connection]:
    """A bare stream, and the connection at its other end."""
    left, right = reversed(streams) if request.param else streams
    return left, Connection(right, LIMIT, "the peer")


def no_memory(count: int) -> Array:
    raise AssertionError(f"asked for memory of {count} bytes")


TAKE: dict[str, Callable[[Connection, int], object]] = {
    "read": lambda connection, size: connection.read(size, memory_of),
    "into": lambda connection, size: connection.read_into(memoryview(bytearray(size))),
    "some": lambda connection, size: [
        connection.read_some(memoryview(bytearray(size)))
        for _ in iter(lambda: connection.unread_bytes, 0)
    ],
    "skip": lambda connection, size: connection.skip(),
}
how_taken = pytest.mark.parametrize("how", list(TAKE))


# -- frames ------------------------------------------------------------------------------------


def test_a_frame_is_its_lengths_its_message_and_its_payload(pair: Pair) -> None:
    left, right = pair
    left.send([b"first", b"abc"], [memoryview(b"12"), memoryview(b"345")], 5)
    expected = lengths(5) + b"first" + b"\3\0\0\0" + b"\5\0\0\0\0\0\0\0" + b"abc" + b"12345"
    came = b""
    while len(came) < len(expected):
        came += right.stream.receive(time.monotonic() + 10)
    assert came == expected


@pytest.mark.parametrize(
    "size", [0, 1, KIB64 - 13, KIB64 - 12, KIB64 - 11, KIB64 - 1, KIB64, KIB64 + 1, LIMIT]
)
def test_messages_and_payloads_of_every_size_arrive_as_they_left(pair: Pair, size: int) -> None:
    content = noise(size)

    def send(sender: Connection) -> None:
        sender.send([b"before", content])
        sender.send([b"m"], [memoryview(content)], size)
        sender.send([b"after"])

    for sender, receiver in (pair, pair[::-1]):
        sending = start(partial(send, sender))
        assert received(receiver) == (b"before", b"")
        assert received(receiver) == (content, b"")
        assert received(receiver) == (b"m", content)
        assert received(receiver) == (b"after", b"")
        result(sending)


FRAMES = st.lists(
    st.tuples(
        st.binary(max_size=300) | st.integers(0, 100_000).map(noise),
        st.binary(max_size=300) | st.integers(0, 200_000).map(noise),
        st.lists(
            st.tuples(st.sampled_from(["read", "into", "some"]), st.integers(0, 150_000)),
            max_size=4,
        ),
    ),
    max_size=5,
)


@settings(max_examples=15)
@given(frames=FRAMES, cuts=st.lists(st.integers(0, 2**31), max_size=6))
def test_it_does_not_matter_how_the_bytes_come_in_nor_how_they_are_taken(
    make: MakePair, frames: list[tuple[bytes, bytes, list[tuple[str, int]]]], cuts: list[int]
) -> None:
    whole = glued(*((message, payload) for message, payload, _ in frames))
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    left, right = make()
    reader = Connection(right, LIMIT)

    def send() -> None:
        for a, b in itertools.pairwise(edges):
            left.send(whole[a:b], NEVER)
        left.close()

    with closing(left), closing(reader):
        sending = start(send)
        for message, payload, reads in frames:
            assert next_message(reader) == message
            taken = b""
            for how, wanted in reads:
                assert reader.unread_bytes == len(payload) - len(taken)
                size = min(wanted, reader.unread_bytes)
                target = bytearray(size)
                if how == "read":
                    taken += reader.read(size, memory_of)
                elif how == "into":
                    reader.read_into(memoryview(target))
                    taken += target
                elif size:
                    taken += target[: reader.read_some(memoryview(target))]
            reader.skip()
            assert taken == payload[: len(taken)]
        assert reader.receive() is None
        result(sending)


def test_small_parts_need_no_memory_and_large_ones_are_put_into_what_is_lent(pair: Pair) -> None:
    payload, lent = noise(KIB64 + 200_000), np.zeros(300_000, np.uint8)
    sending = start(lambda: pair[0].send([b"m"], [memoryview(payload)], len(payload)))
    pair[1].receive()
    assert bytes(pair[1].read(0, no_memory)) == b""
    assert bytes(pair[1].read(KIB64, no_memory)) == payload[:KIB64]
    part = pair[1].read(200_000, lambda _: lent)
    assert part == payload[KIB64:]
    assert np.shares_memory(np.frombuffer(part, np.uint8), lent)
    result(sending)


@pytest.mark.parametrize("read", [0, 1, 9], ids=["all", "some", "most"])
def test_a_payload_that_nobody_read_is_refused_and_not_taken_for_a_frame(
    pair: Pair, read: int
) -> None:
    pair[0].send([b"m"], [memoryview(bytes(10))], 10)
    pair[0].send([b"next"])
    pair[1].receive()
    pair[1].read(read, no_memory)
    for _ in range(2):
        with pytest.raises(RefusedError, match=f"{10 - read} unread payload bytes"):
            pair[1].receive()
    pair[1].skip()
    assert received(pair[1]) == (b"next", b"")


def test_more_than_the_payload_has_left_is_refused_and_not_waited_for(pair: Pair) -> None:
    pair[1].skip()  # there is nothing before the first frame
    with pytest.raises(RefusedError, match="has 0 left"):
        pair[1].read(1, no_memory)
    pair[0].send([b"m"], [memoryview(bytes(10))], 10)
    pair[1].receive()
    pair[1].read(4, no_memory)
    for take in (TAKE["read"], TAKE["into"]):
        with pytest.raises(RefusedError, match="7 bytes of a payload that has 6 left"):
            take(pair[1], 7)
    assert bytes(pair[1].read(6, no_memory)) == bytes(6)
    with pytest.raises(RefusedError, match="at its end"):
        pair[1].read_some(memoryview(bytearray(1)))


# -- ends --------------------------------------------------------------------------------------


def test_a_peer_that_closes_between_frames_is_an_end_and_all_it_sent_is_there(pair: Pair) -> None:
    payload = noise(20_000)
    for _ in range(3):
        pair[0].send([b"m"], [memoryview(payload)], len(payload))
    closing_it = start(pair[0].close)
    for _ in range(3):
        assert received(pair[1]) == (b"m", payload)
    assert pair[1].receive() is None
    assert pair[1].receive() is None
    result(closing_it)


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"\x05", id="in-the-lengths"),
        pytest.param(lengths(5), id="after-the-lengths"),
        pytest.param(lengths(5) + b"1234", id="in-a-small-message"),
        pytest.param(lengths(200_000), id="before-a-large-message"),
        pytest.param(lengths(200_000) + bytes(199_999), id="in-a-large-message"),
    ],
)
def test_a_peer_that_closes_inside_a_message_is_a_break(
    raw: tuple[ByteStream, Connection], begun: bytes
) -> None:
    raw[0].send(glued((b"whole", b"")) + begun, NEVER)
    closing_it = start(raw[0].close)
    assert received(raw[1]) == (b"whole", b"")
    with pytest.raises(ConnectionError, match="ended inside a frame"):
        raw[1].receive()
    result(closing_it)


@how_taken
@pytest.mark.parametrize(("size", "sent"), [(10, 0), (10, 9), (200_000, 199_999)])
def test_a_peer_that_closes_inside_a_payload_is_a_break(
    raw: tuple[ByteStream, Connection], how: str, size: int, sent: int
) -> None:
    raw[0].send(lengths(1, size) + b"m" + bytes(sent), NEVER)
    closing_it = start(raw[0].close)
    raw[1].receive()
    with pytest.raises(ConnectionError, match="ended inside a frame"):
        TAKE[how](raw[1], size)
    result(closing_it)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(0, 150_000), min_size=1, max_size=6),
    cut=st.floats(0, 1),
)
def test_of_a_stream_that_is_cut_whole_frames_arrive_and_never_a_wrong_one(
    make: MakePair, sizes: list[int], cut: float
) -> None:
    frames = [(b"message %d" % i, noise(size)) for i, size in enumerate(sizes)]
    left, right = make()
    faulty = FaultyStream(left, cut_after=int(cut * len(glued(*frames))), direction="send")
    with closing(Connection(faulty, LIMIT)) as sender, closing(Connection(right, LIMIT)) as reader:

        def send() -> None:
            with suppress(OSError):
                for message, payload in frames:
                    sender.send([message], [memoryview(payload)], len(payload))

        sending = start(send)
        came = []
        with suppress(OSError):
            while (frame := received(reader)) is not None:
                came.append(frame)
                if len(came) == len(frames):
                    break
        assert came == frames[: len(came)]
        result(sending)


# -- limits ------------------------------------------------------------------------------------


def test_a_message_over_the_limit_is_refused_with_both_numbers_before_memory_is_taken(
    raw: tuple[ByteStream, Connection],
) -> None:
    raw[0].send(lengths(2**32 - 1, 2**64 - 1) + b"begin", NEVER)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError, match=rf"{2**32 - 1} bytes.*={LIMIT}") as caught:
            raw[1].receive()
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert caught.value.fields["limit"] == "max_message_bytes"
    assert "the peer" in caught.value.message


def test_a_payload_that_cannot_be_is_announced_and_costs_nothing(
    raw: tuple[ByteStream, Connection],
) -> None:
    """Whoever knows what a step may have refuses it; nothing is taken for it here."""
    raw[0].send(lengths(1, 2**64 - 1) + b"m", NEVER)
    assert next_message(raw[1]) == b"m"
    assert raw[1].unread_bytes == 2**64 - 1


# -- deadlines ---------------------------------------------------------------------------------


def times_out(connection: Connection, wait: Callable[[], object]) -> None:
    connection.deadline = time.monotonic() + 0.03
    with pytest.raises(TimeoutError):
        wait()
    connection.deadline = NEVER


@pytest.mark.parametrize("cut", [0, 5, 12, 13, 35, 36, 37, 900])
def test_a_frame_may_come_in_pieces_with_timeouts_between(
    raw: tuple[ByteStream, Connection], cut: int
) -> None:
    stream, reader = raw
    frame = glued((noise(24), noise(1000)))
    for _ in range(2):
        stream.send(frame[:cut], NEVER)
        target = memoryview(bytearray(1000))
        if cut < 36:
            times_out(reader, reader.receive)
            stream.send(frame[cut:], NEVER)
            assert next_message(reader) == noise(24)
        else:
            assert next_message(reader) == noise(24)
            filled = 0
            while filled < cut - 36:
                filled += reader.read_some(target[filled:])
            times_out(reader, partial(reader.read_some, target[filled:]))
            stream.send(frame[cut:], NEVER)
        filled = 1000 - reader.unread_bytes
        while filled < 1000:
            filled += reader.read_some(target[filled:])
        assert target == noise(1000)


def test_a_send_that_nobody_takes_ends_at_the_deadline(pair: Pair) -> None:
    pair[0].deadline = time.monotonic() + 0.2
    with pytest.raises(TimeoutError):
        again_and_again(lambda: pair[0].send([bytes(LIMIT)]))


def test_bytes_that_vanish_are_a_timeout(make: MakePair) -> None:
    left, right = make()
    dropping = FaultyStream(left, drop=True, direction="send")
    with (
        closing(Connection(dropping, LIMIT)) as sender,
        closing(Connection(right, LIMIT)) as reader,
    ):
        sender.send([b"lost"])
        times_out(reader, reader.receive)


# -- cancelling --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun", [b"", b"\x05", lengths(1_000_000)], ids=["idle", "lengths", "message"]
)
def test_who_waits_for_a_frame_is_woken_by_cancel_and_the_peer_hears_of_it(
    raw: tuple[ByteStream, Connection], begun: bytes
) -> None:
    raw[0].send(begun, NEVER)
    waiting = start(lambda: ended(raw[1]))
    time.sleep(0.01)
    raw[1].cancel()
    assert result(waiting)
    assert result(start(lambda: ended(Connection(raw[0], LIMIT))))


@how_taken
def test_who_waits_for_a_payload_is_woken_by_cancel(
    raw: tuple[ByteStream, Connection], how: str
) -> None:
    raw[0].send(lengths(1, 1_000_000) + b"m" + bytes(500), NEVER)
    raw[1].receive()
    waiting = start(lambda: TAKE[how](raw[1], 1_000_000))
    time.sleep(0.01)
    raw[1].cancel()
    with pytest.raises(OSError, match=r"."):
        result(waiting)


def test_bytes_that_had_come_are_not_read_after_a_cancel(
    raw: tuple[ByteStream, Connection],
) -> None:
    """Those of a step that was given up: nobody may take them for an answer."""
    raw[0].send(lengths(1, 300_000) + b"m", NEVER)
    raw[1].receive()
    raw[0].send(bytes(100_000), NEVER)
    wait_until(lambda: not raw[1].is_silent(), 5, "the bytes")
    raw[1].cancel()
    with pytest.raises(OSError, match=r"."):
        raw[1].read_some(memoryview(bytearray(1000)))


def test_who_waits_for_room_is_woken_by_cancel(pair: Pair) -> None:
    sending = start(lambda: again_and_again(lambda: pair[0].send([bytes(LIMIT)])))
    time.sleep(0.05)
    pair[0].cancel()
    with pytest.raises(OSError, match=r"."):
        result(sending)


def test_a_peer_that_waits_for_room_hears_of_the_end_after_a_cancel(pair: Pair) -> None:
    """Also if all that had arrived was read after the cancel: TCP then tells nobody of room."""
    size = 64 * MIB
    sending = start(lambda: pair[0].send([b"m"], [memoryview(bytes(size))], size))
    assert next_message(pair[1]) == b"m"
    time.sleep(0.1)
    pair[1].cancel()
    with pytest.raises(ConnectionError):
        pair[1].read_into(memoryview(bytearray(size)))
    pair[1].close()
    with pytest.raises(OSError, match=r"."):
        result(sending)


def test_after_cancel_everything_fails_and_closing_is_fine(pair: Pair) -> None:
    pair[0].send([b"first"])
    pair[0].send([b"second"])
    assert received(pair[1]) == (b"first", b"")
    for _ in range(2):
        pair[1].cancel()
    with pytest.raises(ConnectionError):  # what had arrived before is not wanted any more
        pair[1].receive()
    with pytest.raises(OSError, match=r"."):
        pair[1].send([b"x"])
    for _ in range(2):
        pair[1].close()
    pair[1].cancel()


# -- nothing is left ---------------------------------------------------------------------------


def test_connections_that_come_and_go_leave_nothing(make: MakePair) -> None:
    def once(number: int) -> None:
        left, right = make()
        with closing(Connection(left, LIMIT)) as mine, closing(Connection(right, LIMIT)) as theirs:
            mine.send_in_background([b"m"], [memoryview(bytes(KIB64))], KIB64)
            assert received(theirs) == (b"m", bytes(KIB64))
            ends: list[Any] = [mine, theirs]
            if number % 3:
                ends[number % 3 - 1].cancel()

    once(0)
    before = open_descriptors()
    for number in range(200):
        once(number)
    wait_until(lambda: not own_threads(), 5, "the end of the threads")
    wait_until(lambda: open_descriptors() <= before, 5, "files to be closed")
