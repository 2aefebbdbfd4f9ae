"""Answers wait for the peer without a thread: the library h2 takes them as it likes, in memory."""

import time
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from helpers.memory_stream import MemoryStream
from ropewalk.net.http2.frames import Code
from ropewalk.net.http2.link import Http2Link
from ropewalk.net.http2.protocol import Http2Stream, Limits
from ropewalk.net.http2.reading import NEVER

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x")]
ANSWER = [(":status", "200")]
STATUS = [("grpc-status", "0")]


class Calls:
    """Notes the calls that are opened."""

    def __init__(self) -> None:
        self.streams: list[Http2Stream] = []

    def opened(self, stream: Http2Stream) -> None:
        self.streams.append(stream)

    def progressed(self, stream: Http2Stream) -> None:
        pass


class Client:
    """A client of the library whose streams begin with windows of ``window`` bytes."""

    def __init__(self, window: int) -> None:
        self._socket = MemoryStream()
        self._calls = Calls()
        self.link = Http2Link(self._socket, Limits(streams=8), self._calls)
        self.link.begin()
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.events: list[Any] = []
        self.move()

    def move(self) -> None:
        """Move bytes both ways, until there are none."""
        while (there := self.h2.data_to_send()) or self._socket.sent:
            if there:
                self.link.reading.feed(there)
            self.events += self.h2.receive_data(self._socket.take_sent())

    def call(self, *, end: bool = True) -> Http2Stream:
        """Call something."""
        self.h2.send_headers(self.h2.get_next_available_stream_id(), REQUEST, end_stream=end)
        self.move()
        return self._calls.streams[-1]

    def answer(self, stream: Http2Stream, body: bytes, until: float = NEVER) -> None:
        """Have our side answer."""
        self.link.send_answer_soon(stream, ANSWER, [body], STATUS, until)
        self.move()

    def fill_the_socket(self) -> None:
        """Have the socket take no more."""
        self._socket.takes = 0

    def empty_the_socket(self) -> None:
        """Have the socket take everything."""
        self._socket.takes = 2**62
        self.link.flush_now()
        self.move()

    def fail_and_reset(self) -> None:
        """Call, have the call fail, and give it up, all without reading."""
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, REQUEST, end_stream=True)
        self.link.reading.feed(self.h2.data_to_send())
        self.link.send_answer_soon(self._calls.streams[-1], ANSWER, [], STATUS, NEVER)
        self.h2.reset_stream(number)
        self.link.reading.feed(self.h2.data_to_send())

    def body_of(self, stream: Http2Stream) -> bytes:
        """What has come of an answer."""
        came = (each for each in self.events if isinstance(each, DataReceived))
        return b"".join(each.data for each in came if each.stream_id == stream.number)

    def ended(self, kind: Any = StreamEnded) -> list[int]:
        """The streams with an event, in order."""
        return [each.stream_id for each in self.events if isinstance(each, kind)]


def test_an_answer_waits_for_its_window_and_holds_up_no_other() -> None:
    client = Client(window=0)
    first, second = client.call(), client.call()
    client.answer(first, b"first")
    client.answer(second, b"second")
    assert client.link.answers.num_bytes > len(b"first" + b"second")
    assert not client.ended()
    client.h2.increment_flow_control_window(100, second.number)
    client.move()
    assert client.body_of(second) == b"second"
    assert client.ended() == client.ended(TrailersReceived) == [second.number]
    client.h2.increment_flow_control_window(3, first.number)
    client.move()
    assert client.body_of(first) == b"fir"
    client.h2.increment_flow_control_window(2, first.number)
    client.move()
    assert client.body_of(first) == b"first"
    assert client.ended() == [second.number, first.number]
    assert not client.link.answers
    assert client.link.answers.num_bytes == 0
    assert not client.link.streams


def test_an_empty_answer_needs_no_window() -> None:
    client = Client(window=0)
    stream = client.call()
    client.answer(stream, b"")
    assert client.ended() == [stream.number]


def test_an_answer_whose_call_was_reset_is_forgotten() -> None:
    client = Client(window=0)
    stream = client.call()
    client.answer(stream, bytes(1000))
    client.h2.reset_stream(stream.number)
    client.move()
    assert not client.link.answers
    assert client.link.answers.num_bytes == 0


def test_answers_are_forgotten_with_their_calls_while_the_socket_is_full() -> None:
    client = Client(window=70_000)
    client.answer(client.call(), b"")
    client.fill_the_socket()
    for _ in range(100):
        client.fail_and_reset()
    assert client.link.answers.num_bytes < 10_000


def test_a_large_answer_leaves_the_count_as_the_socket_takes_it() -> None:
    client = Client(window=2**31 - 1)
    client.h2.increment_flow_control_window(2**30)
    stream = client.call()
    client.fill_the_socket()
    client.link.send_answer_soon(stream, ANSWER, [bytes(10_000_000)], STATUS, NEVER)
    assert client.link.answers.num_bytes > 9_000_000
    client.empty_the_socket()
    assert client.body_of(stream) == bytes(10_000_000)
    assert client.link.answers.num_bytes == 0


def test_an_answer_that_is_not_taken_in_time_ends_its_call_alone() -> None:
    client = Client(window=0)
    late, other = client.call(), client.call()
    client.answer(late, bytes(10), until=time.monotonic() - 1)
    client.answer(other, b"other")
    client.link.give_up_late_answers()
    client.h2.increment_flow_control_window(100, other.number)
    client.move()
    assert client.ended(StreamReset) == [late.number]
    assert client.body_of(other) == b"other"


def test_a_client_that_still_sends_is_stopped_after_the_answer() -> None:
    client = Client(window=1000)
    stream = client.call(end=False)
    client.answer(stream, b"enough")
    assert client.body_of(stream) == b"enough"
    resets = [each for each in client.events if isinstance(each, StreamReset)]
    assert [(each.stream_id, each.error_code) for each in resets] == [
        (stream.number, Code.NO_ERROR)
    ]


def test_a_call_that_is_over_cannot_be_answered() -> None:
    client = Client(window=1000)
    stream = client.call()
    client.h2.reset_stream(stream.number)
    client.move()
    with pytest.raises(OSError, match="the peer has ended the call"):
        client.link.send_answer_soon(stream, ANSWER, [b"x"], STATUS, NEVER)


@given(
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 40_000), max_size=20),
    window=st.integers(0, 70_000),
)
def test_whatever_the_windows_each_answer_arrives_whole(
    sizes: list[int], steps: list[int], window: int
) -> None:
    client = Client(window)
    bodies = {client.call(): bytes([number]) * size for number, size in enumerate(sizes)}
    for stream, body in bodies.items():
        client.answer(stream, body)
    streams = list(bodies)
    for number, step in enumerate(steps):
        stream = streams[number % len(streams)]
        if stream.number not in client.ended():
            client.h2.increment_flow_control_window(step, stream.number)
            client.move()
    client.h2.increment_flow_control_window(1_000_000)
    for stream in streams:
        if stream.number not in client.ended():
            client.h2.increment_flow_control_window(100_000, stream.number)
            client.move()
    assert {stream: client.body_of(stream) for stream in streams} == bodies
    assert client.link.answers.num_bytes == 0
