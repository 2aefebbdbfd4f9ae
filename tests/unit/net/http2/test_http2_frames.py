"""Our HTTP/2 against the library h2 at the other side, in memory; and frames as bytes."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from helpers.memory_stream import MemoryStream
from ropewalk.net.http2 import frames
from ropewalk.net.http2.call import PREFIX, Status, check_answer, request_fields, timeout_s
from ropewalk.net.http2.frames import (
    Code,
    FieldsDecoder,
    FrameHead,
    FrameReader,
    Http2Error,
    Kind,
    encode_fields,
)
from ropewalk.net.http2.link import Http2Link
from ropewalk.net.http2.protocol import Http2Stream, Limits
from ropewalk.net.http2.reading import NEVER

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x")]
ANSWER = [(":status", "200")]
LIMITS = Limits(window_bytes=70_000, frame_bytes=20_000, streams=3)


@dataclass
class Heard:
    """A handler that notes what happens."""

    opened_: list[Http2Stream] = field(default_factory=list)
    progress: list[int] = field(default_factory=list)

    def opened(self, stream: Http2Stream) -> None:
        self.opened_.append(stream)

    def progressed(self, stream: Http2Stream) -> None:
        self.progress.append(stream.number)


class Pair:
    """Our server, and a client of the library."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.stream = MemoryStream()
        self.heard = Heard()
        self.link = Http2Link(self.stream, limits, self.heard)
        self.link.begin()
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.events: list[Any] = []
        self.move()

    def move(self) -> None:
        """Bytes both ways, until there are none."""
        while True:
            there, back = self.client.data_to_send(), self.stream.take_sent()
            if not there and not back:
                return
            if there:
                self.link.reading.feed(there)
            self.events += self.client.receive_data(back)

    def call(self, *, end: bool = False) -> Http2Stream:
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, REQUEST, end_stream=end)
        self.move()
        return self.heard.opened_[-1]

    def of_kind(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def taken(link: Http2Link, stream: Http2Stream) -> bytes:
    """All that has come of a stream."""
    data = b""
    while stream.pieces:
        data += link.take(stream, 0.0)
    return data


def test_a_call_goes_there_and_back() -> None:
    pair = Pair()
    stream = pair.call()
    assert stream.fields[:1] == [(":method", "POST")]
    pair.client.send_data(stream.number, b"question", end_stream=True)
    pair.move()
    assert taken(pair.link, stream) == b"question"
    assert stream.has_ended
    pair.link.send_answer_soon(stream, ANSWER, [b"ans", b"wer"], [("grpc-status", "0")], NEVER)
    pair.move()
    assert [event.data for event in pair.of_kind(DataReceived)] == [b"answer"]
    assert pair.of_kind(ResponseReceived)
    assert pair.of_kind(TrailersReceived)[0].headers == [("grpc-status", "0")]
    assert pair.of_kind(StreamEnded)
    assert not pair.link.streams


@pytest.mark.parametrize("piece", [1, 7, 10_000, 2**40])
def test_a_large_body_arrives_whole_through_small_windows(piece: int) -> None:
    pair = Pair()
    stream = pair.call()
    body = bytes(range(256)) * 1500
    left, got = body, b""
    while left:
        room = min(pair.client.local_flow_control_window(stream.number), 20_000)
        pair.client.send_data(stream.number, left[:room])
        left = left[room:]
        data = pair.client.data_to_send()
        for at in range(0, len(data), piece):
            pair.link.reading.feed(data[at : at + piece])
        got += taken(pair.link, stream)
        pair.events += pair.client.receive_data(pair.stream.take_sent())
    assert got == body
    assert pair.of_kind(WindowUpdated)


def test_bytes_are_read_to_where_they_belong() -> None:
    pair = Pair()
    stream = pair.call()
    body = bytes(range(250)) * 60
    pair.client.send_data(stream.number, body, pad_length=9)
    pair.client.send_data(stream.number, b"end", end_stream=True)
    pair.stream.put(pair.client.data_to_send())
    pair.stream.piece = 4000
    memory, filled = memoryview(bytearray(20_000)), 0
    while count := pair.link.take_into(stream, memory[filled:], NEVER):
        filled += count
    assert bytes(memory[:filled]) == body + b"end"


def test_our_body_waits_for_the_windows_of_the_client() -> None:
    pair = Pair()
    stream = pair.call(end=True)
    body = bytes(range(200)) * 1000  # three windows
    got = b""

    def more() -> bytes:
        """The client reads when we wait."""
        nonlocal got
        for event in pair.client.receive_data(pair.stream.take_sent()):
            if isinstance(event, DataReceived):
                got += event.data
                pair.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        return pair.client.data_to_send()

    pair.link.send_fields(stream, ANSWER, NEVER)
    pair.stream.more = more
    pair.link.send_data(stream, [body[:70], body[70:]], NEVER)
    more()
    assert got == body


def test_a_client_that_gives_no_window_lets_us_wait_until_the_deadline() -> None:
    pair = Pair()
    stream = pair.call(end=True)
    with pytest.raises(TimeoutError):
        pair.link.send_data(stream, [bytes(100_000)], 0.0)
    assert not pair.link.broken  # it may read later
    assert not pair.link.send_data_now(stream, bytes(100_000))


def test_a_smaller_window_counts_for_streams_that_are_open() -> None:
    pair = Pair()
    stream = pair.call(end=True)
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    pair.move()
    assert stream.window == 10
    assert pair.link.state.room_of(stream) == 10


def test_pings_and_settings_are_acknowledged() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.move()
    assert pair.of_kind(PingAckReceived)[0].ping_data == b"12345678"


def test_fields_of_several_frames_are_one_block() -> None:
    pair = Pair()
    number = pair.client.get_next_available_stream_id()
    pair.client.max_outbound_frame_size = 16_384
    value = "é" * 6000
    block = encode_fields([*REQUEST, ("x", value)])
    first, rest = block[:10], block[10:]
    pair.link.reading.feed(
        frames.frame(Kind.HEADERS, 0, number, first)
        + frames.frame(Kind.CONTINUATION, 0, number, rest[:5000])
        + frames.frame(Kind.CONTINUATION, frames.END_HEADERS, number, rest[5000:])
    )
    assert dict(pair.heard.opened_[0].fields)["x"].encode("latin-1").decode() == value


def test_padding_and_priority_of_fields_are_passed_over() -> None:
    pair = Pair()
    block = encode_fields(REQUEST)
    flags = frames.END_HEADERS | frames.PADDED | frames.HAS_PRIORITY
    payload = bytes([4]) + bytes(5) + block + bytes(4)
    pair.link.reading.feed(frames.frame(Kind.HEADERS, flags, 1, payload))
    assert pair.heard.opened_[0].fields == REQUEST


def test_our_long_fields_are_cut_into_frames() -> None:
    pair = Pair()
    stream = pair.call(end=True)
    pair.link.send_fields(stream, [*ANSWER, ("x", "y" * 40_000)], NEVER, end=True)
    pair.move()
    assert ("x", "y" * 40_000) in pair.of_kind(ResponseReceived)[0].headers


def test_one_stream_too_many_is_refused_and_the_others_go_on() -> None:
    pair = Pair()
    first = pair.call()
    pair.call()
    pair.call()
    pair.link.reading.feed(headers(7))
    assert pair.stream.take_sent() == frames.reset(7, Code.REFUSED_STREAM)
    assert len(pair.heard.opened_) == 3
    pair.link.send_fields(first, ANSWER, NEVER)
    pair.move()
    assert pair.of_kind(ResponseReceived)


def test_a_reset_ends_the_stream_alone() -> None:
    pair = Pair()
    first, second = pair.call(), pair.call()
    pair.client.reset_stream(first.number)
    pair.move()
    assert first.broken
    with pytest.raises(ConnectionError, match="ended the call"):
        pair.link.take(first, NEVER)
    assert not second.broken
    pair.link.reset(second, Code.CANCEL, "cancelled")
    pair.move()
    assert [event.stream_id for event in pair.of_kind(StreamReset)] == [second.number]


def test_after_a_farewell_no_stream_is_opened_and_the_others_go_on() -> None:
    pair = Pair()
    stream = pair.call()
    pair.link.go_away()
    pair.link.go_away()
    late = frames.frame(Kind.HEADERS, frames.END_HEADERS, 3, encode_fields(REQUEST))
    pair.link.reading.feed(late)
    assert len(pair.heard.opened_) == 1
    assert pair.stream.take_sent() == frames.go_away(stream.number, Code.NO_ERROR)
    pair.link.send_fields(stream, ANSWER, NEVER)
    pair.move()
    assert pair.of_kind(ResponseReceived)


def test_a_peer_that_reads_nothing_is_shown_out() -> None:
    pair = Pair()
    pair.stream.takes = 0
    pings = frames.frame(Kind.PING, 0, 0, bytes(8)) * 10_000
    with pytest.raises(Http2Error, match="reads none"):
        pair.link.reading.feed(pings)
    assert pair.link.broken


def headers(number: int, *, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(Kind.HEADERS, flags, number, encode_fields(REQUEST))


VIOLATIONS: dict[str, tuple[bytes, Code]] = {
    "no-preface": (b"", Code.PROTOCOL_ERROR),
    "even-stream": (headers(2), Code.PROTOCOL_ERROR),
    "fields-of-no-stream": (headers(0), Code.PROTOCOL_ERROR),
    "data-of-no-stream": (frames.frame(Kind.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data-of-an-idle-stream": (frames.frame(Kind.DATA, 0, 5, b"x"), Code.PROTOCOL_ERROR),
    "data-too-long": (headers(1) + frames.head(20_001, Kind.DATA, 0, 1), Code.FRAME_SIZE_ERROR),
    "fields-too-long": (frames.head(40_000, Kind.HEADERS, 4, 1), Code.FRAME_SIZE_ERROR),
    "padding-beyond-the-frame": (
        headers(1) + frames.frame(Kind.DATA, frames.PADDED, 1, bytes([9, 1])),
        Code.PROTOCOL_ERROR,
    ),
    "padding-of-fields": (
        frames.frame(Kind.HEADERS, frames.PADDED | 4, 1, bytes([9, 1])),
        Code.PROTOCOL_ERROR,
    ),
    "empty-padded-fields": (frames.frame(Kind.HEADERS, frames.PADDED | 4, 1), Code.PROTOCOL_ERROR),
    "unreadable-fields": (frames.frame(Kind.HEADERS, 4, 1, b"\xff\xff"), Code.COMPRESSION_ERROR),
    "too-many-fields": (
        frames.frame(Kind.HEADERS, 4, 1, encode_fields([("x", "y" * 20_000)])),
        Code.COMPRESSION_ERROR,
    ),
    "frame-within-fields": (
        headers(1, flags=0) + frames.frame(Kind.PING, 0, 0, bytes(8)),
        Code.PROTOCOL_ERROR,
    ),
    "continuation-of-nothing": (frames.frame(Kind.CONTINUATION, 4, 1, b""), Code.PROTOCOL_ERROR),
    "fields-without-end": (
        headers(1, flags=0) + frames.frame(Kind.CONTINUATION, 0, 1, bytes(30_000)) * 3,
        Code.ENHANCE_YOUR_CALM,
    ),
    "short-ping": (frames.frame(Kind.PING, 0, 0, b"x"), Code.FRAME_SIZE_ERROR),
    "short-reset": (headers(1) + frames.frame(Kind.RST_STREAM, 0, 1, b"x"), Code.FRAME_SIZE_ERROR),
    "settings-of-seven-bytes": (
        frames.frame(Kind.SETTINGS, 0, 0, bytes(7)),
        Code.FRAME_SIZE_ERROR,
    ),
    "a-window-that-overflows": (
        frames.window_update(0, frames.MAX_WINDOW),
        Code.FLOW_CONTROL_ERROR,
    ),
    "a-stream's-window-that-overflows": (
        headers(1) + frames.window_update(1, frames.MAX_WINDOW),
        Code.FLOW_CONTROL_ERROR,
    ),
    "an-initial-window-too-large": (
        frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 2**32 - 1}),
        Code.FLOW_CONTROL_ERROR,
    ),
    "frames-too-small": (
        frames.settings({frames.Setting.MAX_FRAME_SIZE: 1}),
        Code.PROTOCOL_ERROR,
    ),
    "a-push": (frames.frame(Kind.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "more-than-the-window": (
        headers(1) + frames.frame(Kind.DATA, 0, 1, bytes(20_000)) * 4,
        Code.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_ends_the_connection_and_says_its_code(name: str) -> None:
    data, code = VIOLATIONS[name]
    stream = MemoryStream()
    link = Http2Link(stream, LIMITS, Heard())
    link.begin()
    stream.take_sent()
    with pytest.raises(Http2Error) as caught:
        link.reading.feed(frames.PREFACE + data if data else b"GET / HTTP/1.1\r\n")
    assert caught.value.code is code
    said = stream.take_sent()
    farewell = said[said.rindex(frames.head(8, Kind.GOAWAY, 0, 0)) :]
    assert int.from_bytes(farewell[13:17]) == code


def test_frames_of_unknown_types_and_priorities_are_passed_over() -> None:
    pair = Pair()
    unknown = (4).to_bytes(3) + bytes([99, 0]) + bytes(4) + b"what"
    pair.link.reading.feed(unknown + frames.frame(Kind.PRIORITY, 0, 1, bytes(5)))
    assert pair.call()


def test_a_stranger_has_so_many_frames_and_no_more() -> None:
    pair = Pair()
    pair.link.state.frames_left, pair.link.state.is_trusted = 5, False
    ping = frames.frame(Kind.PING, 0, 0, bytes(8))
    opening = frames.window_update(0, 1)
    pair.link.reading.feed(ping * 3 + opening * 2)
    with pytest.raises(Http2Error, match="too many frames"):
        pair.link.reading.feed(opening)


@given(st.data())
def test_no_bytes_do_more_than_end_the_connection(data: st.DataObject) -> None:
    kinds = st.sampled_from([*range(10), 77])
    one = st.builds(
        lambda kind, flags, stream, payload: (
            len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
        ),
        kinds,
        st.integers(0, 255),
        st.integers(0, 5),
        st.one_of(st.binary(max_size=40), st.just(encode_fields(REQUEST))),
    )
    sent = b"".join(data.draw(st.lists(one, max_size=12)))
    pair = Pair()
    with contextlib.suppress(Http2Error):
        for at in range(0, len(sent), cut := data.draw(st.integers(1, 60))):
            pair.link.reading.feed(sent[at : at + cut])


# -- the client --------------------------------------------------------------------------------


class Served:
    """Our client, and a server of the library."""

    def __init__(self) -> None:
        self.stream = MemoryStream()
        self.link = Http2Link(self.stream, LIMITS)
        self.link.begin()
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.server.initiate_connection()
        self.call = self.link.open(request_fields("/a/B", "http", "host:1", "me"), NEVER)
        self.move()

    def move(self) -> None:
        while True:
            there, back = self.stream.take_sent(), self.server.data_to_send()
            if not there and not back:
                return
            self.server.receive_data(there)
            if back:
                self.link.reading.feed(back)


ENDS: dict[str, tuple[Callable[[H2Connection], object], str]] = {
    "well": (lambda server: server.send_headers(1, [*ANSWER, ("grpc-status", "0")]), ""),
    "refused": (
        lambda server: server.send_headers(
            1, [*ANSWER, ("grpc-status", "16"), ("grpc-message", "who%20are you")]
        ),
        "who are you",
    ),
    "no-message": (lambda server: server.send_headers(1, [*ANSWER, ("grpc-status", "9")]), "9"),
    "not-found": (lambda server: server.send_headers(1, [(":status", "404")]), "HTTP status '404'"),
    "a-page": (
        lambda server: server.send_headers(1, [*ANSWER, ("content-type", "text/html")]),
        "'text/html', not gRPC",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_a_server_answers_is_looked_at(name: str) -> None:
    answer, says = ENDS[name]
    served = Served()
    answer(served.server)
    served.move()
    if not says:
        check_answer(served.call)
        return
    with pytest.raises(ConnectionError, match=says):
        check_answer(served.call)


def test_a_server_that_goes_away_takes_the_calls_it_has_not_begun() -> None:
    served = Served()
    served.server.close_connection(last_stream_id=0)
    served.move()
    with pytest.raises(ConnectionError, match="goes away"):
        served.link.take(served.call, NEVER)


def test_the_end_of_the_connection_ends_its_calls() -> None:
    served = Served()
    served.stream.end()
    with pytest.raises(ConnectionError, match="closed"):
        served.link.take(served.call, NEVER)
    assert served.link.broken


# -- small parts -------------------------------------------------------------------------------


@dataclass
class Frames:
    """What a reader has taken out."""

    seen: list[Any] = field(default_factory=list)

    def on_control(self, head: FrameHead, payload: bytes) -> None:
        self.seen.append((head, payload))

    def on_data_begin(self, head: FrameHead) -> None:
        self.seen.append([head, b""])

    def on_data(self, piece: memoryview) -> None:
        self.seen[-1][1] += bytes(piece)

    def on_data_end(self) -> None:
        self.seen.append("end")


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=50), st.integers(-1, 20)),
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_however_bytes_are_cut_the_frames_are_the_same(
    wanted: list[tuple[Kind, bytes, int]], cut: int
) -> None:
    sent = b""
    for kind, payload, padding in wanted:
        if kind is Kind.DATA and padding >= 0:
            padded = bytes([padding]) + payload + bytes(padding)
            sent += frames.frame(kind, frames.PADDED, 1, padded)
        else:
            sent += frames.frame(kind, 0, 1, payload)
    whole, cut_up = Frames(), Frames()
    FrameReader(whole).feed(sent)
    reader = FrameReader(cut_up)
    for at in range(0, len(sent), cut):
        reader.feed(sent[at : at + cut])
    assert cut_up.seen == whole.seen
    found = [each[1] for each in whole.seen if each != "end"]
    assert found == [payload for _, payload, _ in wanted]


def test_fields_are_sent_without_a_table() -> None:
    decoder = FieldsDecoder(1000)
    blocks = [encode_fields([("x-key", "v1"), ("y", str(n))]) for n in range(3)]
    for number in (2, 0, 1):  # in any order
        assert decoder.read(blocks[number]) == [("x-key", "v1"), ("y", str(number))]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5S", 5), ("100m", 0.1), ("2H", 7200), ("", None), ("S", None), ("-1S", None), ("5x", None),
     ("123456789S", None), ("³S", None)],
)  # fmt: skip
def test_timeouts_are_read_as_grpc_writes_them(text: str, seconds: float | None) -> None:
    assert timeout_s(text) == (pytest.approx(seconds) if seconds is not None else None)


def test_a_status_is_trailers() -> None:
    fields = dict(Status(3, "größer\n", b"\0\1").as_fields())
    assert fields == {
        "grpc-status": "3",
        "grpc-message": "gr%C3%B6%C3%9Fer%0A",
        "grpc-status-details-bin": "AAE",
    }
    assert PREFIX.size == 5
