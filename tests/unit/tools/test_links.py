"""The network that tests of faults put between tasks."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from helpers.links import Links, dialer_of
from helpers.waiting import wait_until

Pair = tuple[Links, socket.socket, socket.socket]
SHORT_S = 0.1


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Links, and both ends of a connection from ``a`` (this process) to ``b``."""
    with socket.create_server(("127.0.0.1", 0)) as inner:
        outer = ("127.0.0.2", inner.getsockname()[1])
        links = Links({"b": (outer, inner.getsockname())}, lambda: {"a": os.getpid()})
        with closing(links), socket.create_connection(outer, 10) as dialled:
            accepted, _ = inner.accept()
            with accepted:
                accepted.settimeout(10)
                yield links, dialled, accepted


def comes(end: socket.socket, within_s: float = SHORT_S) -> bytes | None:
    end.settimeout(within_s)
    try:
        return end.recv(100)
    except TimeoutError:
        return None


def is_over(end: socket.socket) -> bool:
    try:
        return comes(end, 10) == b""
    except ConnectionResetError:
        return True


def test_what_is_held_back_one_way_comes_late_and_the_other_way_goes_on(pair: Pair) -> None:
    links, dialled, accepted = pair
    links.hold("a", "b")
    dialled.sendall(b"request")
    accepted.sendall(b"answer")
    assert comes(dialled, 10) == b"answer"
    assert comes(accepted) is None
    links.heal()
    assert comes(accepted, 10) == b"request"


def test_what_is_lost_ends_the_connection(pair: Pair) -> None:
    links, dialled, accepted = pair
    links.hold("b", "a")
    accepted.sendall(b"answer")
    assert comes(dialled) is None
    links.heal(loses=True)
    assert is_over(dialled)
    wait_until(lambda: links.cut("a", "b") == 0, 10)


def test_a_connection_that_is_cut_ends_on_both_sides(pair: Pair) -> None:
    links, dialled, accepted = pair
    assert links.cut("b", "a") == 1
    assert is_over(dialled)
    assert is_over(accepted)


def test_a_piece_is_delivered_as_much_later_as_asked_for(pair: Pair) -> None:
    links, dialled, accepted = pair
    links.delay("a", "b", 3 * SHORT_S)
    dialled.sendall(b"late")
    assert comes(accepted) is None
    assert comes(accepted, 10) == b"late"


def test_an_end_is_held_back_as_well(pair: Pair) -> None:
    links, dialled, accepted = pair
    links.hold("a", "b")
    dialled.close()
    assert comes(accepted) is None
    links.heal()
    assert comes(accepted, 10) == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_who_dials_is_known_by_its_socket(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = host, server.getsockname()[1]
        with socket.create_connection(address, 10) as client, server.accept()[0] as accepted:
            peer = accepted.getpeername()
            assert dialer_of(peer, {"other": 1, "me": os.getpid()}) == "me"
            assert dialer_of(peer, {"other": 1 << 30}) == ""
            client.close()
            assert dialer_of(peer, {"me": os.getpid()}) == ""
