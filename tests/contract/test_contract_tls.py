"""TLS at the one port: who gets in over every way, and what the others are told, on both sides."""

import logging
import os
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.hosts import is_shown_out
from helpers.streams import own_threads
from helpers.tls_files import issued, tls_settings, with_tls, write
from helpers.waiting import scaled, wait_until
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import (
    AccessError,
    ConfigurationError,
    PeerLostError,
    PermissionDeniedError,
    RopewalkError,
    UnauthenticatedError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.error_table import from_rpc_error
from ropewalk.net.auth.guard import Guard
from ropewalk.net.auth.token import new_keys, sign_token
from ropewalk.net.channel import open_channel
from ropewalk.net.connection import MAGIC, Connection
from ropewalk.net.dial import Dialer, Reached, reach
from ropewalk.net.endpoint import Greeting
from ropewalk.net.host import TaskHost
from ropewalk.net.shared_memory import unavailable
from ropewalk.net.sockets import connect_tcp, connect_unix
from ropewalk.proto.v1 import session_pb2

pytestmark = pytest.mark.timeout(60)

PS, WORKER = TaskId("ps", 0), TaskId("worker", 3)
WHO = Principal("worker", index=3)
SERVICE = "ps"  # of the table of roles
WAYS: dict[str, dict[str, Any]] = {
    "shm": {},
    "tcp": {"shared_memory": False},
    "grpc": {"shared_memory": False, "tcp_sessions": False},
}
if unavailable():
    del WAYS["shm"]
every_way = pytest.mark.parametrize("way", list(WAYS))
remote_way = pytest.mark.parametrize("way", ["tcp", "grpc"])


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``unchecked()``: from now on one's own certificate is not tried out when it is read."""
    return lambda: monkeypatch.setattr("ropewalk.net.auth.tls_files._try_out", lambda *_: None)


class Server:
    """A task that echoes, and remembers who greeted it."""

    def __init__(self, settings: Settings, **arguments: Any) -> None:
        self.greeted: list[Principal | None] = []
        self.host = TaskHost(
            PS,
            threads=8,
            settings=settings,
            calls={},
            guard=Guard(PS, settings),
            sessions={SERVICE: self._echo},
            max_sessions=8,
            **arguments,
        )
        self.host.start("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.host.port}"

    def _echo(self, greeting: Greeting) -> bool:
        self.greeted.append(greeting.visitor.principal)
        greeting.welcome()
        connection = greeting.connection
        while (message := connection.receive()) is not None:
            connection.send([bytes(message)])
        return False


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve(settings: Settings | None = None, **arguments: Any) -> Server:
        servers.append(Server(settings or with_tls(Settings()), **arguments))
        return servers[-1]

    yield serve
    for server in servers:
        server.host.stop(0)


@contextmanager
def reached(
    server: Server, settings: Settings, *, task: TaskId = PS, address: str = ""
) -> Iterator[Reached]:
    address = address or server.address
    hello = session_pb2.Hello(service=SERVICE)
    who = Incarnation(WORKER, 1)
    dialer = Dialer(address, f"{PS} ({address})", hello, who, settings, task=task)
    found = reach(dialer, settings, scaled(15), peer=str(PS))
    with closing(found.connection):
        yield found


def echoes(connection: Connection) -> bool:
    connection.deadline = time.monotonic() + scaled(10)
    connection.send([b"hello"])
    return bytes(connection.receive() or b"") == b"hello"


def check_health(channel: grpc.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=scaled(5)).status)


def call(address: str, settings: Settings) -> int:
    with closing(open_channel(address, settings, WHO)) as channel:
        return check_health(channel)


def failure_of(server: Server, settings: Settings, way: str) -> RopewalkError:
    """What a session over this way, and a call, fail with."""
    settings = settings.model_copy(update=WAYS[way])
    with pytest.raises(RopewalkError) as session, reached(server, settings):
        pass
    with pytest.raises((RopewalkError, grpc.RpcError)) as failed:
        call(server.address, settings)
    error = failed.value
    if isinstance(error, grpc.RpcError):  # of a channel without TLS
        error = from_rpc_error(error, peer="", doing="")
    assert type(error) is type(session.value)
    return session.value


# -- who gets in ---------------------------------------------------------------------------------


@every_way
def test_sessions_and_calls_go_through_tls_and_the_server_knows_who_it_is(
    serve: Callable[..., Server], way: str
) -> None:
    server = serve()
    settings = with_tls(Settings(**WAYS[way]), "worker", 3)
    with reached(server, settings) as found:
        assert found.choice.kind == {"tcp": "tls"}.get(way, way)
        assert echoes(found.connection)
        assert call(server.address, settings) == 1
    assert set(server.greeted) == {Principal("worker", index=3)}


@pytest.mark.skipif("shm" not in WAYS, reason="no shared memory here")
def test_a_unix_ticket_counts_once(serve: Callable[..., Server]) -> None:
    server = serve()
    settings = with_tls(Settings(shared_memory=False), "worker", 3)
    with reached(server, settings) as found:
        name, ticket = found.welcome.unix_sockets[0], found.welcome.unix_ticket
    assert len(ticket) == 32
    who = Incarnation(WORKER, 1)
    hello = session_pb2.Hello(service=SERVICE)
    dialer = Dialer(server.address, str(PS), hello, who, settings)
    with closing(dialer.unix(name)) as connection:
        dialer.greet(connection, scaled(5), ticket)
    for used in (ticket, b"", bytes(32)):
        with pytest.raises(UnauthenticatedError, match="showed no certificate"):
            dialer.greet(dialer.unix(name), scaled(5), used)
    assert server.greeted == [WHO] * 2


@every_way
def test_in_token_mode_the_server_alone_shows_a_certificate(
    serve: Callable[..., Server], tmp_path: Path, way: str
) -> None:
    private, public = new_keys()
    (tmp_path / "public").write_bytes(public)
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(sign_token(private, WHO, 60.0))
    server = serve(
        Settings(**{**tls_settings(), "tls_ca": ""}, token_keys=str(tmp_path / "public"))
    )
    settings = Settings(
        tls_ca=tls_settings()["tls_ca"], token_file=str(tmp_path / "token"), **WAYS[way]
    )
    with reached(server, settings) as found:
        assert echoes(found.connection)
    assert call(server.address, settings) == 1
    assert set(server.greeted) == {WHO}


# -- who does not, and what they are told ----------------------------------------------------------


@remote_way
@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ({"begins_in_days": -3.0, "days": 2.0}, ["has expired on", "clock here says"]),
        ({"begins_in_days": 2.0}, ["not valid before", "clock here says"]),
        ({"ca": "other"}, ["another CA", "tls_ca"]),
        ({"hosts": ("ps-0.train", "10.1.2.3")}, ["ps-0.train, 10.1.2.3", "--host"]),
    ],
    ids=["expired", "not yet valid", "other CA", "wrong name"],
)
def test_a_server_whose_certificate_does_not_count_is_refused(
    serve: Callable[..., Server],
    unchecked: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    way: str,
    certificate: dict[str, Any],
    says: list[str],
) -> None:
    unchecked()
    server = serve(Settings(**write(tmp_path, issued(**certificate))))
    error = failure_of(server, with_tls(Settings(), "worker", 3), way)
    assert type(error) is UnauthenticatedError
    assert str(PS) in error.message or server.address in error.message
    for each in says:
        assert each in error.message
    wait_until(lambda: "a connection was refused: 127.0.0.1:" in caplog.text, 5)


@remote_way
@pytest.mark.parametrize(
    ("certificate", "client_says", "server_says"),
    [
        (None, "this process has none to show", "showed no certificate"),
        ({"begins_in_days": -3.0, "days": 2.0}, "our certificate has expired", "has expired"),
        ({"begins_in_days": 2.0}, "not valid yet", "is not valid yet"),
        ({"ca": "other"}, "does not know the CA", "another CA"),
    ],
    ids=["none", "expired", "not yet valid", "other CA"],
)
def test_a_client_whose_certificate_does_not_count_is_told(
    serve: Callable[..., Server],
    unchecked: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    way: str,
    certificate: dict[str, Any] | None,
    client_says: str,
    server_says: str,
) -> None:
    server = serve()
    if certificate is None:
        settings = Settings(tls_ca=tls_settings()["tls_ca"])
    else:
        unchecked()
        settings = Settings(**write(tmp_path, issued("worker", 3, **certificate)))
    error = failure_of(server, settings, way)
    assert type(error) is UnauthenticatedError
    assert client_says in error.message
    wait_until(lambda: server_says in caplog.text, 5)
    assert server.greeted == []


@remote_way
def test_a_certificate_that_names_nobody_of_ours_is_refused_by_its_names(
    serve: Callable[..., Server], tmp_path: Path, way: str
) -> None:
    stranger = issued("worker", 3, uri="spiffe://prod/ns/x/sa/y")
    server = serve()
    error = failure_of(server, Settings(**write(tmp_path, stranger)), way)
    assert type(error) is UnauthenticatedError
    assert "URI:spiffe://prod/ns/x/sa/y" in error.message
    assert "ropewalk/JOB/ROLE/INDEX" in error.message


def test_another_task_than_the_one_that_was_dialled_is_refused(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    settings = with_tls(Settings(shared_memory=False), "worker", 3)
    with (
        pytest.raises(PermissionDeniedError, match=r"certificate of ps:0, and ps:1 was dialled"),
        reached(server, settings, task=TaskId("ps", 1)),
    ):
        pass


@remote_way
def test_a_plaintext_client_at_a_tls_port_hears_what_to_set(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture, way: str
) -> None:
    server = serve()
    settings = Settings(insecure=True, **WAYS[way])
    address = server.address
    if way == "grpc":
        with pytest.raises(grpc.RpcError) as failed:
            call(address, settings)
        error: RopewalkError = from_rpc_error(failed.value, peer="ps", doing="ask")
    else:
        error = failure_of(server, settings, way)
    assert type(error) is UnauthenticatedError
    assert "this port speaks TLS" in error.message
    assert "ROPEWALK_TLS_CA" in error.message
    wait_until(lambda: "this port speaks TLS" in caplog.text, 5)


@remote_way
def test_a_tls_client_at_a_plaintext_port_is_told_so(
    serve: Callable[..., Server], way: str
) -> None:
    server = serve(Settings(insecure=True))
    error = failure_of(server, with_tls(Settings(), "worker", 3), way)
    assert type(error) is UnauthenticatedError
    assert "does not speak TLS" in error.message


def test_an_older_tls_is_refused(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(tls_settings()["tls_ca"])
    for first in (b"", MAGIC):
        with socket.create_connection(("127.0.0.1", server.host.port), scaled(5)) as bare:
            bare.sendall(first)
            with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                context.wrap_socket(bare, server_hostname="127.0.0.1")
    wait_until(lambda: "older version than TLS 1.3" in caplog.text, 5)


@pytest.mark.parametrize(
    "first", [MAGIC, MAGIC + b"\x16", b"\x16\x03\x01\x02", MAGIC + b"\x16\x03"]
)
def test_half_a_handshake_ends_in_time_and_frees_its_thread(
    serve: Callable[..., Server], first: bytes
) -> None:
    server = serve(greeting_timeout_s=0.3)
    before = sorted(own_threads())
    with socket.create_connection(("127.0.0.1", server.host.port), scaled(5)) as bare:
        bare.sendall(first)
        bare.settimeout(scaled(5))
        assert bare.recv(1) == b""
    wait_until(lambda: sorted(own_threads()) == before, 5)
    assert call(server.address, with_tls(Settings(), "worker", 3)) == 1


def test_a_stranger_who_only_shakes_hands_costs_little_memory(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Where tokens show who calls, TLS lets everybody in as far as HTTP/2."""
    (tmp_path / "public").write_bytes(new_keys()[1])
    server = serve(
        Settings(**{**tls_settings(), "tls_ca": ""}, token_keys=str(tmp_path / "public"))
    )
    context = ssl.create_default_context(cafile=tls_settings()["tls_ca"])
    context.set_alpn_protocols(["h2"])
    settings_frame = b"\0\0\0\4\0\0\0\0\0"
    number = 20
    with ExitStack() as strangers:
        tracemalloc.start()
        strangers.callback(tracemalloc.stop)
        for _ in range(number):
            bare = socket.create_connection(("127.0.0.1", server.host.port), scaled(5))
            secured = context.wrap_socket(bare, server_hostname="127.0.0.1")
            strangers.enter_context(secured)
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame)
            assert secured.recv(1)  # gRPC answers
        held, _ = tracemalloc.get_traced_memory()
    # One buffer of 64 KiB that waits for gRPC, and small change; OpenSSL's own is not counted.
    assert held / number < 128 * 1024


def test_stopping_ends_handshakes_that_are_under_way(serve: Callable[..., Server]) -> None:
    before = sorted(own_threads())
    server = serve()
    with socket.create_connection(("127.0.0.1", server.host.port), scaled(5)) as bare:
        bare.sendall(MAGIC + b"\x16\x03\x01\x02\x00" + bytes(20))  # the hello goes on, it says
        assert not is_shown_out(bare, 0.2)
        server.host.stop(0)
        assert is_shown_out(bare)
        wait_until(lambda: sorted(own_threads()) == before, 5)


def test_refusals_do_not_fill_the_log(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    for _ in range(30):
        with closing(connect_tcp(server.address)) as stream:
            stream.send(MAGIC + bytes(12), time.monotonic() + 5)
            assert b"this port speaks TLS" in stream.receive(time.monotonic() + scaled(5))
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) < 10


def test_nobody_there_is_no_failure_of_tls() -> None:
    settings = with_tls(Settings(shared_memory=False), "worker", 3)
    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    who = Incarnation(WORKER, 1)
    dialer = Dialer(address, "ps", session_pb2.Hello(service=SERVICE), who, settings)
    with pytest.raises(PeerLostError):
        reach(dialer, settings, 2, peer="ps")
    with closing(open_channel(address, settings, WHO)) as channel, pytest.raises(grpc.RpcError):
        check_health(channel)


def test_a_unix_socket_of_a_task_with_tls_speaks_no_tls(serve: Callable[..., Server]) -> None:
    server = serve()
    for name in server.host.endpoint.unix_sockets:
        with closing(connect_unix(name)) as stream:
            stream.send(MAGIC + b"\x16\x03\x01\x02" + bytes(8), time.monotonic() + 5)
            assert b"announces a message" in stream.receive(time.monotonic() + scaled(5))


# -- files that change -----------------------------------------------------------------------------


def replace(settings: dict[str, Any], folder: Path, **certificate: Any) -> None:
    """Put other files where the settings say, at once, as Kubernetes and cert-manager do."""
    made = write(folder, issued(**certificate))
    for name in ("tls_key", "tls_cert"):
        os.replace(made[name], settings[name])


def test_new_files_are_used_by_the_next_connection_and_calls_on_both_sides(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server_files = write(tmp_path / "server", issued())
    client_files = write(tmp_path / "client", issued("worker", 3))
    server = serve(Settings(**server_files))
    settings = Settings(shared_memory=False, **client_files)
    with closing(open_channel(server.address, settings, WHO)) as channel:
        for _ in range(3):
            with reached(server, settings) as found:
                assert echoes(found.connection)
                assert check_health(channel) == 1
                replace(server_files, tmp_path / "next", role="ps", index=0)
                replace(client_files, tmp_path / "next", role="worker", index=3)
                assert echoes(found.connection)  # with what it began
    assert server.greeted == [WHO] * 3


def test_a_change_of_ca_by_way_of_both(serve: Callable[..., Server], tmp_path: Path) -> None:
    old, new = issued(), issued(ca="new CA")
    server_files = write(tmp_path / "server", old)
    client_files = write(tmp_path / "client", issued("worker", 3))
    server = serve(Settings(**server_files))
    settings = Settings(shared_memory=False, **client_files)
    both = b"".join(
        Path(write(tmp_path / "ca", old, ca)["tls_ca"]).read_bytes() for ca in ("test CA", "new CA")
    )

    def works() -> bool:
        with reached(server, settings) as found:
            return echoes(found.connection) and call(server.address, settings) == 1

    assert works()
    for files in (client_files, server_files):
        Path(files["tls_ca"]).write_bytes(both)
        assert works()
    replace(server_files, tmp_path / "next", ca="new CA")
    assert works()
    replace(client_files, tmp_path / "next", role="worker", index=3, ca="new CA")
    assert works()
    for files in (client_files, server_files):
        Path(files["tls_ca"]).write_bytes(
            Path(write(tmp_path / "ca", new, "new CA")["tls_ca"]).read_bytes()
        )
        assert works()


def test_old_channels_are_closed_once_their_calls_are_over(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    files = write(tmp_path / "client", issued("worker", 3))
    with closing(open_channel(server.address, Settings(**files), WHO)) as channel:
        before = threading.active_count()
        for _ in range(20):
            replace(files, tmp_path / "next", role="worker", index=3)
            assert check_health(channel) == 1
        wait_until(lambda: own_threads().count("grpc") <= 4, 5)
        assert threading.active_count() < before + 10


def test_a_task_without_a_certificate_cannot_listen_where_a_ca_is_given() -> None:
    settings = Settings(tls_ca=tls_settings()["tls_ca"])
    host = TaskHost(
        PS, threads=1, settings=settings, calls={}, guard=Guard(PS, settings),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="needs a certificate: set tls_cert"):
        host.start("127.0.0.1:0")


def test_access_errors_end_a_task_for_good() -> None:
    assert AccessError.exit_code == UnauthenticatedError.exit_code == 8
