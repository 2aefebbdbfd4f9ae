"""The ps's local socket: sessions that come near, what they are told, and cuts at any moment."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport
from windlass.net.listeners import LocalListener
from windlass.server.ps.doors import Doors

from windlass.client.ps import streams
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.core.definitions import VariableDefinition
from windlass.core.errors import FencedError, LimitExceededError, PeerLostError, WindlassError
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId
from windlass.server.ps.server import PsServer

PS = TaskId("ps", 0)
F32 = np.dtype(np.float32)
W = VariableDefinition("w", (3,), F32)
SETTINGS = Settings(
    chunk_bytes=4096,
    max_message_bytes=64 * 1024,
    max_step_bytes=64 * 1024**2,
    max_sessions=3,
    request_timeout_s=5.0,
    reconnect_timeout_s=3.0,
    join_timeout_s=2.0,
    tcp_sessions=False,  # a session that does not come near stays with gRPC
)

GRPC = "grpc (tcp_sessions is off)"

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def start() -> Iterator[Callable[..., PsServer]]:
    """Starts ps on loopback."""
    started: list[PsServer] = []

    def make(**changes: Any) -> PsServer:
        server = PsServer(PS, SETTINGS.model_copy(update=changes))
        server.start("127.0.0.1:0")
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop(grace_s=0)


@pytest.fixture
def open_session() -> Iterator[Callable[..., ParameterSession]]:
    """Connects sessions that want to come near, and closes them."""
    opened: list[ParameterSession] = []

    def make(
        server: PsServer, index: int = 0, *, near: bool = True, settings: Settings = SETTINGS
    ) -> ParameterSession:
        who = Incarnation(TaskId("worker", index), 1)
        transport = StreamTransport(PS, f"127.0.0.1:{server.port}", who, settings, near=near)
        session = ParameterSession([transport], who, settings)
        opened.append(session)
        session.connect()
        return session

    yield make
    for session in opened:
        session.close()


Start = Callable[..., PsServer]
OpenSession = Callable[..., ParameterSession]


def transport_of(session: ParameterSession) -> StreamTransport:
    [transport] = session.peers
    assert isinstance(transport, StreamTransport)
    return transport


def description(session: ParameterSession) -> str:
    return transport_of(session).description


def door_of(server: PsServer) -> LocalListener:
    local = server._doors.local
    assert local is not None
    return local


def open_at(doors: Doors) -> int:
    return len(doors._sessions)


def servicer_of(server: PsServer) -> Any:
    return server._doors._servicer


def by_socket(server: PsServer) -> streams.SocketStream:
    connection = streams.local_connection(door_of(server).name)
    return streams.SocketStream(connection, "unix socket", 2**20, "the ps", duplex=False)


def cut(session: ParameterSession) -> None:
    stream = transport_of(session)._stream
    assert stream is not None
    stream.carrier.cancel()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does, 5 s at most."""
    deadline = time.monotonic() + 5
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        pause.wait(0.002)


def add(variable: VariableDefinition, value: float) -> PushPayload:
    values = {variable.name: np.full(variable.shape, value, variable.dtype)}
    return PushPayload(values, Operation.ASSIGN_ADD)


def define(session: ParameterSession, *variables: VariableDefinition) -> None:
    zeros = {v.name: np.zeros(v.shape, v.dtype) for v in variables}
    session.define(variables, zeros, create=True)


def works(session: ParameterSession, value: float) -> None:
    np.testing.assert_array_equal(session.step(add(W, 1), ["w"]).values["w"], value)


# -- coming near -------------------------------------------------------------------------------


def test_a_session_goes_on_over_the_socket_and_gives_its_seat_on_grpc_back(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    works(session, 1)
    assert session.transports == ("ps:0 unix socket",)
    servicer = servicer_of(server)
    until(lambda: servicer._seats.count == 1)


@pytest.mark.parametrize("size", [1, 1000, 20_000, 3_000_000], ids=lambda n: f"{n}-floats")
def test_steps_of_every_size_go_through(start: Start, open_session: OpenSession, size: int) -> None:
    session = open_session(start())
    v = VariableDefinition("v", (size,), F32)
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    session.define([v], {"v": values}, create=True)
    np.testing.assert_array_equal(session.step(add(v, 1), ["v"]).values["v"], values + 1)
    assert description(session) == "unix socket"


def test_workers_near_and_far_see_the_same_values(start: Start, open_session: OpenSession) -> None:
    server = start()
    near, far = open_session(server, 0), open_session(server, 1, near=False)
    define(near, W)
    far.define([W], {}, create=False)
    for value in range(1, 9, 2):
        works(near, value)
        works(far, value + 1)
    assert (description(near), description(far)) == ("unix socket", GRPC)


def test_a_ps_that_shares_no_memory_has_no_socket(start: Start, open_session: OpenSession) -> None:
    server = start(shared_memory=False)
    session = open_session(server)
    define(session, W)
    works(session, 1)
    assert description(session) == GRPC


def test_a_name_nobody_listens_at_means_grpc(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    servicer = servicer_of(server)
    monkeypatch.setattr(servicer, "local_socket", "windlass-of-another-machine")
    session = open_session(server)
    define(session, W)
    works(session, 1)
    assert description(session) == GRPC


def test_a_socket_of_another_user_is_not_used(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "peer_user", lambda _: os.getuid() + 1)
    session = open_session(start())
    define(session, W)
    works(session, 1)
    assert description(session) == GRPC


def test_a_worker_of_another_user_is_not_let_in(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    monkeypatch.setattr("windlass.net.listeners.peer_user", lambda _: os.getuid() + 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(5)
        door.connect(f"\0{door_of(server).name}")
        assert door.recv(1) == b""


def test_a_worker_the_socket_does_not_let_in_stays_with_grpc(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.net.listeners.peer_user", lambda _: os.getuid() + 1)
    session = open_session(start())
    define(session, W)
    works(session, 1)
    assert description(session) == GRPC


# -- limits and errors -------------------------------------------------------------------------


def test_the_last_seat_is_enough_to_come_near(start: Start, open_session: OpenSession) -> None:
    session = open_session(start(max_sessions=1))
    define(session, W)
    works(session, 1)


def test_more_sessions_than_allowed_are_refused_by_the_limits_name_as_over_grpc(
    start: Start, open_session: OpenSession
) -> None:
    server = start(max_sessions=2)
    servicer = servicer_of(server)
    # By hand: each has one seat, on the socket.
    carriers = []
    for index in range(2):
        transport = StreamTransport(
            PS, "127.0.0.1:1", Incarnation(TaskId("worker", index), 1), SETTINGS
        )
        carrier = by_socket(server)
        transport._greet(carrier)
        carriers.append((transport, carrier))
    assert servicer._seats.count == 2
    texts = []
    for near in (False, True):
        who = Incarnation(TaskId("worker", 9), 1)
        transport = StreamTransport(PS, f"127.0.0.1:{server.port}", who, SETTINGS)
        carrier = by_socket(server)
        with pytest.raises(LimitExceededError) as caught:
            transport._greet(carrier) if near else transport.connect(5)
        carrier.close()
        texts.append((caught.value.message, caught.value.fields))
        transport.close()
    assert texts[0] == texts[1]
    assert "serves 2 sessions already (max_sessions)" in texts[0][0]
    for transport, _ in carriers:
        transport.close()
    until(lambda: servicer._seats.count == 0)
    define(open_session(server), W)


def both(
    start: Start, open_session: OpenSession, fail: Callable[[ParameterSession], object]
) -> Any:
    """What the same failing session is told over gRPC and over the socket; the ps serves on after each."""
    told = []
    for near in (False, True):
        server = start()
        session = open_session(server, near=near)
        define(session, W)
        with pytest.raises(WindlassError) as caught:
            fail(session)
        assert description(session) == ("unix socket" if near else GRPC)
        told.append((type(caught.value), caught.value.message, caught.value.fields))
        other = open_session(server, 1, near=near)
        other.define([W], {}, create=False)
        works(other, 1)
    assert told[0] == told[1]
    return told[0]


def test_a_step_over_the_ps_limit_ends_the_session_with_the_same_error(
    start: Start, open_session: OpenSession
) -> None:
    """A client without our own check sends it all; the ps says why before it closes."""

    def send_too_much(session: ParameterSession) -> None:
        transport = transport_of(session)
        transport._max_step_bytes = 2**40
        v = VariableDefinition("v", (SETTINGS.max_step_bytes // 4 + 1,), F32)
        session.define([v], {"v": np.zeros(v.shape, F32)}, create=True)

    kind, text, fields = both(start, open_session, send_too_much)
    assert kind is LimitExceededError
    assert f"a step of {SETTINGS.max_step_bytes + 4} bytes is over max_step_bytes" in text
    assert fields["limit"] == "max_step_bytes"


def test_a_restarted_ps_is_told_with_the_same_error(
    start: Start, open_session: OpenSession
) -> None:
    def expect_another(session: ParameterSession) -> None:
        transport_of(session)._ps_generation += 1
        cut(session)
        try:
            session.step(add(W, 1))
        except FencedError as error:
            # The two generations are of this run.
            raise FencedError(error.message.split("(")[0]) from None

    def fail(session: ParameterSession) -> None:
        try:
            expect_another(session)
        finally:
            transport_of(session)._ps_generation = 0
            transport_of(session).connect(5)

    kind, text, _ = both(start, open_session, fail)
    assert kind is FencedError
    assert "restarted and lost its variables" in text


def test_nonsense_from_a_client_ends_its_session_and_no_other(
    start: Start, open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    rng = np.random.default_rng(0)
    wholes = [b"", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\5\0\0\0\x0a\3abc", rng.bytes(50)]
    for whole in wholes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(5)
            door.connect(f"\0{door_of(server).name}")
            door.sendall(whole)
            door.shutdown(socket.SHUT_WR)
            while door.recv(4096):
                pass
    works(session, 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# -- ends --------------------------------------------------------------------------------------


def test_a_ps_that_stops_ends_its_sessions(open_session: OpenSession) -> None:
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    settings = SETTINGS.model_copy(update={"reconnect_timeout_s": 0.5})
    sessions = [open_session(server, index, settings=settings) for index in range(2)]
    define(sessions[0], W)
    works(sessions[0], 1)
    local = door_of(server)
    server.stop(grace_s=0)
    until(lambda: not open_at(server._doors))
    with pytest.raises(PeerLostError, match="/job:ps/task:0"):
        sessions[0].step(add(W, 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door, pytest.raises(OSError):  # noqa: PT011
        door.connect(f"\0{local.name}")


def test_stopping_twice_is_fine() -> None:
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    server.stop(grace_s=0)
    server.stop(grace_s=0)


def test_a_client_that_goes_away_leaves_nothing_behind(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    for index in range(10):  # more than may be there at once
        session = open_session(server, index)
        if not index:
            define(session, W)
        session.close()
        until(lambda: not open_at(server._doors))


def test_an_answer_that_does_not_come_in_time_is_a_lost_ps(
    start: Start, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.model_copy(update={"request_timeout_s": 0.5, "reconnect_timeout_s": 0.5})
    server = start()
    session = open_session(server, settings=settings)
    define(session, W)
    over = threading.Event()
    push = server.store.push

    def slow(*arguments: Any) -> Any:
        over.wait(10)
        return push(*arguments)

    monkeypatch.setattr(server.store, "push", slow)
    try:
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):
            session.step(add(W, 1))
    finally:
        over.set()


# -- exactly once ------------------------------------------------------------------------------


def test_a_socket_cut_between_steps_is_opened_again(
    start: Start, open_session: OpenSession
) -> None:
    session = open_session(start())
    define(session, W)
    for value in range(1, 6):
        cut(session)
        works(session, value)
        assert description(session) == "unix socket"


def test_a_push_whose_answer_was_lost_is_applied_once(
    start: Start, open_session: OpenSession
) -> None:
    server = start()
    session = open_session(server)
    define(session, W)
    transport = transport_of(session)
    send, before = transport.send, server.store.counters().pushes

    def send_and_cut(request: Any) -> None:
        send(request)
        until(lambda: server.store.counters().pushes > before)
        cut(session)

    transport.send = send_and_cut  # type: ignore[method-assign]
    result = session.step(add(W, 1), ["w"], step_increment=1)
    np.testing.assert_array_equal(result.values["w"], 1)
    assert result.global_step == 1
    assert server.store.counters().pushes == before + 1


def test_pushes_cut_at_random_moments_are_applied_once(
    start: Start, open_session: OpenSession
) -> None:
    """Several blocks: those that had arrived skip the repeat, the others take it."""
    session = open_session(start())
    variables = [VariableDefinition(f"v{i}", (70_000,), F32) for i in range(8)]
    define(session, *variables)
    push = PushPayload({v.name: np.ones(v.shape, v.dtype) for v in variables}, Operation.ASSIGN_ADD)
    names = [v.name for v in variables]
    rng = np.random.default_rng(0)
    pause = threading.Event()
    for expected in range(1, 31):
        begun = threading.Event()

        def break_off(
            begun: threading.Event = begun, after_s: float = rng.uniform(0, 0.004)
        ) -> None:
            begun.wait(5)
            pause.wait(after_s)
            stream = transport_of(session)._stream
            if stream is not None:
                stream.carrier.cancel()

        thread = threading.Thread(target=break_off)
        thread.start()
        begun.set()
        values = session.step(push, names, step_increment=1).values
        thread.join(5)
        for name in names:
            assert (values[name] == expected).all()
        assert session.global_step == expected
