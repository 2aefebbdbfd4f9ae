"""Whether a peer's process is there is the word of its machine, not of its threads."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.net.channel import UnaryClient


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A port at which nobody takes a connection from the kernel."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=1)) as made:
        yield made


@pytest.fixture
def client(listening: socket.socket) -> Iterator[UnaryClient]:
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    with closing(UnaryClient(address, "the peer", Settings(), Principal("driver"))) as made:
        yield made


def test_a_process_that_takes_no_connection_for_a_while_is_there(client: UnaryClient) -> None:
    assert client.is_there(2.0)


def test_a_process_that_has_ended_is_not_there(
    client: UnaryClient, listening: socket.socket
) -> None:
    listening.close()
    assert not client.is_there(2.0)


def test_a_process_whose_machine_does_not_answer_is_not_there(
    client: UnaryClient, listening: socket.socket
) -> None:
    with ExitStack() as waiting:  # as many as the kernel keeps: it drops what more come
        for _ in range(2):
            waiting.enter_context(socket.create_connection(listening.getsockname()))
        assert not client.is_there(0.5)
