"""Routes: addresses that are reached in another way while a block runs, also by gRPC."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import scaled
from ropewalk.net.routes import grpc_target, open_routes
from ropewalk.net.sockets import is_listening, is_refused, routed

ADDRESS = "10.255.0.1:2222"  # not of this machine


@pytest.fixture
def task() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(scaled(10))
        yield listening


def test_a_route_stands_for_an_address_while_its_block_runs(task: socket.socket) -> None:
    with open_routes({ADDRESS: lambda _: socket.create_connection(task.getsockname())}):
        assert is_listening(ADDRESS, 1.0)
        assert not is_listening("127.0.0.1:1", 1.0), "other addresses are dialled"
        assert not is_refused(ADDRESS, 1.0)
        assert is_refused("127.0.0.1:1", 1.0)
    assert not is_refused("no-such-host.invalid:1", 1.0), "only the machine itself can say so"
    assert ADDRESS not in routed
    assert grpc_target(ADDRESS) == ADDRESS


def test_what_dials_by_itself_is_relayed_from_a_socket_of_this_user(task: socket.socket) -> None:
    with open_routes({ADDRESS: lambda _: socket.create_connection(task.getsockname())}):
        path = Path(grpc_target(ADDRESS).removeprefix("unix:"))
        assert path.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(scaled(10))
            client.connect(str(path))
            there, _ = task.accept()
            with there:
                client.sendall(b"ask")
                assert there.recv(10) == b"ask"
                there.sendall(b"answer")
                assert client.recv(10) == b"answer"
            assert client.recv(10) == b"", "the end of the task is passed on"
    assert not path.exists()


def test_a_task_that_is_not_reached_ends_the_connection() -> None:
    def fail(_: float) -> socket.socket:
        raise ConnectionError("the gateway has no way")

    with open_routes({ADDRESS: fail}), socket.socket(socket.AF_UNIX) as client:
        assert not is_listening(ADDRESS, 1.0)
        client.settimeout(scaled(10))
        client.connect(grpc_target(ADDRESS).removeprefix("unix:"))
        assert client.recv(10) == b""
