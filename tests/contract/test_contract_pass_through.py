"""gRPC's connections are handed through to its server."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from helpers.hosts import (
    PREFACE,
    is_shown_out,
    tcp_sockets,
)
from helpers.streams import own_threads
from helpers.waiting import scaled, wait_until
from windlass.net.pass_through import PassThrough

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def passing() -> Iterator[tuple[PassThrough, socket.socket]]:
    """With two connections at most, and the socket that the gRPC server would listen at."""
    made = PassThrough(2)
    with socket.socket(socket.AF_UNIX) as inner:

        def add_port(address: str) -> int:
            inner.bind(address.removeprefix("unix:"))
            return 1

        made.listen(add_port)
        inner.listen()
        yield made, inner
        made.stop()
    wait_until(lambda: "grpc" not in own_threads(), 5)


@pytest.mark.parametrize("splices", [True, False])
def test_each_side_may_end_before_the_other(
    passing: tuple[PassThrough, socket.socket], splices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not splices:
        monkeypatch.delattr(os, "splice", raising=False)
    client, ours = tcp_sockets()
    passing[0].accept(ours, b"PRI ")
    server, _ = passing[1].accept()
    with client, server:
        client.sendall(b"request")
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: server.recv(100), b"")) == b"PRI request"
        server.sendall(b"answer")
        server.close()
        assert b"".join(iter(lambda: client.recv(100), b"")) == b"answer"
    wait_until(lambda: "grpc" not in own_threads(), 5)
    assert ours.fileno() < 0


@pytest.mark.parametrize("gone", ["client", "server"])
def test_the_end_of_one_side_is_the_end_of_the_other(
    passing: tuple[PassThrough, socket.socket], gone: str
) -> None:
    client, ours = tcp_sockets()
    passing[0].accept(ours, b"PRI ")
    server, _ = passing[1].accept()
    ends = {"client": client, "server": server}
    ends.pop(gone).close()
    [(_, left)] = ends.items()
    with left:
        left.settimeout(scaled(5))
        with contextlib.suppress(OSError):
            while left.recv(100):
                pass


def test_without_its_grpc_server_a_client_is_refused_and_does_not_hang() -> None:
    client, ours = tcp_sockets()
    with client:
        PassThrough(1).accept(ours, b"PRI ")
        assert is_shown_out(client)
    wait_until(lambda: "grpc" not in own_threads(), 5)


def admitted(passing: tuple[PassThrough, socket.socket], ours: socket.socket) -> socket.socket:
    """The inner end of a connection of which a call was let in."""
    passing[0].accept(ours, PREFACE)
    inner, name = passing[1].accept()
    origin = passing[0].origin_of(f"unix-abstract:{name[1:].decode()}")
    assert origin is not None
    origin.is_admitted = True
    return inner


def test_no_more_is_handed_through_than_was_said(
    passing: tuple[PassThrough, socket.socket],
) -> None:
    pairs = [tcp_sockets() for _ in range(3)]
    inner = admitted(passing, pairs[0][1])
    other = admitted(passing, pairs[1][1])
    with pytest.raises(ConnectionError, match="more than 2"):
        passing[0].accept(pairs[2][1], b"PRI ")
    pairs[0][0].close()
    inner.close()
    wait_until(lambda: pairs[0][1].fileno() < 0, 5)
    passing[0].accept(pairs[2][1], b"PRI ")
    for client, _ in pairs:
        client.close()
    other.close()


def test_who_was_not_let_in_makes_room_for_the_next_one(
    passing: tuple[PassThrough, socket.socket],
) -> None:
    talker, *silent = [tcp_sockets() for _ in range(3)]
    inner = admitted(passing, talker[1])
    for _, ours in silent:
        passing[0].accept(ours, b"PRI ")
    assert is_shown_out(silent[0][0])
    talker[0].sendall(b"still here")
    inner.settimeout(scaled(5))
    with inner:
        heard = b""
        while not heard.endswith(b"still here"):
            heard += inner.recv(10_000)
    for client, _ in (talker, *silent):
        client.close()
