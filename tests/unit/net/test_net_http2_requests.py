"""Bytes of requests that have not ended are counted, and given back however the request ends."""

import time
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from helpers.memory_stream import MemoryStream
from ropewalk.cluster.access.principal import Principal
from ropewalk.net.http2.call import PREFIX
from ropewalk.net.http2.peer import Accepted, Peer

READER = Principal("reader")
FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x"),
          ("content-type", "application/grpc")]  # fmt: skip


class Server:
    """Lets every call in, and counts."""

    def __init__(self) -> None:
        self.methods = {"/a/B": lambda _: Accepted(lambda request: request, caller=READER)}
        self.most_bytes = 1000
        self.held = 0

    def let_in(self, peer: Peer, caller: Principal | None) -> bool:
        peer.trust(caller)
        return True

    def hold(self, _: Principal | None, num_bytes: int) -> bool:
        self.held += num_bytes
        return True

    def release(self, _: Principal | None, num_bytes: int) -> None:
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
