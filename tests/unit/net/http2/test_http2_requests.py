"""Bytes of requests that have not ended are counted, and given back however the request ends."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived
from hypothesis import given
from hypothesis import strategies as st

from helpers.memory_stream import MemoryStream
from ropewalk.net.http2 import frames
from ropewalk.net.http2.call import PREFIX
from ropewalk.net.http2.frames import PREFACE, Code, Http2Error, Kind, Setting, encode_fields
from ropewalk.net.http2.peer import Accepted, Peer
from ropewalk.net.http2.shares import Caller

READER = "reader"
FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x"),
          ("content-type", "application/grpc")]  # fmt: skip


class Server:
    """Lets every call in, and counts."""

    def __init__(self) -> None:
        self.methods = {"/a/B": lambda _: Accepted(lambda request: request, caller=READER)}
        self.most_bytes = 1000
        self.held = 0

    def let_in(self, peer: Peer, accepted: Accepted) -> bool:
        peer.trust(accepted.caller)
        return True

    def run(self, _: Caller, work: Callable[[], None], *, renews: bool) -> bool:
        work()
        return True

    def worked(self, peer: Peer, work_s: float) -> None:
        pass

    def hold(self, _: Caller, num_bytes: int) -> bool:
        self.held += num_bytes
        return True

    def release(self, _: Caller, num_bytes: int) -> None:
        self.held -= num_bytes


@pytest.mark.parametrize("how", ["late", "reset", "lost"])
def test_a_request_that_does_not_end_gives_its_bytes_back(how: str) -> None:
    server, stream = Server(), MemoryStream()
    peer = Peer(cast(Any, server), cast(Any, stream), b"", None)
    peer.begin()
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(1, FIELDS)
    client.send_data(1, PREFIX.pack(0, 500) + bytes(100))
    peer.link.reading.feed(client.data_to_send())
    assert server.held == PREFIX.size + 100
    if how == "late":
        peer.end_late_requests(time.monotonic() + 60)
    elif how == "reset":
        client.reset_stream(1)
        peer.link.reading.feed(client.data_to_send())
    else:
        peer.link.fail("the connection is lost")
    assert server.held == 0


def test_a_request_is_refused_where_it_announces_more_than_its_caller_may_send() -> None:
    server, stream = Server(), MemoryStream()
    server.methods = {
        "/a/B": lambda _: Accepted(lambda request: request, caller=READER, most_bytes=499)
    }
    peer = Peer(cast(Any, server), cast(Any, stream), b"", None)
    peer.begin()
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(1, FIELDS)
    client.send_data(1, PREFIX.pack(0, 500))
    peer.link.reading.feed(client.data_to_send())
    (answer,) = (
        dict(cast(Any, event.headers))
        for event in client.receive_data(stream.take_sent())
        if isinstance(event, ResponseReceived)
    )
    assert answer["grpc-status"] == "8"
    assert server.held == 0


_NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 7])
_FRAMES = st.one_of(
    st.builds(
        lambda number, flags, fields: frames.frame(Kind.HEADERS, flags, number, fields),
        _NUMBERS,
        st.sampled_from([0, frames.END_HEADERS, frames.END_HEADERS | frames.END_STREAM]),
        st.sampled_from([encode_fields(FIELDS), encode_fields(FIELDS[:2]), b"", b"\xff\xff"]),
    ),
    st.builds(
        lambda number, flags, data: frames.frame(Kind.DATA, flags, number, data),
        _NUMBERS,
        st.sampled_from([0, frames.END_STREAM, frames.PADDED]),
        st.sampled_from([b"", PREFIX.pack(0, 3) + b"abc", PREFIX.pack(0, 900), PREFIX.pack(1, 2)]),
    ),
    st.builds(frames.reset, _NUMBERS, st.sampled_from(Code)),
    st.builds(frames.window_update, _NUMBERS, st.sampled_from([0, 1, 2**31 - 1])),
    st.sampled_from([{}, {Setting.INITIAL_WINDOW_SIZE: 0}, {Setting.MAX_FRAME_SIZE: 1}]).map(
        frames.settings
    ),
    st.binary(max_size=20),
)


@given(st.lists(_FRAMES, max_size=20), st.integers(1, 50))
def test_whatever_comes_is_answered_or_ends_the_connection_and_nothing_stays_counted(
    sent: list[bytes], piece: int
) -> None:
    server = Server()
    peer = Peer(cast(Any, server), cast(Any, MemoryStream()), b"", None)
    peer.begin()
    data = PREFACE + b"".join(sent)
    with contextlib.suppress(Http2Error):
        for at in range(0, len(data), piece):
            peer.link.reading.feed(data[at : at + piece])
    peer.link.fail("the connection is lost")
    assert server.held == 0
    assert not peer.is_busy()
