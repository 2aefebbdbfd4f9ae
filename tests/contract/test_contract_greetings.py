"""Greetings that are refused, and ports that cannot be greeted."""

import socket
import time
from contextlib import closing

import pytest

from helpers.faulty_stream import Faults, FaultyStream
from helpers.hosts import (
    PREFACE,
    SETTINGS,
    Proxy,
    Serve,
    dialer_to,
    echoes,
    every_kind,
    hello,
    reached,
)
from helpers.streams import open_descriptors, own_threads
from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import (
    LimitExceededError,
    PeerLostError,
    ProtocolMismatchError,
    RefusedError,
    RopewalkError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.connection_choice import ConnectionKind
from ropewalk.net.dial import Dialer, reach, receive_message
from ropewalk.proto.v1 import session_pb2

pytestmark = pytest.mark.timeout(60)


def other_protocol() -> session_pb2.ClientMessage:
    greeting = hello()
    dialer_to(1, SETTINGS["tcp"], greeting)
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
    serve: Serve, kind: str, message: bytes, error: type[RopewalkError], says: str
) -> None:
    host = serve()
    dialer = dialer_to(host.port, SETTINGS[kind])
    connection = dialer.tcp(scaled(5)) if kind == "tcp" else dialer.tunnel(scaled(5))
    with closing(connection):
        connection.deadline = time.monotonic() + scaled(5)
        connection.send([message])
        with pytest.raises(error, match=says):
            receive_message(connection)
        with pytest.raises(OSError, match=r"."):
            receive_message(connection)


def test_a_peer_of_another_protocol_is_told_of_on_both_sides(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    host = serve()
    connection = dialer_to(host.port, SETTINGS["tcp"]).tcp(scaled(5))
    with closing(connection):
        connection.deadline = time.monotonic() + scaled(5)
        connection.send([other_protocol().SerializeToString()])
        with pytest.raises(ProtocolMismatchError) as told:
            receive_message(connection)
    said = "/job:worker/task:3 speaks another protocol than /job:ps/task:0; "
    assert told.value.message.startswith(said)
    assert told.value.message in caplog.text


def test_who_goes_on_sending_hears_why_the_call_was_refused(serve: Serve) -> None:
    host = serve()
    connection = dialer_to(host.port, SETTINGS["grpc"]).tunnel(scaled(5))
    with closing(connection):
        connection.deadline = time.monotonic() + scaled(5)
        connection.send([b"\xff\xff"])
        for _ in range(1000):  # the answer comes meanwhile
            connection.send([bytes(100)])
        with pytest.raises(RefusedError, match="cannot be read"):
            receive_message(connection)
        with pytest.raises(OSError, match=r"."):
            receive_message(connection)


@every_kind
def test_a_refusal_comes_out_of_dialling_and_leaves_nothing(serve: Serve, kind: str) -> None:
    host = serve(SETTINGS[kind])
    dialer = dialer_to(host.port, SETTINGS[kind], hello("ring"))
    for turn in range(3):
        with pytest.raises(RefusedError, match="no service 'ring'"):
            reach(dialer, SETTINGS[kind], scaled(5), peer="ps")
        wait_until(lambda: set(own_threads()) <= {"listen", "grpc"}, 5)
        if not turn:
            before = open_descriptors()
    wait_until(lambda: open_descriptors() <= before, 5)


def test_nobody_at_the_port_is_a_lost_peer_soon(serve: Serve) -> None:
    host = serve()
    host.stop(0)
    for settings in SETTINGS.values():
        dialer = dialer_to(host.port, settings)
        began = time.monotonic()
        with pytest.raises(PeerLostError, match=r"/job:ps/task:0 .*cannot be reached: .*refused"):
            reach(dialer, settings, 30, peer="ps")
        assert time.monotonic() - began < scaled(5)


# -- where only HTTP/2 passes ------------------------------------------------------------------


def test_an_answer_that_is_late_is_checked_against_its_own_greeting(serve: Serve) -> None:
    """A tunnel has been greeted meanwhile, with another proof of the key."""
    settings = Settings(shared_memory=False)  # on loopback tasks prove a key
    host = serve(settings, service="ps")

    def come_late(stream: FaultyStream, number: int) -> None:
        faults.streams[0].pass_again() if number else stream.drop("receive")

    faults = Faults(plan=come_late)
    address, who = f"127.0.0.1:{host.port}", Incarnation(TaskId("worker", 3), 1)
    dialer = Dialer(address, "ps", hello("ps"), who, settings, faults.wrap)
    found = reach(dialer, settings, 2, peer="ps")
    with closing(found.connection):
        assert found.choice.kind is ConnectionKind.TCP
        assert echoes(found.connection)


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
