"""A relay: bytes both ways, each direction with an end of its own, and an error ends both."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from helpers.calls import Calls
from helpers.waiting import scaled
from ropewalk.net.routes import break_off, relay


class Relayed:
    """Two peers with a relay between them, which runs in a thread."""

    def __init__(self, stack: ExitStack) -> None:
        self.left, one = map(stack.enter_context, socket.socketpair())
        self.right, other = map(stack.enter_context, socket.socketpair())
        for peer in (self.left, self.right):
            peer.settimeout(scaled(10))
        self.ends = one, other
        self.thread = threading.Thread(target=relay, args=self.ends, daemon=True)
        self.thread.start()

    def has_ended(self) -> bool:
        self.thread.join(scaled(10))
        return not self.thread.is_alive()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    with ExitStack() as stack:
        between = Relayed(stack)
        yield between
        break_off(*between.ends)
        assert between.has_ended()


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(relayed: Relayed) -> None:
    relayed.left.sendall(b"there")
    assert relayed.right.recv(10) == b"there"
    relayed.left.shutdown(socket.SHUT_WR)
    assert relayed.right.recv(10) == b""
    relayed.right.sendall(b"back")
    assert relayed.left.recv(10) == b"back"
    relayed.right.shutdown(socket.SHUT_WR)
    assert relayed.left.recv(10) == b""
    assert relayed.has_ended()


def test_a_peer_that_breaks_off_ends_both_directions(relayed: Relayed) -> None:
    relayed.right.close()
    with pytest.raises(OSError, match=r"(?i)pipe|reset"):
        relayed.left.sendall(b"0" * 10_000_000)
    assert relayed.has_ended()


def test_one_is_broken_off_from_another_thread(relayed: Relayed) -> None:
    break_off(*relayed.ends)
    break_off(*relayed.ends)
    assert relayed.left.recv(1) == relayed.right.recv(1) == b""
    assert relayed.has_ended()


def test_without_memory_for_one_direction_the_other_ends_too() -> None:
    one, far = socket.socketpair()
    with one, far, socket.socket() as unconnected:
        broken = Mock(wraps=unconnected, recv_into=Mock(side_effect=MemoryError))
        raised: list[type[BaseException]] = []

        def run() -> None:
            try:
                relay(broken, one)
            except MemoryError as error:
                raised.append(type(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        far.settimeout(scaled(5))
        assert far.recv(1) == b""
        thread.join(scaled(5))
        assert raised == [MemoryError]


def test_without_another_thread_it_returns(calls: Calls) -> None:
    calls.fail(threading.Thread, "start", RuntimeError("can't start new thread"))
    one, other = socket.socketpair()
    with one, other:
        relay(one, other)
