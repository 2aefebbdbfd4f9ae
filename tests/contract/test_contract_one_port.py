"""One port for sessions, tunnels and gRPC: who is let in, who is not, and nothing is left."""

import contextlib
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.streams import open_descriptors, own_threads, result, start
from helpers.waiting import scaled, wait_until
from windlass.cluster.connection_choice import ConnectionKind
from windlass.core.errors import (
    AddressInUseError,
    ConfigurationError,
    LimitExceededError,
    PeerLostError,
    ProtocolMismatchError,
    RefusedError,
    TooManyWorkersError,
    WindlassError,
)
from windlass.core.settings import Settings
from windlass.core.task import Incarnation, TaskId
from windlass.net.channel import open_channel
from windlass.net.connection import Connection, temporary
from windlass.net.dial import Dialer, receive_message
from windlass.net.endpoint import Endpoint, Greeting
from windlass.net.host import TaskHost
from windlass.net.listener import MAGIC, Listener
from windlass.net.pass_through import PassThrough
from windlass.net.reach import Reached, reach
from windlass.net.shared_memory import unavailable
from windlass.net.stream import NEVER, SocketStream
from windlass.net.tcp import connect_tcp, listen_tcp, tcp_stream
from windlass.net.unix import UnixStream, connect_unix, listen_unix, unix_stream
from windlass.proto.v1 import session_pb2

pytestmark = pytest.mark.timeout(60)

PS = TaskId("ps", 0)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = {
    "shm": Settings(),
    "tcp": Settings(shared_memory=False),
    "grpc": Settings(shared_memory=False, tcp_sessions=False),
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


def make_host(settings: Settings, task: TaskId = PS, **arguments: Any) -> TaskHost:
    return TaskHost(
        task,
        threads=8,
        settings=settings,
        add=lambda server: None,
        services=[],
        sessions={"echo": echo},
        **{"max_sessions": 8, **arguments},
    )


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(settings, address, **arguments)``: a host that listens, stopped at the end."""
    hosts: list[TaskHost] = []

    def serve(
        settings: Settings = SETTINGS["tcp"], address: str = "127.0.0.1:0", **arguments: Any
    ) -> TaskHost:
        hosts.append(make_host(settings, **arguments))
        hosts[-1].start(address)
        return hosts[-1]

    yield serve
    for host in hosts:
        host.stop(0)


def hello(service: str = "echo") -> session_pb2.Hello:
    return session_pb2.Hello(service=service)


@contextmanager
def dialled(
    port: int, settings: Settings, greeting: session_pb2.Hello | None = None
) -> Iterator[tuple[Dialer, grpc.Channel]]:
    address = f"127.0.0.1:{port}"
    who = Incarnation(TaskId("worker", 3), 1)
    with closing(open_channel(address, settings)) as channel:
        yield Dialer(address, f"{PS} ({address})", greeting or hello(), who, settings), channel


@contextmanager
def reached(port: int, settings: Settings) -> Iterator[Reached]:
    with dialled(port, settings) as (dialer, channel):
        found = reach(dialer, lambda: channel, settings, scaled(5), peer=str(PS))
        with closing(found.connection):
            yield found


def channel_of(channel: grpc.Channel) -> Callable[[], grpc.Channel]:
    return lambda: channel


def echoes(connection: Connection) -> bool:
    """Whether a frame comes back."""
    connection.deadline = time.monotonic() + scaled(10)
    connection.send([b"hello"], [memoryview(bytes(100_000))], 100_000)
    message = connection.receive()
    connection.skip()
    return message is not None and bytes(message) == b"hello"


def can_call(port: int, host: str = "127.0.0.1") -> bool:
    """Whether gRPC's calls are answered."""
    with closing(open_channel(f"{host}:{port}", Settings())) as channel:
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
    with dialled(1, SETTINGS["tcp"]) as (dialer, _), closing(right):
        message = session_pb2.ClientMessage(hello=dialer.hello).SerializeToString()
        with closing(Connection(UnixStream(left), 1)) as connection:
            connection.send([message])
            return MAGIC + right.recv(100_000)


# -- everything at one port --------------------------------------------------------------------


@every_kind
def test_sessions_calls_and_tunnels_share_the_port(serve: Serve, kind: str) -> None:
    host = serve(SETTINGS[kind])
    with reached(host.port, SETTINGS[kind]) as found:
        assert found.choice.kind == kind
        assert not found.choice.is_degraded
        assert found.welcome.ps_generation == 7
        assert found.connection.deadline == NEVER
        assert echoes(found.connection)
        assert can_call(host.port)
        assert works(host.port)
        assert echoes(found.connection)


def test_a_greeting_may_come_byte_by_byte(serve: Serve) -> None:
    host = serve()
    with dial(host.port) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in hello_frame():
            bare.sendall(bytes([byte]))
            time.sleep(0.001)
        bare.settimeout(None)
        with closing(Connection(tcp_stream(bare.dup()), 100_000)) as connection:
            connection.deadline = time.monotonic() + scaled(5)
            assert receive_message(connection).welcome.ps_generation == 7
            assert echoes(connection)


def test_grpcs_first_bytes_may_come_one_by_one(serve: Serve) -> None:
    host = serve()

    def forward(client: socket.socket, server: socket.socket) -> None:
        for _ in range(len(PREFACE)):
            server.sendall(client.recv(1))
            time.sleep(0.002)

    with Proxy(host.port, forward) as proxy:
        assert can_call(proxy.port)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        bytes(8),
        b"WNDX",
        b"PRX",
        b"\x16\x04",
        b"X",
    ],
)
def test_what_is_neither_ours_nor_grpcs_is_shown_out(serve: Serve, first: bytes) -> None:
    host = serve()
    with dial(host.port) as stranger:
        stranger.sendall(first)
        assert is_shown_out(stranger)
    assert works(host.port)


@pytest.mark.parametrize("first", [b"", b"W", b"WND", b"PRI", b"\x16"])
def test_who_leaves_in_the_middle_of_its_first_bytes_is_forgotten(
    serve: Serve, first: bytes
) -> None:
    host = serve()
    with dial(host.port) as stranger:
        stranger.sendall(first)
        stranger.shutdown(socket.SHUT_WR)
        assert is_shown_out(stranger)


def test_a_greeting_that_is_not_complete_costs_no_processor_time() -> None:
    """A selector says again and again that bytes are there, as long as they are only looked at."""
    listener, name = (
        Listener(lambda stream, greeting: stream.close(), None, 1),
        f"@windlass-test-{os.getpid()}",
    )
    listener.add(listen_unix(name, 8), unix_stream)
    listener.start()
    with contextlib.closing(connect_unix(name)) as stream:
        stream.send(b"WN", NEVER)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.2
    listener.stop()


def test_silent_and_slow_connections_are_closed_in_time_and_cost_no_thread() -> None:
    listener = Listener(lambda stream, greeting: stream.close(), None, 1, greeting_timeout_s=0.5)
    listening = listen_tcp("127.0.0.1", 0, 64)
    port = listening.getsockname()[1]
    listener.add(listening, tcp_stream)
    listener.start()
    threads = threading.active_count()
    began = time.monotonic()
    connections = [dial(port) for _ in range(20)]
    slow = connections[0]
    assert threading.active_count() == threads
    with contextlib.suppress(OSError):
        for byte in MAGIC[:3]:
            slow.sendall(bytes([byte]))
            time.sleep(0.15)
    assert all(is_shown_out(each) for each in connections)
    assert time.monotonic() - began >= 0.45
    for each in connections:
        each.close()
    listener.stop()


def test_a_greeting_that_dribbles_in_is_given_up_in_time() -> None:
    endpoint = Endpoint(PS, SETTINGS["tcp"], {"echo": echo}, greeting_timeout_s=0.4)
    whole, said = hello_frame()[len(MAGIC) :], 0
    left, right = socket.socketpair()
    serving = start(lambda: endpoint.serve(UnixStream(right)))
    with left, contextlib.suppress(OSError):
        while not serving.done():
            left.sendall(whole[said : said + 1])
            said += 1
            time.sleep(0.05)
    result(serving)
    assert said < len(whole)


def test_more_silent_connections_than_are_kept_do_not_keep_others_out(serve: Serve) -> None:
    host = serve()
    silent = [dial(host.port) for _ in range(300)]
    assert works(host.port)
    assert can_call(host.port)
    assert is_shown_out(silent[0])  # the oldest went
    for each in silent:
        each.close()
    assert works(host.port)


def test_connections_beyond_the_limit_are_refused_and_leave_room_when_they_end(
    serve: Serve,
) -> None:
    host = serve(max_sessions=2)
    with reached(host.port, SETTINGS["tcp"]) as first, reached(host.port, SETTINGS["tcp"]):
        with dialled(host.port, SETTINGS["tcp"]) as (dialer, _):
            third = dialer.tcp(scaled(5))
            with pytest.raises(TooManyWorkersError, match="serves 2 connections already"):
                dialer.greet(third, scaled(5))
        assert echoes(first.connection)

    def has_room() -> bool:
        with contextlib.suppress(WindlassError):
            return works(host.port)
        return False

    wait_until(has_room, 5)


def test_whatever_goes_wrong_with_one_connection_others_are_accepted() -> None:
    heard: list[SocketStream] = []
    mishaps = iter(
        [RuntimeError("no more threads"), PermissionError("another user"), ValueError("?")]
    )

    def make_stream(connection: socket.socket) -> SocketStream:
        for mishap in mishaps:
            raise mishap
        return tcp_stream(connection)

    def other(connection: socket.socket, first: bytes) -> None:
        raise ConnectionError("too many")

    listener = Listener(lambda stream, greeting: heard.append(stream), other, 1)
    listening = listen_tcp("127.0.0.1", 0, 8)
    port = listening.getsockname()[1]
    listener.add(listening, make_stream)
    listener.start()
    for first in (MAGIC, MAGIC, MAGIC, b"PRI ", MAGIC):
        with dial(port) as connection:
            connection.sendall(hello_frame() if first == MAGIC else first)
            if not heard and (first != MAGIC or is_shown_out(connection, 0.5)):
                continue
    wait_until(lambda: heard, 5)
    heard[0].close()
    listener.stop()


def test_a_host_without_descriptors_takes_sessions_again_when_it_has_some(serve: Serve) -> None:
    host = serve()
    assert works(host.port)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as late:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
            late.connect(("127.0.0.1", host.port))
            late.sendall(hello_greeting := MAGIC)
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in spare:
                os.close(each)
        late.sendall(hello_frame()[len(hello_greeting) :])
        late.settimeout(scaled(5))
        assert late.recv(1)
    assert works(host.port)


# -- greetings ---------------------------------------------------------------------------------


def other_protocol() -> session_pb2.ClientMessage:
    greeting = hello()
    with dialled(1, SETTINGS["tcp"], greeting):
        greeting.versions.protocol += 1
    return session_pb2.ClientMessage(hello=greeting)


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
@pytest.mark.parametrize(
    ("message", "error", "says"),
    [
        pytest.param(bytes(70_000), LimitExceededError, "70000 bytes", id="too-long"),
        pytest.param(b"\xff\xff", RefusedError, "cannot be read", id="nonsense"),
        pytest.param(b"", RefusedError, "no service ''", id="nothing"),
        pytest.param(
            session_pb2.ClientMessage(hello=hello("ring")).SerializeToString(),
            RefusedError,
            r"/job:ps/task:0 has no service 'ring', only \['echo'\]",
            id="another-service",
        ),
        pytest.param(
            other_protocol().SerializeToString(), ProtocolMismatchError, "protocol", id="versions"
        ),
    ],
)
def test_a_greeting_that_is_refused_is_told_why(
    serve: Serve, kind: str, message: bytes, error: type[WindlassError], says: str
) -> None:
    host = serve()
    with dialled(host.port, SETTINGS[kind]) as (dialer, channel):
        connection = dialer.tcp(scaled(5)) if kind == "tcp" else dialer.tunnel(channel)
        with closing(connection):
            connection.deadline = time.monotonic() + scaled(5)
            connection.send([message])
            with pytest.raises(error, match=says):
                receive_message(connection)
            with pytest.raises(OSError, match=r"."):
                receive_message(connection)


@every_kind
def test_a_refusal_comes_out_of_dialling_and_leaves_nothing(serve: Serve, kind: str) -> None:
    host = serve(SETTINGS[kind])
    with dialled(host.port, SETTINGS[kind], hello("ring")) as (dialer, channel):
        for turn in range(3):
            with pytest.raises(RefusedError, match="no service 'ring'"):
                reach(dialer, lambda: channel, SETTINGS[kind], scaled(5), peer="ps")
            wait_until(lambda: set(own_threads()) <= {"listen", "grpc"}, 5)
            if not turn:
                before = open_descriptors()
    wait_until(lambda: open_descriptors() <= before, 5)


def test_nobody_at_the_port_is_a_lost_peer_soon(serve: Serve) -> None:
    host = serve()
    host.stop(0)
    for settings in SETTINGS.values():
        with dialled(host.port, settings) as (dialer, channel):
            began = time.monotonic()
            with pytest.raises(
                PeerLostError, match=r"/job:ps/task:0 .*cannot be reached: .*refused"
            ):
                reach(dialer, channel_of(channel), settings, 30, peer="ps")
            assert time.monotonic() - began < scaled(5)


# -- where only HTTP/2 passes ------------------------------------------------------------------


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


@pytest.mark.parametrize("silent", [False, True], ids=["closed", "silent"])
def test_what_lets_only_http2_through_is_gone_through_by_a_tunnel(
    serve: Serve, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = serve()

    def only_http2(client: socket.socket, server: socket.socket) -> None:
        first = client.recv(len(PREFACE), socket.MSG_PEEK)
        if not PREFACE.startswith(first):
            if silent:
                client.recv(1000)
                client.recv(1000)
            raise ConnectionError("not HTTP/2")

    with Proxy(host.port, only_http2) as proxy, reached(proxy.port, SETTINGS["tcp"]) as found:
        assert found.choice.kind is ConnectionKind.GRPC
        assert found.choice.is_degraded
        assert "its port" in found.choice.reason
        assert "not greet" in found.choice.reason
        assert f"grpc only: {found.choice.reason}" in caplog.text
        assert echoes(found.connection)


# -- handing gRPC through ----------------------------------------------------------------------


@pytest.fixture
def passing() -> Iterator[tuple[PassThrough, socket.socket]]:
    """With two connections at most, and the socket that the gRPC server would listen at."""
    made = PassThrough(2)
    with socket.socket(socket.AF_UNIX) as inner:
        inner.bind(f"\0{made.inner_name}")
        inner.listen()
        yield made, inner
        made.stop()
    wait_until(lambda: "grpc" not in own_threads(), 5)


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = dial(listener.getsockname()[1])
        return client, listener.accept()[0]


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


def test_no_more_is_handed_through_than_was_said(
    passing: tuple[PassThrough, socket.socket],
) -> None:
    pairs = [tcp_sockets() for _ in range(3)]
    for _, ours in pairs[:2]:
        passing[0].accept(ours, PREFACE + bytes(1024))
    with pytest.raises(ConnectionError, match="more than 2"):
        passing[0].accept(pairs[2][1], b"PRI ")
    pairs[0][0].close()
    passing[1].accept()[0].close()
    wait_until(lambda: pairs[0][1].fileno() < 0, 5)
    passing[0].accept(pairs[2][1], b"PRI ")
    for client, _ in pairs:
        client.close()


def test_who_hardly_said_anything_makes_room_for_the_next_one(
    passing: tuple[PassThrough, socket.socket],
) -> None:
    talker, *silent = [tcp_sockets() for _ in range(3)]
    passing[0].accept(talker[1], PREFACE + bytes(1024))
    for _, ours in silent:
        passing[0].accept(ours, b"PRI ")
    assert is_shown_out(silent[0][0])
    talker[0].sendall(b"still here")
    inner = passing[1].accept()[0]
    inner.settimeout(scaled(5))
    with inner:
        heard = b""
        while not heard.endswith(b"still here"):
            heard += inner.recv(10_000)
    for client, _ in (talker, *silent):
        client.close()


# -- addresses ---------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_an_error_that_names_task_and_address_and_leaves_nothing(
    serve: Serve,
) -> None:
    address = f"127.0.0.1:{serve().port}"
    before = open_descriptors()
    for settings in (SETTINGS["tcp"], Settings()):
        with pytest.raises(AddressInUseError, match=f"/job:ps/task:1 cannot listen at {address}"):
            make_host(settings, TaskId("ps", 1)).start(address)
    assert open_descriptors() <= before


def test_a_port_for_probes_that_is_taken_leaves_nothing(serve: Serve) -> None:
    taken = serve().port
    host = make_host(Settings(health_port=taken))
    with pytest.raises(AddressInUseError, match=f"{taken}.*health probes"):
        host.start("127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        dial(host.port)


def test_a_port_can_be_used_again_at_once(serve: Serve) -> None:
    first = serve()
    assert works(first.port)
    first.stop(0)
    assert works(serve(address=f"127.0.0.1:{first.port}").port)


def test_every_interface_is_that_of_ipv6_too(serve: Serve) -> None:
    host = serve(Settings(host="0.0.0.0", insecure=True, shared_memory=False), "ps-0.svc:0")  # noqa: S104
    for name in ("127.0.0.1", "127.0.0.2", *(["::1"] if socket.has_ipv6 else [])):
        host_name = f"[{name}]" if ":" in name else name
        try:
            stream = connect_tcp(f"{host_name}:{host.port}", scaled(5))
        except OSError:
            assert name == "::1", name  # the machine has none
            continue
        stream.close()
        assert can_call(host.port, host_name)


def test_a_tcp_connection_sends_at_once_and_notices_a_peer_that_vanished() -> None:
    client, ours = tcp_sockets()
    with client, ours:
        for connection in (client, ours):
            connection.settimeout(None)
            tcp_stream(connection)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            # A peer that lives and does not read for long is none that vanished.
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


# -- socket files ------------------------------------------------------------------------------

needs_memory = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@needs_memory
def test_a_folder_gets_a_socket_for_this_user_alone_and_loses_it(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "ps-0.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    host = serve(Settings(socket_dir=str(tmp_path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with (
        dialled(host.port, Settings()) as (dialer, _),
        closing(dialer.unix(str(path))) as connection,
    ):
        assert str(path) in dialer.greet(connection, scaled(5)).unix_sockets
        assert echoes(connection)
    host.stop(0)
    assert not path.exists()


@needs_memory
def test_a_task_that_was_replaced_leaves_the_socket_of_the_new_one(
    serve: Serve, tmp_path: Path
) -> None:
    old, new = (serve(Settings(socket_dir=str(tmp_path))) for _ in range(2))
    old.stop(0)
    with closing(connect_unix(str(tmp_path / "ps-0.sock"))):
        new.stop(0)
    assert list(tmp_path.iterdir()) == []


@needs_memory
def test_a_session_stays_with_its_task_where_another_job_has_the_socket(
    serve: Serve, tmp_path: Path
) -> None:
    settings = Settings(socket_dir=str(tmp_path))
    first, _second = (serve(settings) for _ in range(2))
    # As seen from another network namespace, where names without a file do not reach.
    first.endpoint.unix_sockets[:] = [str(tmp_path / "ps-0.sock")]
    with dialled(first.port, settings) as (dialer, channel):
        found = reach(dialer, lambda: channel, settings, scaled(5), peer="ps")
        with closing(found.connection) as connection:
            assert found.choice.kind == "tcp"
            assert "another process has" in found.choice.reason
            assert echoes(connection)


@needs_memory
def test_a_folder_that_cannot_be_used_is_an_error_that_names_it_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    before = open_descriptors()
    for folder in (tmp_path / "none", tmp_path / ("long" * 30)):
        with pytest.raises(ConfigurationError, match=rf"/job:ps/task:0.*{folder.name}.*SOCKET_DIR"):
            make_host(Settings(socket_dir=str(folder))).start("127.0.0.1:0")
    assert open_descriptors() <= before


@pytest.mark.filterwarnings("ignore:.*fork")  # Python's, and JAX's if another test has loaded it
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_neither_let_in_nor_trusted() -> None:
    ours, theirs = (f"@windlass-test-{who}-{os.getpid()}" for who in ("ours", "theirs"))
    with listen_unix(ours, 1) as listening, socket.socket(socket.AF_UNIX) as ready:
        ready_ours, ready_theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                with listen_unix(theirs, 1), socket.socket(socket.AF_UNIX) as calling:
                    calling.connect(f"\0{ours[1:]}")
                    ready_theirs.sendall(b"1")
                    ready_theirs.recv(1)
            finally:
                os._exit(0)
        assert ready_ours.recv(1) == b"1"
        connection, _ = listening.accept()
        with connection, pytest.raises(PermissionError, match="user 65534"):
            unix_stream(connection)
        with pytest.raises(RefusedError, match="user 65534"):
            connect_unix(theirs)
        ready_ours.sendall(b"1")
        os.waitpid(child, 0)
        for each in (ready_ours, ready_theirs, ready):
            each.close()


# -- ends --------------------------------------------------------------------------------------


@every_kind
def test_stopping_ends_sessions_is_idempotent_and_leaves_nothing(kind: str) -> None:
    def once() -> None:
        host = make_host(SETTINGS[kind])
        host.start("127.0.0.1:0")
        with reached(host.port, SETTINGS[kind]) as found:
            assert echoes(found.connection)
            with dial(host.port) as silent:
                host.stop(0)
                host.stop(0)
                assert is_shown_out(silent)
            with pytest.raises(OSError, match=r"."):
                receive_message(found.connection)
            with pytest.raises(ConnectionRefusedError):
                dial(host.port)

    once()  # grpc keeps some files of its first server
    before = open_descriptors()
    once()
    wait_until(lambda: not own_threads(), 5, "the end of the threads")
    wait_until(lambda: open_descriptors() <= before, 5, "files to be closed")


@pytest.mark.parametrize(("kind", "count"), [("shm", 200), ("tcp", 300), ("grpc", 60)])
def test_workers_that_come_and_go_leave_nothing(serve: Serve, kind: str, count: int) -> None:
    if kind not in SETTINGS:
        pytest.skip(unavailable())
    settings = SETTINGS[kind]
    host = serve(settings, max_sessions=64)
    with dialled(host.port, settings) as (dialer, channel):

        def once(number: int) -> None:
            found = reach(dialer, lambda: channel, settings, scaled(5), peer="ps")
            if number % 2:
                assert echoes(found.connection)
            if number % 3 == 0:
                found.connection.cancel()
            found.connection.close()

        def sessions() -> int:
            return len([name for name in own_threads() if name in ("session", "tunnel", "outbox")])

        once(1)
        wait_until(lambda: not sessions(), 5)
        before = open_descriptors()
        for number in range(count):
            once(number)
        wait_until(lambda: not sessions(), 5, "the end of the threads")
        wait_until(lambda: open_descriptors() <= before, 5, "files to be closed")


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_process_ends_although_it_serves_and_is_connected(kind: str) -> None:
    """Who ends without a stop, by an error say, must not wait for the calls of others."""
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from tests.contract import test_contract_one_port as t
host = t.make_host(t.SETTINGS[{kind!r}], daemon=True)
host.start("127.0.0.1:0")
address, settings = f"127.0.0.1:{{host.port}}", t.SETTINGS[{kind!r}]
channel = t.open_channel(address, settings)
dialer = t.Dialer(address, "ps", t.hello(), t.Incarnation(t.PS, 1), settings)
found = t.reach(dialer, lambda: channel, settings, 30, peer="ps")
print(t.echoes(found.connection), t.can_call(host.port), flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("True True\n", 0), ran.stderr
