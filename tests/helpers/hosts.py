"""A task that listens at its one port, and those who dial it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.streams import start
from helpers.waiting import scaled
from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.auth.guard import Guard
from ropewalk.net.channel import open_channel
from ropewalk.net.connection import MAGIC, Connection, temporary
from ropewalk.net.dial import Dialer, Reached, reach
from ropewalk.net.endpoint import Greeting
from ropewalk.net.host import TaskHost
from ropewalk.net.shared_memory import unavailable
from ropewalk.net.sockets import UnixStream
from ropewalk.proto.v1 import session_pb2

PS = TaskId("ps", 0)
WHO = Principal("worker", index=3)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = {
    "shm": Settings(insecure=True),
    "tcp": Settings(insecure=True, shared_memory=False),
    "grpc": Settings(insecure=True, shared_memory=False, tcp_sessions=False),
}
if unavailable():
    del SETTINGS["shm"]
every_kind = pytest.mark.parametrize("kind", list(SETTINGS))

Serve = Callable[..., TaskHost]


def echo(greeting: Greeting) -> bool:
    """The service of these tests: every frame comes back."""
    connection = greeting.connection
    greeting.welcome(ps_generation=7)
    while (message := connection.receive()) is not None:
        size = connection.unread_bytes
        payload = bytes(connection.read(size, temporary))
        connection.send([bytes(message)], [memoryview(payload)], size)
    return False


def make_host(
    settings: Settings, task: TaskId = PS, *, service: str = "echo", **arguments: Any
) -> TaskHost:
    return TaskHost(
        task,
        threads=8,
        settings=settings,
        calls={},
        guard=Guard(task, settings),
        sessions={service: echo},
        **{"max_sessions": 8, **arguments},
    )


def hello(service: str = "echo") -> session_pb2.Hello:
    return session_pb2.Hello(service=service)


def dialer_to(port: int, settings: Settings, greeting: session_pb2.Hello | None = None) -> Dialer:
    address = f"127.0.0.1:{port}"
    who = Incarnation(TaskId("worker", 3), 1)
    return Dialer(address, f"{PS} ({address})", greeting or hello(), who, settings)


@contextmanager
def reached(port: int, settings: Settings) -> Iterator[Reached]:
    found = reach(dialer_to(port, settings), settings, scaled(5), peer=str(PS))
    with closing(found.connection):
        yield found


def echoes(connection: Connection) -> bool:
    """Whether a frame comes back."""
    connection.deadline = time.monotonic() + scaled(10)
    connection.send([b"hello"], [memoryview(bytes(100_000))], 100_000)
    message = connection.receive()
    connection.skip()
    return message is not None and bytes(message) == b"hello"


def can_call(port: int, host: str = "127.0.0.1") -> bool:
    """Whether gRPC's calls are answered."""
    with closing(open_channel(f"{host}:{port}", Settings(), WHO)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=scaled(5)).status)


def works(port: int) -> bool:
    """Whether a session can be had."""
    with reached(port, SETTINGS["tcp"]) as found:
        return echoes(found.connection)


def dial(port: int) -> socket.socket:
    """A bare connection."""
    return socket.create_connection(("127.0.0.1", port), scaled(10))


def is_shown_out(connection: socket.socket, within_s: float = 5.0) -> bool:
    """Whether the other side closes the connection, in time, and says nothing."""
    connection.settimeout(scaled(within_s))
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def hello_frame() -> bytes:
    """What our greeting looks like on the wire."""
    left, right = socket.socketpair()
    with closing(right):
        hello = dialer_to(1, SETTINGS["tcp"]).hello
        message = session_pb2.ClientMessage(hello=hello).SerializeToString()
        with closing(Connection(UnixStream(left), 1)) as connection:
            connection.send([message])
            return MAGIC + right.recv(100_000)


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = dial(listener.getsockname()[1])
        return client, listener.accept()[0]


class Proxy:
    """Forwards connections. ``begin`` sees the first bytes; if it raises, it is closed."""

    def __init__(self, port: int, begin: Callable[[socket.socket, socket.socket], None]) -> None:
        self._target = port
        self._begin = begin
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> "Proxy":
        start(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = dial(self._target)
                server.settimeout(None)
                self._open += [client, server]
                start(partial(self._serve, client, server))

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        try:
            self._begin(client, server)
        except OSError:
            for each in (client, server):
                each.close()
            return
        start(lambda: self._copy(server, client))
        self._copy(client, server)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(100_000):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
