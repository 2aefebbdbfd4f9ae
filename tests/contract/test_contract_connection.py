"""A connection over any stream: frames whole and in order, an end told from a break, no endless waits."""

import itertools
import os
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.faulty_stream import FaultyStream
from helpers.streams import (
    KINDS,
    StreamPair,
    open_descriptors,
    own_threads,
    result,
    start,
    stream_pairs,
)
from helpers.waiting import scaled, wait_until
from windlass.core.arrays import Array
from windlass.core.errors import LimitExceededError, RefusedError
from windlass.net.connection import Connection, FrameWriter
from windlass.net.outbox import Outbox
from windlass.net.stream import NEVER, Buffer, ByteStream

pytestmark = pytest.mark.timeout(60)

LIMIT = 4 * 1024**2
KIB64 = 64 * 1024
MIB = 1024**2

Pair = tuple[Connection, Connection]
MakePair = Callable[[], StreamPair]


@pytest.fixture(scope="module", params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[MakePair]:
    with stream_pairs(request.param) as make:
        yield make


@pytest.fixture(scope="module")
def make_unix() -> Iterator[MakePair]:
    with stream_pairs("unix") as make:
        yield make


@pytest.fixture
def streams(make: MakePair) -> Iterator[StreamPair]:
    left, right = make()
    with closing(left), closing(right):
        yield left, right


@pytest.fixture
def pair(streams: StreamPair) -> Iterator[Pair]:
    """The one who dialled, and the one who was called."""
    with (
        closing(Connection(streams[0], LIMIT, "the server")) as left,
        closing(Connection(streams[1], LIMIT, "the client")) as right,
    ):
        yield left, right


@pytest.fixture(params=[False, True], ids=["to the server", "to the client"])
def raw(request: pytest.FixtureRequest, streams: StreamPair) -> tuple[ByteStream, Connection]:
    """A bare stream, and the connection at its other end."""
    left, right = reversed(streams) if request.param else streams
    return left, Connection(right, LIMIT, "the peer")


def lengths(message: int, payload: int = 0) -> bytes:
    """What a frame begins with: little-endian uint32 and uint64."""
    return struct.pack("<IQ", message, payload)


def glued(*frames: tuple[bytes, bytes]) -> bytes:
    return b"".join(lengths(len(m), len(p)) + m + p for m, p in frames)


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def memory_of(size: int) -> Array:
    return np.empty(size, np.uint8)


def no_memory(count: int) -> Array:
    raise AssertionError(f"asked for memory of {count} bytes")


def received(connection: Connection) -> tuple[bytes, bytes] | None:
    """The next frame, whole."""
    message = connection.receive()
    if message is None:
        return None
    return bytes(message), bytes(connection.read(connection.unread_bytes, memory_of))


def next_message(connection: Connection) -> bytes:
    message = connection.receive()
    assert message is not None
    return bytes(message)


def ended(connection: Connection) -> bool:
    """Whether nothing more can be received: an end, or a break."""
    try:
        return connection.receive() is None
    except OSError:
        return True


def again_and_again(work: Callable[[], object]) -> None:
    for _ in range(1000):
        work()


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


@settings(max_examples=30)
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


@settings(max_examples=40)
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
    """Also if all that had arrived was read after the cancel: then TCP tells nobody of the room there is."""
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


# -- sending in the background -----------------------------------------------------------------


def test_both_ends_may_send_much_before_either_receives(pair: Pair) -> None:
    size = 8 * MIB
    payloads = [noise(size), noise(size + 1)]

    def read_two(end: Connection) -> list[tuple[bytes, bytes] | None]:
        return [received(end), received(end)]

    for end, payload in zip(pair, payloads, strict=True):
        end.send_in_background([b"first", b"m"], [memoryview(payload)], len(payload))
    reading = [start(partial(read_two, end)) for end in pair]
    for running, payload in zip(reading, payloads[::-1], strict=True):
        assert result(running, 20) == [(b"first", b""), (b"m", payload)]
    pair[0].send([b"after"])
    assert received(pair[1]) == (b"after", b"")


def test_a_payload_that_cannot_be_made_breaks_the_connection_at_both_ends(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def parts() -> Iterator[memoryview]:
        yield memoryview(bytes(KIB64))
        raise MemoryError("no memory to gather an array")

    pair[0].send_in_background([b"m"], parts(), 2 * KIB64)
    with pytest.raises(OSError, match=r"."):
        received(pair[1])
    assert ended(pair[0])
    with pytest.raises(ConnectionError, match="an earlier frame could not be sent: no memory"):
        pair[0].send([b"next"])
    assert "no memory" in caplog.text


def test_what_is_posted_is_sent_behind_the_callers_back_and_may_change_after_a_flush(
    pair: Pair,
) -> None:
    sizes = [MIB] * 12 + [10] * 100 + [0, MIB]

    def send() -> None:
        memory = np.empty(MIB, np.uint8)
        for number, size in enumerate(sizes):
            memory[:size] = np.frombuffer(noise(size), np.uint8)
            pair[0].post(b"%d" % number, memory[:size], 20)
            if number % 3 == 0:
                pair[0].flush(20)
            else:
                memory = np.empty(MIB, np.uint8)
            memory[:] = 255
        pair[0].flush(20)

    sending = start(send)
    for number, size in enumerate(sizes):
        assert received(pair[1]) == (b"%d" % number, noise(size))
    result(sending)


def fill(connection: Connection) -> int:
    """Post until nothing more is taken; how many frames that were."""
    for number in range(200):
        try:
            connection.post(b"%d" % number, np.full(MIB, number, np.uint8), 0.05)
        except TimeoutError:
            return number
    return 200


def test_a_receiver_that_takes_nothing_bounds_what_waits_and_may_go_on(pair: Pair) -> None:
    count = fill(pair[0])
    assert 4 <= count < 40
    for wait in (pair[0].flush, lambda s: pair[0].post(b"late", np.empty(1, np.uint8), s)):
        with pytest.raises(TimeoutError, match="takes nothing"):
            wait(0.02)
    for number in range(count):  # nothing of what was refused is among them
        assert received(pair[1]) == (b"%d" % number, bytes([number]) * MIB)
    pair[0].flush(10)
    pair[0].post(b"again", np.empty(0, np.uint8), 1)
    assert received(pair[1]) == (b"again", b"")


@pytest.mark.parametrize("background", [False, True], ids=["posted", "in-background"])
def test_closing_ends_what_only_waits_to_be_sent(pair: Pair, background: bool) -> None:
    if background:
        for _ in range(4):
            pair[0].send_in_background([b"m"], [memoryview(bytes(64 * MIB))], 64 * MIB)
    else:
        fill(pair[0])
    assert next_message(pair[1]) in (b"m", b"0")  # it is under way
    result(start(pair[0].close))
    with pytest.raises(OSError, match=r"."):  # and it is no end that was meant
        again_and_again(lambda: pair[1].skip() or pair[1].receive())  # type: ignore[func-returns-value]


class Interrupted(FaultyStream):
    """Ctrl-C in the middle of a frame."""

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self.send(b"".join(buffers)[:20], NEVER)
        raise KeyboardInterrupt


def test_a_frame_that_was_interrupted_is_never_continued_by_another(make: MakePair) -> None:
    left, right = make()
    with closing(Connection(right, LIMIT)) as reader:
        sender = Connection(Interrupted(left), LIMIT)
        with pytest.raises(KeyboardInterrupt):
            sender.post(b"m", np.ones(100, np.uint8), 1)
        with pytest.raises(ConnectionError, match="interrupted"):  # the news that it is lost, say
            sender.post(b"m", np.ones(10, np.uint8), 1)
        closing_it = start(sender.close)
        with pytest.raises(ConnectionError, match="inside a frame"):
            received(reader)
        result(closing_it)


def test_an_outbox_is_never_idle_while_a_frame_waits_or_is_sent(make_unix: MakePair) -> None:
    """Else the next frame would be sent into the middle of this one."""
    left, right = make_unix()
    outbox, release, sent = Outbox(left, 4), threading.Event(), threading.Event()
    idle: list[bool] = []

    def look(frame: object, event: str, arg: object) -> Any:
        """Called before every line of the outbox's thread."""
        if release.is_set() and not sent.is_set():
            idle.append(outbox.is_idle)
        return look

    def wait() -> None:
        release.wait()

    threading.settrace(look)
    outbox.put(wait)
    threading.settrace(None)
    outbox.put(sent.set)
    release.set()
    assert sent.wait(scaled(10))
    outbox.close()
    for stream in (left, right):
        stream.close()
    assert idle
    assert not any(idle)


# -- open files --------------------------------------------------------------------------------


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


# -- writing a frame ---------------------------------------------------------------------------


class Written(FaultyStream):
    """Keeps what it is given to send."""

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream)
        self.pieces: list[Buffer] = []

    def send(self, data: Buffer, deadline: float) -> None:
        self.pieces.append(data)


@pytest.fixture
def written(make_unix: MakePair) -> Iterator[tuple[Connection, list[Buffer]]]:
    left, right = make_unix()
    stream = Written(left)
    with closing(Connection(stream, LIMIT)) as connection, closing(right):
        yield connection, stream.pieces


def test_small_parts_go_together_and_large_ones_alone_and_are_not_copied(
    written: tuple[Connection, list[Buffer]],
) -> None:
    connection, pieces = written
    parts = [memoryview(bytearray(noise(size))) for size in (3, 0, 70, KIB64, 20)]
    connection.send([b"before", b"m"], parts, KIB64 + 93)
    head, large, last = pieces
    assert head == glued((b"before", b"")) + lengths(1, KIB64 + 93) + b"m" + noise(3) + noise(70)
    assert np.shares_memory(np.frombuffer(large, np.uint8), np.frombuffer(parts[3], np.uint8))
    assert last == noise(20)


def test_many_small_parts_do_not_wait_for_the_end(
    written: tuple[Connection, list[Buffer]],
) -> None:
    part = memoryview(bytes(60_000))
    written[0].send([b"m"], [part] * 100, 60_000 * 100)
    assert max(map(len, written[1])) <= MIB + KIB64 + 13
    assert sum(map(len, written[1])) == 13 + 60_000 * 100


def test_parts_may_change_once_they_were_copied(written: tuple[Connection, list[Buffer]]) -> None:
    """What the ps pulls is copied under the lock of a block, and sent without it."""
    lent = np.zeros(300_000, np.uint8)
    writer: FrameWriter = written[0].frame(b"m", 200_010, lambda _: lent)
    small, large = (np.frombuffer(noise(size), np.uint8).copy() for size in (10, 200_000))
    for part in (small, large):
        copied = writer.copy(part)
        part[:] = 0
        writer.write(copied)
    writer.finish()
    assert b"".join(written[1]) == lengths(1, 200_010) + b"m" + noise(10) + noise(200_000)
    assert np.shares_memory(np.frombuffer(written[1][-1], np.uint8), lent)


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
