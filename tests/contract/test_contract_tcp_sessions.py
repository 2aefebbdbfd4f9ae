"""The ps's session port: who is let in, what a session there promises, and cuts at any moment."""

import errno
import gc
import logging
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport
from windlass.net.frame_socket import FrameSocket, frame_head

from windlass.client.ps import stream_transport, streams
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.core import codec, error_table
from windlass.core.definitions import VariableDefinition
from windlass.core.errors import (
    AddressInUseError,
    FencedError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
)
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD
from windlass.core.versions import own_versions
from windlass.net import listeners
from windlass.proto.v1 import ps_pb2, ps_pb2_grpc
from windlass.server.ps import doors, servicer, wires
from windlass.server.ps.server import PsServer

PS = TaskId("ps", 0)
F32 = np.dtype(np.float32)
W = VariableDefinition("w", (3,), F32)
SETTINGS = Settings(
    chunk_bytes=4096,
    max_message_bytes=64 * 1024,
    max_step_bytes=256 * 1024**2,
    max_sessions=3,
    request_timeout_s=10.0,
    reconnect_timeout_s=5.0,
    join_timeout_s=5.0,
)
OFF = SETTINGS.model_copy(update={"tcp_sessions": False})
MIB = 1024**2

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def start() -> Iterator[Callable[..., PsServer]]:
    """Starts ps on loopback."""
    started: list[PsServer] = []

    def make(address: str = "127.0.0.1:0", **changes: Any) -> PsServer:
        server = PsServer(PS, SETTINGS.model_copy(update=changes))
        server.start(address)
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop(grace_s=0)


@pytest.fixture
def open_session() -> Iterator[Callable[..., ParameterSession]]:
    """Connects sessions that do not come near, and closes them."""
    opened: list[ParameterSession] = []

    def make(
        server: PsServer,
        index: int = 0,
        *,
        settings: Settings = SETTINGS,
        host: str = "127.0.0.1",
        near: bool = False,
    ) -> ParameterSession:
        who = Incarnation(TaskId("worker", index), 1)
        transport = StreamTransport(PS, f"{host}:{server.port}", who, settings, near=near)
        session = ParameterSession([transport], who, settings)
        opened.append(session)
        session.connect()
        return session

    yield make
    for session in opened:
        session.close()


@pytest.fixture(params=[False, True], ids=["half", "duplex"])
def duplex(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Sessions as on one machine, and as between two, where both directions are used at once."""
    here = not request.param
    monkeypatch.setattr(stream_transport, "is_here", lambda _: here)
    return bool(request.param)


@pytest.fixture
def both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions as between two machines."""
    monkeypatch.setattr(stream_transport, "is_here", lambda _: False)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """A ps that waits only so long for a hello."""
    monkeypatch.setattr(doors, "_HELLO_TIMEOUT_S", 0.3)
    return 0.3


Start = Callable[..., PsServer]
OpenSession = Callable[..., ParameterSession]


def transport_of(session: ParameterSession) -> StreamTransport:
    [transport] = session.peers
    assert isinstance(transport, StreamTransport)
    return transport


def description(session: ParameterSession) -> str:
    return transport_of(session).description


def carrier_of(session: ParameterSession) -> streams.Carrier:
    stream = transport_of(session)._stream
    assert stream is not None
    return stream.carrier


def door_port(server: PsServer) -> int:
    return server._doors._servicer.session_port


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread does, 5 s at most."""
    deadline = time.monotonic() + 5
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        pause.wait(0.002)


def threads(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == name}


def open_sockets() -> set[str]:
    """Descriptors of this process that are sockets, and which."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def add(variables: Sequence[VariableDefinition], value: float = 1) -> PushPayload:
    return PushPayload({v.name: np.full(v.shape, value, v.dtype) for v in variables}, Operation.ASSIGN_ADD)


def define(session: ParameterSession, *variables: VariableDefinition) -> None:
    session.define(variables, {v.name: np.zeros(v.shape, v.dtype) for v in variables}, create=True)


def works(session: ParameterSession, value: float) -> None:
    np.testing.assert_array_equal(session.step(add([W]), ["w"]).values["w"], value)


def stays_with_grpc(session: ParameterSession, why: str) -> None:
    """It works, says why it is where it is, and is not lost in between."""
    carrier = carrier_of(session)
    define(session, W)
    works(session, 1)
    assert carrier_of(session) is carrier
    assert description(session).startswith("grpc (")
    assert why in description(session)


# -- a client without any of our checks ----------------------------------------------------------


@contextmanager
def welcomed(server: PsServer, index: int = 0) -> Iterator[ps_pb2.Welcome]:
    """What a gRPC stream is welcomed with; it stays open."""
    over = threading.Event()

    def requests() -> Iterator[ps_pb2.ExchangeRequest]:
        yield ps_pb2.ExchangeRequest.FromString(hello(b"", index))
        over.wait(20)

    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        call = ps_pb2_grpc.ParameterServerStub(channel).Exchange(requests(), timeout=20)
        try:
            yield next(call).welcome
        finally:
            over.set()
            call.cancel()


def hello(ticket: bytes, index: int = 0) -> bytes:
    message = ps_pb2.Hello(versions=codec.versions_to_wire(own_versions()), ticket=ticket)
    who = Incarnation(TaskId("worker", index), 1)
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(who))
    return ps_pb2.ExchangeRequest(hello=message).SerializeToString()


def dial(server: PsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door_port(server)), 5)


def enter(frames: FrameSocket, ticket: bytes, index: int = 0) -> ps_pb2.Welcome:
    """What the ps answers to a ticket.

    Raises:
        WindlassError: It did not let us in.
    """
    frames.write(frame_head(hello(ticket, index)))
    message = frames.receive()
    assert message is not None
    answer = ps_pb2.ExchangeResponse.FromString(bytes(message))
    if answer.HasField("failure"):
        raise error_table.from_detail(answer.failure)
    return answer.welcome


def is_closed(connection: socket.socket) -> bool:
    """Whether the ps ends it; whatever it says before."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


# -- moving to the port --------------------------------------------------------------------------


def test_a_session_goes_on_over_tcp_and_gives_its_seat_on_grpc_back(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    works(session, 1)
    assert session.transports == ("ps:0 tcp",)
    seats = server._doors._servicer._seats
    until(lambda: seats._streams == 1)
    assert seats.count == 1


@pytest.mark.usefixtures("duplex")
@pytest.mark.parametrize("size", [1, 1000, 20_000, 300_000, 3_000_000], ids=lambda n: f"{n}-floats")
def test_steps_of_every_size_go_through(start: Start, open_session: OpenSession, size: int) -> None:
    session = open_session(start())
    v = VariableDefinition("v", (size,), F32)
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    session.define([v], {"v": values}, create=True)
    for count in range(1, 4):
        got = session.step(add([v]), ["v"], step_increment=1).values["v"]
        values = values + np.float32(1)
        np.testing.assert_array_equal(got, values)
        assert session.global_step == count
    assert description(session) == "tcp"


def test_workers_of_every_kind_see_the_same_values(start: Start, open_session: OpenSession) -> None:
    server = start()
    sessions = [
        open_session(server, 0),
        open_session(server, 1, near=True),
        open_session(server, 2, settings=OFF),
    ]
    define(sessions[0], W)
    for other in sessions[1:]:
        other.define([W], {}, create=False)
    for value in range(1, 10):
        works(sessions[value % 3], value)
    kinds = ["tcp", "unix socket", "grpc (tcp_sessions is off)"]
    assert [description(session) for session in sessions] == kinds


def test_a_worker_that_cannot_come_near_takes_the_port(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    monkeypatch.setattr(server._doors._servicer, "local_socket", "windlass-of-another-machine")
    session = open_session(server, near=True)
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"


def test_the_last_seat_is_enough_to_move(start: Start, open_session: OpenSession) -> None:
    session = open_session(start(max_sessions=1))
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"


def test_a_worker_that_wants_no_tcp_stays_with_grpc(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    stays_with_grpc(open_session(server, settings=OFF), "tcp_sessions is off")
    assert not server._doors._sessions


def test_a_ps_that_offers_no_tcp_has_no_port(start: Start, open_session: OpenSession) -> None:
    server = start(tcp_sessions=False)
    assert server._doors.tcp is None
    session = open_session(server)
    define(session, W)
    works(session, 1)
    assert description(session) == "grpc (tcp_sessions is off at the ps)"


# -- tickets -------------------------------------------------------------------------------------


def test_a_ticket_lets_in_once(start: Start) -> None:
    server = start()
    with welcomed(server) as welcome, ExitStack() as stack:
        assert welcome.session_port == door_port(server)
        first, second = (
            stack.enter_context(closing(FrameSocket(dial(server), MIB))) for _ in range(2)
        )
        inside = enter(first, welcome.ticket)
        assert inside.ps_generation == welcome.ps_generation
        assert inside.ticket == b""  # there is nowhere else to go
        with pytest.raises(RefusedError, match="a session here begins with a gRPC stream"):
            enter(second, welcome.ticket)
        assert second.receive() is None
        # Another hello inside needs another ticket.
        with pytest.raises(RefusedError, match="begins with a gRPC stream"):
            enter(first, welcome.ticket)
    until(lambda: not server._doors._sessions)
    assert server.store.counters().refused == 0


@pytest.mark.parametrize(
    "ticket", [b"", b"x", bytes(16), b"x" * 60_000], ids=["none", "short", "wrong", "long"]
)
def test_whoever_has_no_ticket_is_not_let_in_and_voids_none(start: Start, ticket: bytes) -> None:
    server = start()
    with welcomed(server) as welcome:
        with (
            closing(FrameSocket(dial(server), MIB)) as frames,
            pytest.raises(RefusedError, match="a session here begins with a gRPC stream"),
        ):
            enter(frames, ticket)
        with closing(FrameSocket(dial(server), MIB)) as frames:
            enter(frames, welcome.ticket)


def test_a_ticket_of_another_ps_is_none(start: Start) -> None:
    one, other = start(), start()
    with (
        welcomed(one) as welcome,
        closing(FrameSocket(dial(other), MIB)) as frames,
        pytest.raises(RefusedError, match="begins with a gRPC stream"),
    ):
        enter(frames, welcome.ticket)


def test_tickets_nobody_uses_do_not_pile_up(start: Start) -> None:
    server = start()
    tickets = []
    for index in range(20):
        with welcomed(server, index) as welcome:
            tickets.append(welcome.ticket)
        until(lambda: not server._doors._servicer._seats._streams)
    assert len(set(tickets)) == 20
    assert len(server._doors._servicer._tickets._out) == 12  # four streams for each of three seats
    for ticket, good in ((tickets[0], False), (tickets[-1], True)):
        with closing(FrameSocket(dial(server), MIB)) as frames:
            if good:
                enter(frames, ticket)
                continue
            with pytest.raises(RefusedError):
                enter(frames, ticket)


@pytest.mark.parametrize("ticket", [b"", b"wrong"], ids=["none", "wrong"])
def test_a_worker_whose_ticket_is_not_taken_stays_with_grpc_and_says_why(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, ticket: bytes
) -> None:
    server = start()
    monkeypatch.setattr(server._doors._servicer._tickets, "issue", lambda: ticket)
    stays_with_grpc(open_session(server), "a session here begins with a gRPC stream")
    until(lambda: not server._doors._sessions)


def test_a_ticket_is_no_way_around_the_generation_of_the_ps(start: Start) -> None:
    server = start()
    with welcomed(server) as welcome, closing(FrameSocket(dial(server), MIB)) as frames:
        request = ps_pb2.ExchangeRequest.FromString(hello(welcome.ticket))
        request.hello.expected_ps_generation = 5
        frames.write(frame_head(request.SerializeToString()))
        message = frames.receive()
        assert message is not None
        answer = ps_pb2.ExchangeResponse.FromString(bytes(message))
        assert isinstance(error_table.from_detail(answer.failure), FencedError)


# -- a port that cannot be reached, or is somebody else's ---------------------------------------


def point_at(server: PsServer, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._doors._servicer, "session_port", port)


def test_a_closed_port_means_grpc_and_a_reason(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # not listening: nobody else gets the port
        port = bound.getsockname()[1]
        point_at(server, port, monkeypatch)
        stays_with_grpc(
            open_session(server), f"its port {port} cannot be reached: Connection refused"
        )


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that does not answer to those who want to connect, as behind a firewall."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.socket()))
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:  # full queues swallow what comes
            connection = stack.enter_context(closing(socket.socket()))
            connection.settimeout(0.2)
            try:
                connection.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]


@pytest.mark.parametrize("reconnect_timeout_s", [1.0, 5.0], ids=["impatient", "patient"])
def test_a_port_behind_a_firewall_means_grpc_and_a_reason_and_no_lost_session(
    start: Start,
    open_session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
    black_hole: int,
    reconnect_timeout_s: float,
) -> None:
    server = start()
    point_at(server, black_hole, monkeypatch)
    settings = SETTINGS.model_copy(update={"reconnect_timeout_s": reconnect_timeout_s})
    session = open_session(server, settings=settings)
    stays_with_grpc(session, f"its port {black_hole} cannot be reached: timed out")
    carrier_of(session).cancel()
    works(session, 2)
    assert description(session).startswith("grpc (its port")


FRAME = ps_pb2.ExchangeResponse


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", "closed the session"),
        (b"\5", "ended inside a frame"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is over the limit"),
        (frame_head(b"\x0a\3abc"), "cannot be read"),
        (frame_head(b"\xff\xff\xff"), "cut or not one of ours"),
        (frame_head(b""), "speaks another protocol"),
        (frame_head(FRAME(welcome=ps_pb2.Welcome()).SerializeToString()), "another protocol"),
    ],
    ids=["nothing", "a-byte", "http", "no-welcome", "no-frame", "empty", "no-version"],
)
def test_a_port_of_another_program_means_grpc_and_leaves_no_socket(
    start: Start,
    open_session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
    says: bytes,
    why: str,
) -> None:
    server = start()
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        point_at(server, stranger.getsockname()[1], monkeypatch)
        over = threading.Event()

        def talk() -> None:
            connection, _ = stranger.accept()
            with closing(connection):
                connection.settimeout(10)
                connection.recv(65536)
                with suppress(OSError):  # the worker has seen enough
                    connection.sendall(says)
                    connection.shutdown(socket.SHUT_WR)
                if is_closed(connection):  # by the worker
                    over.set()

        thread = threading.Thread(target=talk)
        thread.start()
        session = open_session(server)
        assert over.wait(5)
        thread.join(5)
        stays_with_grpc(session, why)


def test_a_port_that_accepts_and_says_nothing_means_grpc_within_seconds(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        point_at(server, stranger.getsockname()[1], monkeypatch)
        session = open_session(server)
        began = time.monotonic()
        stays_with_grpc(session, "connect")
        carrier_of(session).cancel()
        works(session, 2)
        assert time.monotonic() - began < 4.5
        assert description(session).startswith("grpc (")


# -- where it listens ----------------------------------------------------------------------------


def free_port() -> int:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_a_port_that_was_named_is_used_and_can_be_used_again_at_once(
    start: Start, open_session: OpenSession
) -> None:
    port = free_port()
    for _ in range(2):
        server = start(session_port=port)
        assert door_port(server) == port
        session = open_session(server)
        define(session, W)
        works(session, 1)
        assert description(session) == "tcp"
        server.stop(grace_s=0)  # it ends the connection, and so keeps what TCP leaves behind


def test_a_port_that_is_taken_is_an_error_that_names_the_setting_and_leaves_nothing() -> None:
    before = threads("accept"), open_sockets()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        server = PsServer(PS, SETTINGS.model_copy(update={"session_port": port}))
        with pytest.raises(
            AddressInUseError, match=r"ps/task:0 cannot listen at .*session_port"
        ) as caught:
            server.start("127.0.0.1:0")
        assert f"cannot listen at 127.0.0.1:{port}" in caught.value.message
        assert "Address already in use" in caught.value.message
        assert "WINDLASS_SESSION_PORT" in caught.value.message
        assert caught.value.fields["address"] == f"127.0.0.1:{port}"
        server.stop(grace_s=0)
    del server
    gc.collect()
    until(lambda: threads("accept") <= before[0] and open_sockets() <= before[1])


def test_a_grpc_port_that_is_taken_leaves_no_session_port_behind() -> None:
    before = threads("accept")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        server = PsServer(PS, SETTINGS)
        with pytest.raises(AddressInUseError) as caught:
            server.start(f"127.0.0.1:{taken.getsockname()[1]}")
        assert "session_port" not in caught.value.message
        with pytest.raises(ConnectionRefusedError):
            dial(server)
        until(lambda: threads("accept") <= before)
        server.stop(grace_s=0)


def has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as bound:
            bound.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", pytest.param("[::1]", marks=needs_ipv6)]
)
def test_the_port_is_where_the_grpc_port_is(
    start: Start, open_session: OpenSession, host: str
) -> None:
    session = open_session(start(f"{host}:0"), host=host)
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", pytest.param("[::1]", marks=needs_ipv6)]
)
@pytest.mark.parametrize("listen", ["", "0.0.0.0", pytest.param("::", marks=needs_ipv6)])  # noqa: S104
def test_a_ps_on_every_interface_is_reached_at_each_of_its_addresses(
    start: Start, open_session: OpenSession, listen: str, host: str
) -> None:
    """As its gRPC port is: there, 0.0.0.0 stands for IPv6 as well."""
    server = start("ps-0.training.svc:0", host=listen, insecure=True)
    session = open_session(server, host=host)
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"


# -- strangers -----------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(
    start: Start, open_session: OpenSession, patience: float
) -> None:
    server = start()
    session = open_session(server)
    before = threads("session")
    began = time.monotonic()
    with closing(dial(server)) as connection:
        assert is_closed(connection)
    assert patience * 0.9 < time.monotonic() - began < 4
    until(lambda: threads("session") <= before)
    # A session that was let in may be silent for as long as it likes.
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"
    assert len(server._doors._sessions) == 1


@pytest.mark.usefixtures("patience")
def test_a_session_that_was_let_in_may_be_silent(start: Start, patience: float) -> None:
    server = start()
    with welcomed(server) as welcome, closing(FrameSocket(dial(server), MIB)) as frames:
        enter(frames, welcome.ticket)
        frames._socket.settimeout(3 * patience)
        with pytest.raises(TimeoutError):
            frames.receive()


@pytest.mark.usefixtures("patience")
def test_a_connection_that_says_its_hello_byte_by_byte_is_closed(start: Start) -> None:
    """It would have a thread for as long as it goes on."""
    server = start()
    with closing(dial(server)) as connection:
        pause = threading.Event()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline = time.monotonic() + 3
        with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):  # noqa: PT012 - when it is noticed
            for byte in struct.pack("<IQ", 60_000, 0) + bytes(60_000):
                connection.sendall(bytes([byte]))
                pause.wait(0.05)
                assert time.monotonic() < deadline, "it is still open"


NONSENSE = {
    "http": b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "noise": np.random.default_rng(0).bytes(5000),
    "half-a-head": b"\0\0\0",
    "huge-message": struct.pack("<IQ", 2**32 - 1, 0) + b"begin",
    "message-over-the-limit": struct.pack("<IQ", SETTINGS.max_message_bytes + 1, 0) + b"begin",
    "no-protobuf": frame_head(b"\x0a\3abc"),
    "no-fields": frame_head(b"\xff" * 20),
    "step-first": frame_head(ps_pb2.ExchangeRequest(step=ps_pb2.Step()).SerializeToString()),
    "payload-first": frame_head(ps_pb2.ExchangeRequest(data=b"x").SerializeToString()),
    "hello-with-a-payload": frame_head(hello(b"x"), 2**63) + bytes(1000),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_on_the_port_is_closed_and_the_ps_goes_on(
    start: Start, open_session: OpenSession, caplog: pytest.LogCaptureFixture, nonsense: str
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    works(session, 1)
    before = threads("session")
    for _ in range(SETTINGS.max_sessions * 4 + 2):  # more than may be there at once
        with closing(dial(server)) as connection:
            connection.sendall(NONSENSE[nonsense])
            connection.shutdown(socket.SHUT_WR)
            assert is_closed(connection)
        until(lambda: len(server._doors._sessions) == 1)
    until(lambda: threads("session") <= before)
    works(session, 2)
    assert description(session) == "tcp"
    assert server._doors.tcp is not None
    until(lambda: server._doors.tcp is not None and server._doors.tcp._open == 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_memory_is_not_taken_for_what_is_announced(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's payload belongs to somebody who was let in; nobody else has one."""
    server = start()
    lent: list[int] = []
    take = server._doors._scratch.take

    def counting(num_bytes: int) -> Any:
        lent.append(num_bytes)
        return take(num_bytes)

    monkeypatch.setattr(server._doors._scratch, "take", counting)
    step = ps_pb2.Step(request_id=1, payload_bytes=2**60)
    frame = ps_pb2.ExchangeRequest(step=step).SerializeToString()
    with welcomed(server) as welcome, ExitStack() as stack:
        stranger = stack.enter_context(closing(FrameSocket(dial(server), MIB)))
        stranger.write(frame_head(frame, 2**60))
        message = stranger.receive()
        assert message is not None
        friend = stack.enter_context(closing(FrameSocket(dial(server), MIB)))
        enter(friend, welcome.ticket)
        friend.write(frame_head(frame, 2**60))
        message = friend.receive()
        assert message is not None
        failure = ps_pb2.ExchangeResponse.FromString(bytes(message)).failure
        assert isinstance(error_table.from_detail(failure), LimitExceededError)
    assert lent == []


def test_only_who_was_let_in_may_say_much(start: Start, open_session: OpenSession) -> None:
    """A thousand strangers with 8 MiB each would fill a ps."""
    server = start(max_message_bytes=8 * MIB)
    with closing(FrameSocket(dial(server), MIB)) as frames:
        frames.write(struct.pack("<IQ", 64 * 1024 + 1, 0))
        message = frames.receive()
        assert message is not None
        failure = ps_pb2.ExchangeResponse.FromString(bytes(message)).failure
        assert "65537 bytes is over the limit 65536" in error_table.from_detail(failure).message
        assert frames.receive() is None
    # A layout of thousands of variables is larger than any hello.
    settings = SETTINGS.model_copy(update={"max_message_bytes": 8 * MIB})
    session = open_session(server, settings=settings)
    many = [VariableDefinition(f"a-rather-long-name-{i}", (1,), F32) for i in range(2500)]
    define(session, *many)
    values = session.step(add(many), [v.name for v in many]).values
    assert all((values[v.name] == 1).all() for v in many)
    assert description(session) == "tcp"


def test_connections_beyond_the_limit_are_closed_and_leave_room_when_they_end(
    start: Start, open_session: OpenSession
) -> None:
    server = start(max_sessions=1)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(closing(dial(server)))
        until(lambda: len(server._doors._sessions) == 4)
        for _ in range(3):
            with closing(dial(server)) as beyond:
                assert is_closed(beyond)
        # Strangers at the port do not take the place of workers: there is gRPC yet.
        session = open_session(server)
        stays_with_grpc(session, "connect: ")
    until(lambda: not server._doors._sessions)
    carrier_of(session).cancel()
    works(session, 2)
    assert description(session) == "tcp"


def test_a_ps_without_descriptors_takes_sessions_again_when_it_has_some(
    start: Start,
    open_session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listeners, "_RETRY_S", 0.01)
    server = start()
    accept, failures = socket.socket.accept, iter(range(5))

    def fail_at_first(self: socket.socket) -> Any:
        for _ in failures:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_at_first)
    for index in range(3):  # the first is still taken by the call that waits
        session = open_session(server, index)
        if not index:
            define(session, W)
        assert description(session) == "tcp"
    assert caplog.text.count("a connection could not be accepted: [Errno 24]") == 5


def test_a_ps_that_has_no_descriptor_can_be_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads("accept")
    server = start(shared_memory=False)
    monkeypatch.setattr(listeners, "_RETRY_S", 0.01)
    tried = threading.Event()

    def fail(self: socket.socket) -> Any:
        tried.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket.socket, "accept", fail)
    dial(server).close()
    assert tried.wait(5)
    server.stop(grace_s=0)
    until(lambda: threads("accept") <= before)


def test_a_ps_that_gets_no_thread_closes_the_connection_and_counts_right(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()

    class NoMoreThreads(threading.Thread):
        def start(self) -> None:
            if self.name == "session":
                raise RuntimeError("can't start new thread")
            super().start()

    with monkeypatch.context() as patched:
        patched.setattr("windlass.net.listeners.threading.Thread", NoMoreThreads)
        session = open_session(server)
        stays_with_grpc(session, "connect: ")
    tcp = server._doors.tcp
    assert tcp is not None
    assert tcp._open == 0
    carrier_of(session).cancel()
    works(session, 2)
    assert description(session) == "tcp"


# -- ends ----------------------------------------------------------------------------------------


def test_a_ps_that_stops_ends_its_sessions_and_closes_the_port(open_session: OpenSession) -> None:
    before = threads("session"), threads("accept")
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    settings = SETTINGS.model_copy(update={"reconnect_timeout_s": 0.5})
    sessions = [open_session(server, index, settings=settings) for index in range(2)]
    define(sessions[0], W)
    works(sessions[0], 1)
    with closing(dial(server)) as silent:
        until(lambda: len(server._doors._sessions) == 3)
        server.stop(grace_s=0)
        assert is_closed(silent)
    until(lambda: not server._doors._sessions)
    with pytest.raises(PeerLostError, match="/job:ps/task:0"):
        sessions[0].step(add([W]))
    with pytest.raises(ConnectionRefusedError):
        dial(server)
    server.stop(grace_s=0)
    until(lambda: threads("session") <= before[0] and threads("accept") <= before[1])


def test_workers_that_go_away_leave_nothing_behind(start: Start, open_session: OpenSession) -> None:
    server = start()
    before = threads("session"), threads("send")
    for index in range(10):  # more than may be there at once
        session = open_session(server, index)
        if not index:
            define(session, W)
        session.close()
        until(lambda: not server._doors._sessions)
    until(lambda: threads("session") <= before[0] and threads("send") <= before[1])
    assert server._doors._servicer._seats.count == 0


@pytest.mark.usefixtures("duplex")
def test_an_answer_that_does_not_come_in_time_is_a_lost_ps(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.model_copy(update={"request_timeout_s": 0.5, "reconnect_timeout_s": 0.5})
    server = start()
    session = open_session(server, settings=settings)
    v = VariableDefinition("v", (1_000_000,), F32)
    define(session, v)
    over = threading.Event()
    applying = server.store.applying

    def slow(*arguments: Any) -> Any:
        over.wait(10)
        return applying(*arguments)

    monkeypatch.setattr(server.store, "applying", slow)
    try:
        began = time.monotonic()
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):
            session.step(add([v]), ["v"])
        assert time.monotonic() - began < 6
    finally:
        over.set()


@pytest.mark.usefixtures("duplex")
def test_an_abort_ends_a_step_under_way(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = open_session(server)
    v = VariableDefinition("v", (4_000_000,), F32)
    define(session, v)
    error, reached, over = PeerLostError("the chief is lost"), threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        reached.set()
        over.wait(10)
        raise RefusedError("too late")

    monkeypatch.setattr(server.store, "applying", hang)

    def abort() -> None:
        reached.wait(5)
        session.abort(error)

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        with pytest.raises(PeerLostError) as caught:
            session.step(add([v]), ["v"])
        assert caught.value is error
    finally:
        over.set()
        thread.join(5)


# -- refused steps -------------------------------------------------------------------------------


@pytest.mark.usefixtures("duplex")
@pytest.mark.parametrize("size", [10, 100_000, 2_000_000], ids=lambda n: f"{n}-floats")
def test_a_refused_step_is_read_to_its_end_and_the_session_goes_on(
    start: Start, open_session: OpenSession, size: int
) -> None:
    session = open_session(start())
    v = VariableDefinition("v", (size,), F32)
    define(session, v)
    carrier = carrier_of(session)
    gradient = PushPayload({"v": np.ones(size, np.float32)}, Operation.APPLY)
    with pytest.raises(RefusedError, match="no update rule"):
        session.step(gradient, ["v"])
    session.bind(["v"], SGD(learning_rate=1.0))
    for count in range(1, 4):
        assert (session.step(gradient, ["v"]).values["v"] == -count).all()
    assert carrier_of(session) is carrier
    assert description(session) == "tcp"


@pytest.mark.usefixtures("duplex")
def test_a_step_over_the_ps_limit_is_told_before_the_connection_ends(
    start: Start, open_session: OpenSession
) -> None:
    """A client without our own check sends it all; the ps does not read it."""
    server = start(max_step_bytes=8 * MIB)
    session = open_session(server)
    v = VariableDefinition("v", (8 * MIB // 4 + 1,), F32)
    transport_of(session)._max_step_bytes = 2**40
    with pytest.raises(LimitExceededError, match="8388612 bytes is over max_step_bytes") as caught:
        session.define([v], {"v": np.zeros(v.shape, F32)}, create=True)
    assert caught.value.fields["limit"] == "max_step_bytes"
    define(session, W)
    works(session, 1)
    assert description(session) == "tcp"


@pytest.mark.parametrize("lie", [-4, 4], ids=["fewer", "more"])
def test_a_ps_that_sends_another_size_than_was_asked_for_is_refused_and_asked_anew(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, lie: int
) -> None:
    """Where the next answer begins is not known then: the session must not stay there."""
    server = start()
    session = open_session(server)
    define(session, W)
    write = servicer._Session._writer

    def lying(self: Any, reply: Any) -> Any:
        reply.payload_bytes += lie
        return write(self, reply)

    with monkeypatch.context() as patched:
        patched.setattr(servicer._Session, "_writer", lying)
        with pytest.raises(RefusedError, match=f"sent {12 + lie} bytes for a pull of 12"):
            session.step(None, ["w"])
    assert (session.step(None, ["w"]).values["w"] == 0).all()
    works(session, 1)
    assert description(session) == "tcp"


def test_a_frame_that_is_shorter_than_its_reply_says_is_refused_and_asked_anew(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    write = wires.SocketWire.writer

    def lying(self: Any, message: bytes, payload_bytes: int) -> Any:
        return write(self, message, payload_bytes - 4)

    with monkeypatch.context() as patched:
        patched.setattr(wires.SocketWire, "writer", lying)
        with pytest.raises(RefusedError, match="12 bytes of a payload that has 8 left"):
            session.step(None, ["w"])
    assert (session.step(None, ["w"]).values["w"] == 0).all()
    works(session, 1)
    assert description(session) == "tcp"


@pytest.mark.parametrize("size", [0, 8, 16])
def test_a_step_with_another_payload_than_it_says_is_refused_and_ends_its_session(
    start: Start, open_session: OpenSession, size: int
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    step = ps_pb2.Step(request_id=1, payload_bytes=12)
    frame = ps_pb2.ExchangeRequest(step=step).SerializeToString()
    with welcomed(server, 1) as welcome, closing(FrameSocket(dial(server), MIB)) as frames:
        enter(frames, welcome.ticket, 1)
        frames.write(frame_head(frame, size) + bytes(size))
        message = frames.receive()
        assert message is not None
        reply = ps_pb2.ExchangeResponse.FromString(bytes(message)).step
        refused = error_table.from_detail(reply.error)
        assert isinstance(refused, RefusedError)
        assert f"{size} bytes follow a step of 12" in refused.message
        if size:
            message = frames.receive()
            assert message is not None
            assert ps_pb2.ExchangeResponse.FromString(bytes(message)).HasField("failure")
            assert frames.receive() is None
    until(lambda: len(server._doors._sessions) == 1)
    works(session, 1)


# -- exactly once --------------------------------------------------------------------------------


def count_tickets(server: PsServer, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    redeemed: list[bool] = []
    redeem = server._doors._servicer._tickets.redeem

    def counting(ticket: bytes) -> bool:
        redeemed.append(redeem(ticket))
        return redeemed[-1]

    monkeypatch.setattr(server._doors._servicer._tickets, "redeem", counting)
    return redeemed


def test_a_connection_cut_between_steps_is_made_anew_with_a_new_ticket(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    redeemed = count_tickets(server, monkeypatch)
    session = open_session(server)
    define(session, W)
    for value in range(1, 6):
        carrier_of(session).cancel()
        works(session, value)
        assert description(session) == "tcp"
    assert redeemed == [True] * 6


def test_a_push_whose_answer_was_lost_is_applied_once(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    redeemed = count_tickets(server, monkeypatch)
    session = open_session(server)
    define(session, W)
    transport = transport_of(session)
    send, before = transport.send, server.store.counters().pushes

    def send_and_cut(request: Any) -> None:
        send(request)
        until(lambda: server.store.counters().pushes > before)
        carrier_of(session).cancel()

    transport.send = send_and_cut  # type: ignore[method-assign]
    result = session.step(add([W]), ["w"], step_increment=1)
    np.testing.assert_array_equal(result.values["w"], 1)
    assert result.global_step == 1
    assert server.store.counters().pushes == before + 1
    assert redeemed == [True, True]


@pytest.mark.usefixtures("duplex")
def test_pushes_cut_at_random_moments_are_applied_once(
    start: Start, open_session: OpenSession
) -> None:
    """Several blocks: those that had arrived skip the repeat, the others take it."""
    server = start()
    session = open_session(server)
    variables = [VariableDefinition(f"v{i}", (200_000,), F32) for i in range(8)]
    define(session, *variables)
    names = [v.name for v in variables]
    rng = np.random.default_rng(0)
    pause = threading.Event()
    for expected in range(1, 31):
        begun = threading.Event()

        def break_off(
            begun: threading.Event = begun, after_s: float = rng.uniform(0, 0.01)
        ) -> None:
            begun.wait(5)
            pause.wait(after_s)
            stream = transport_of(session)._stream
            if stream is not None:
                stream.carrier.cancel()

        thread = threading.Thread(target=break_off)
        thread.start()
        begun.set()
        try:
            values = session.step(add(variables), names, step_increment=1).values
        finally:
            thread.join(5)
        for name in names:
            assert (values[name] == expected).all()
        assert session.global_step == expected
    session.close()
    until(lambda: not server._doors._sessions)


# -- both directions at once ---------------------------------------------------------------------

LARGE = [VariableDefinition(f"large{i}", (3_000_000,), F32) for i in range(4)]  # 12 MB each
LARGE_NAMES = [v.name for v in LARGE]


def count_overlapped(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    counted: list[None] = []
    overlapped = servicer._Session._overlapped

    def counting(self: Any, *arguments: Any) -> Any:
        counted.append(None)
        return overlapped(self, *arguments)

    monkeypatch.setattr(servicer._Session, "_overlapped", counting)
    return counted


def test_large_steps_are_answered_while_they_arrive(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, duplex: bool
) -> None:
    """Far more than a socket holds goes both ways; nobody waits for the other. Every value is right."""
    overlapped = count_overlapped(monkeypatch)
    session = open_session(start())
    rng = np.random.default_rng(0)
    expected = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in LARGE}
    session.define(LARGE, expected, create=True)
    session.bind(LARGE_NAMES, SGD(learning_rate=0.5))
    for step in range(1, 4):
        gradients = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in LARGE}
        push = PushPayload(dict(gradients), Operation.APPLY)
        result = session.step(push, LARGE_NAMES, step_increment=1)
        for name in LARGE_NAMES:
            # A product with 0.5 is exact, so the order of rounding does not matter.
            expected[name] = expected[name] - np.float32(0.5) * gradients[name]
            np.testing.assert_array_equal(result.values[name], expected[name])
        assert result.global_step == step
    assert description(session) == "tcp"
    assert len(overlapped) == (3 if duplex else 0)


@pytest.mark.usefixtures("both_directions")
def test_steps_large_and_small_follow_each_other(start: Start, open_session: OpenSession) -> None:
    """From the sending thread and from the caller's own; their bytes do not mix."""
    session = open_session(start())
    sizes = (3, 10_000, 300_000, 2_000_000)
    variables = [VariableDefinition(f"v{size}", (size,), F32) for size in sizes]
    define(session, *variables)
    counts = dict.fromkeys(sizes, 0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        size = int(rng.choice(sizes))
        v = variables[sizes.index(size)]
        counts[size] += 1
        pulled = [v.name] if rng.random() < 0.6 else []
        values = session.step(add([v]), pulled).values
        for name in pulled:
            assert (values[name] == counts[size]).all()
    values = session.step(None, [v.name for v in variables]).values
    for size, v in zip(sizes, variables, strict=True):
        assert (values[v.name] == counts[size]).all()
    assert description(session) == "tcp"


@pytest.mark.usefixtures("both_directions")
def test_a_step_under_way_may_be_large(start: Start, open_session: OpenSession) -> None:
    """Nobody reads its early answer before the next call: the sending thread waits, not the caller."""
    session = open_session(start())
    define(session, *LARGE)
    for expected in range(1, 4):
        session.begin(add(LARGE), LARGE_NAMES, step_increment=1)
        threading.Event().wait(0.05)  # both directions are full by now
        values = session.step(None, LARGE_NAMES).values
        for name in LARGE_NAMES:
            assert (values[name] == expected).all()


@pytest.mark.usefixtures("both_directions")
def test_large_steps_cut_in_the_middle_are_repeated_and_applied_once(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    session = open_session(server)
    define(session, *LARGE)
    transport = transport_of(session)
    send, rng = transport.send, np.random.default_rng(0)
    cuts: list[threading.Thread] = []

    def send_and_cut(request: Any) -> None:
        before = server.store.counters().bytes_in

        def cut() -> None:
            until(lambda: server.store.counters().bytes_in > before)  # the head has arrived
            threading.Event().wait(float(rng.uniform(0, 0.03)))
            stream = transport._stream
            if stream is not None:
                stream.carrier.cancel()

        cuts.append(threading.Thread(target=cut))
        cuts[-1].start()
        send(request)

    transport.send = send_and_cut  # type: ignore[method-assign]
    for expected in range(1, 7):
        try:
            result = session.step(add(LARGE), LARGE_NAMES, step_increment=1)
        finally:
            cuts[-1].join(10)
        for name in LARGE_NAMES:
            assert (result.values[name] == expected).all()
        assert result.global_step == expected


@pytest.mark.usefixtures("both_directions")
def test_the_sending_thread_ends_with_its_connection(
    start: Start, open_session: OpenSession
) -> None:
    before = threads("send")
    session = open_session(start())
    define(session, *LARGE)
    session.step(add(LARGE), LARGE_NAMES)
    assert len(threads("send") - before) == 1
    for _ in range(3):
        carrier_of(session).cancel()
        session.step(add(LARGE), LARGE_NAMES)
        until(lambda: len(threads("send") - before) == 1)
    session.close()
    until(lambda: threads("send") <= before)


@pytest.mark.usefixtures("both_directions")
def test_a_close_in_mid_push_ends_the_sending_thread(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads("send")
    server = start()
    session = open_session(server)
    define(session, *LARGE)
    over, reached = threading.Event(), threading.Event()
    applying = server.store.applying

    def slow(*arguments: Any) -> Any:
        reached.set()
        over.wait(10)
        return applying(*arguments)

    monkeypatch.setattr(server.store, "applying", slow)
    try:
        session.begin(add(LARGE), LARGE_NAMES)
        assert reached.wait(5)
        assert threads("send") != before  # it waits for room
        session.close()
        until(lambda: threads("send") <= before)
    finally:
        over.set()


def are_gone(arrays: Sequence[weakref.ref[Any]]) -> bool:
    return all(array() is None for array in arrays)


@pytest.mark.usefixtures("both_directions")
def test_the_arrays_of_a_step_are_not_kept_after_it(
    start: Start, open_session: OpenSession
) -> None:
    session = open_session(start())
    define(session, *LARGE)
    for pulls in ([], LARGE_NAMES):
        push = add(LARGE)
        arrays = [weakref.ref(array) for array in push.values.values()]
        session.step(push, pulls)
        del push
        until(partial(are_gone, arrays))


@pytest.mark.usefixtures("both_directions")
def test_a_payload_that_cannot_be_made_breaks_the_connection_and_not_the_session(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Say, no memory for a copy. Nobody waits for the request timeout to find that out."""
    session = open_session(start())
    define(session, *LARGE)
    parts, failures = stream_transport._parts, iter([MemoryError("no memory for a copy")])

    def failing(request: Any) -> Iterator[memoryview]:
        for number, part in enumerate(parts(request)):
            if number == 2:
                for failure in failures:
                    raise failure
            yield part

    monkeypatch.setattr(stream_transport, "_parts", failing)
    began = time.monotonic()
    values = session.step(add(LARGE), LARGE_NAMES).values
    assert time.monotonic() - began < SETTINGS.request_timeout_s / 2
    for name in LARGE_NAMES:
        assert (values[name] == 1).all()
