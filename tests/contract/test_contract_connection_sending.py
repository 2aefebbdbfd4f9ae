"""Sending on a connection: in the background, by pieces, and never into the middle of a frame."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

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
    next_message,
    noise,
    received,
)
from helpers.faulty_stream import FaultyStream
from helpers.streams import (
    result,
    start,
)
from helpers.waiting import scaled
from ropewalk.net.connection import Connection, FrameWriter
from ropewalk.net.stream import NEVER, Buffer, ByteStream, Outbox

pytestmark = pytest.mark.timeout(60)


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
    # A stream that gives up what it has not sent yet may end before the frame begins.
    with contextlib.suppress(OSError):
        assert received(pair[1]) is None
    assert ended(pair[1])
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
