"""Admitted callers that take no answers, of every role: whom they may not hold up."""

import contextlib
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from helpers.callers import CA, LET_IN, REFUSED, Caller, Way
from helpers.tls_files import authority
from helpers.waiting import scaled, wait_until
from ropewalk.cluster.access import Principal
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec
from ropewalk.net.auth.credentials import AUTHORIZATION
from ropewalk.net.http2 import frames
from ropewalk.net.http2.frames import PREFACE, Kind, Setting, encode_fields
from ropewalk.net.tunnel import METHOD as TUNNEL
from ropewalk.proto.v1 import chief_pb2, ps_pb2
from ropewalk.server.chief.server import ChiefServer
from ropewalk.server.ps.server import PsServer

pytestmark = pytest.mark.timeout(180)

JOB = "mnist"
CHIEF, WORKER = Principal("chief", JOB, 0), Principal("worker", JOB, 0)
ROLES = {
    "reader": Principal("reader", JOB),
    "driver": Principal("driver", JOB),
    "evaluator": Principal("evaluator", JOB, 0),
    "ps": Principal("ps", JOB, 1),
    "worker": Principal("worker", JOB, 1),
}
CONNECTIONS, CALLS = 12, 64  # more calls than either has threads and places to wait
STATUS, HEARTBEAT = "/ropewalk.proto.v1.Chief/GetStatus", "/ropewalk.proto.v1.Chief/Heartbeat"
GET_JOB, ATTACH, DEFINE = (
    f"/ropewalk.proto.v1.ParameterServer/{name}" for name in ("GetJob", "Attach", "Define")
)
PROMPT_S = 2.0  # a lease is renewed many times within its 10 s


class Cluster:
    """A chief and a ps that ask for certificates or tokens."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.way = Way(mode, folder, JOB)
        self._folder = folder
        self.chief = ChiefServer(
            TaskId("chief", 0),
            [(TaskId("worker", 0), "")],
            self.way.settings("chief"),
            job_id=JOB,
        )
        self.ps = PsServer(TaskId("ps", 0), self.way.settings("ps"), has_chief=True)
        self.stack = ExitStack()
        for server in (self.chief, self.ps):
            server.start("127.0.0.1:0")
            self.stack.callback(server.stop)

    def caller(self, who: Principal, server: ChiefServer | PsServer) -> Caller:
        """Somebody who behaves, on a new connection."""
        shown = self.way.shown(who)
        return self.stack.enter_context(Caller(shown, server.port, True, self._folder))

    def connect(self, who: Principal, port: int) -> ssl.SSLSocket:
        """A bare connection of somebody who is admitted."""
        context = ssl.create_default_context(cadata=authority(CA).pem.decode())
        context.set_alpn_protocols(["h2"])
        certificate = self.way.shown(who).certificate
        if certificate is not None:
            shown, key = self._folder / f"{who.role}.crt", self._folder / f"{who.role}.key"
            shown.write_bytes(certificate[0])
            key.write_bytes(certificate[1])
            context.load_cert_chain(shown, key)
        plain = socket.create_connection(("127.0.0.1", port), scaled(10))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return self.stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))

    def fields(self, who: Principal, path: str, port: int) -> bytes:
        """The fields of a call."""
        said = self.way.shown(who).authorization(path, port)
        return encode_fields(
            [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "x"),
             ("content-type", "application/grpc"), ("te", "trailers"),
             *([(AUTHORIZATION, said)] if said else [])]
        )  # fmt: skip


@pytest.fixture
def cluster(mode: str, tmp_path: Path) -> Iterator[Cluster]:
    tmp_path.chmod(0o700)
    made = Cluster(mode, tmp_path)
    with made.stack:
        yield made


def register(cluster: Cluster) -> Incarnation:
    """Have worker 0 join."""
    caller = cluster.caller(WORKER, cluster.chief)
    path = "/ropewalk.proto.v1.Chief/Register"
    request = chief_pb2.RegisterRequest(task=codec.task_to_wire(TaskId("worker", 0)), job=JOB)
    request.versions.CopyFrom(codec.versions_to_wire(own_versions()))
    stub: Any = caller.channel.unary_unary(path)
    answer = stub(request.SerializeToString(), timeout=scaled(10), metadata=caller.metadata(path))
    generation = chief_pb2.RegisterResponse.FromString(answer).generation
    return Incarnation(TaskId("worker", 0), generation, JOB)


def heartbeat(who: Incarnation) -> bytes:
    request = chief_pb2.HeartbeatRequest()
    getattr(request, "from").CopyFrom(codec.incarnation_to_wire(who))
    return request.SerializeToString()


def attach() -> bytes:
    request = ps_pb2.AttachRequest(lease_s=1000.0)
    request.chief.CopyFrom(codec.incarnation_to_wire(Incarnation(TaskId("chief", 0), 1, JOB)))
    return request.SerializeToString()


def seconds_of(caller: Caller, path: str, request: bytes) -> float:
    """How long a call took, which must be answered."""
    began = time.monotonic()
    stub: Any = caller.channel.unary_unary(path)
    stub(request, timeout=scaled(10), metadata=caller.metadata(path))
    return time.monotonic() - began


def many_calls(cluster: Cluster, who: Principal, path: str, port: int, window: int) -> bytes:
    """Calls whose answers are not read, as bytes."""
    fields = cluster.fields(who, path, port)
    calls = b"".join(
        frames.frame(Kind.HEADERS, frames.END_HEADERS, number, fields)
        + frames.frame(Kind.DATA, frames.END_STREAM, number, bytes(5))
        for number in range(1, 2 * CALLS, 2)
    )
    return PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: window}) + calls


@pytest.mark.parametrize(
    ("mode", "role", "window"),
    [
        *(
            pytest.param(
                *("token", role, 0),
                id=role,
                marks=() if role == "reader" else pytest.mark.soak,
            )
            for role in ROLES
        ),
        pytest.param("mtls", "reader", 0, id="by certificate"),
        pytest.param("token", "reader", 2**31 - 1, id="unread"),
    ],
)
def test_calls_whose_answers_are_not_taken_hold_up_no_lease(
    cluster: Cluster, role: str, window: int
) -> None:
    who = ROLES[role]
    worker = register(cluster)
    targets = ((STATUS, cluster.chief.port), (GET_JOB, cluster.ps.port))
    for path, port in targets:
        calls = many_calls(cluster, who, path, port, window)
        for _ in range(CONNECTIONS):
            connection = cluster.connect(who, port)
            with contextlib.suppress(OSError):
                connection.sendall(calls)
    beats = cluster.caller(WORKER, cluster.chief)
    leads = cluster.caller(CHIEF, cluster.ps)
    for _ in range(5):
        assert seconds_of(beats, HEARTBEAT, heartbeat(worker)) < scaled(PROMPT_S)
        assert seconds_of(leads, ATTACH, attach()) < scaled(PROMPT_S)
    # Others who ask the same things are answered, too.
    asks = cluster.caller(CHIEF, cluster.chief)
    assert seconds_of(asks, STATUS, b"") < scaled(PROMPT_S)


def open_tunnels(cluster: Cluster, who: Principal, port: int, service: str, count: int) -> bytes:
    """Tunnels with a greeting each, whose answers are not read, as bytes."""
    hello = cluster.caller(who, cluster.ps).hello(service)
    fields = cluster.fields(who, TUNNEL, port)
    message = struct.pack(">BI", 0, len(hello)) + hello
    return (
        PREFACE
        + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
        + b"".join(
            frames.frame(Kind.HEADERS, frames.END_HEADERS, number, fields)
            + frames.frame(Kind.DATA, 0, number, message)
            for number in range(1, 2 * count, 2)
        )
    )


@pytest.mark.parametrize("mode", ["mtls"])
@pytest.mark.parametrize("service", [pytest.param("who", marks=pytest.mark.soak), "ps"])
def test_tunnels_whose_welcome_is_not_taken_keep_no_worker_out(
    cluster: Cluster, service: str
) -> None:
    reader = ROLES["reader"]
    cluster.ps.lease.renew(Incarnation(TaskId("chief", 0), 1, JOB), "127.0.0.1:1", 1000.0)
    before = threading.active_count()
    opened = open_tunnels(cluster, reader, cluster.ps.port, service, CALLS)
    for _ in range(8):
        connection = cluster.connect(reader, cluster.ps.port)
        with contextlib.suppress(OSError):
            connection.sendall(opened)
    worker = cluster.caller(WORKER, cluster.ps)
    for _ in range(3):
        assert worker.greet_tcp("ps").verdict == LET_IN
        assert worker.greet_in_tunnel("ps").verdict == LET_IN
    assert threading.active_count() - before < 6 * CALLS, "half of the places are others'"
    wait_until(lambda: threading.active_count() - before < 100, 30, "the tunnels to be given up")
    assert worker.greet_tcp("ps").verdict == LET_IN


@pytest.mark.parametrize("mode", ["token"])
def test_requests_that_never_end_fill_no_memory(cluster: Cluster) -> None:
    reader, port = ROLES["reader"], cluster.ps.port
    fields = cluster.fields(reader, DEFINE, port)
    size = cluster.way.settings("ps").max_message_bytes
    begun = struct.pack(">BI", 0, size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opening = PREFACE + frames.settings({})
    calls = [
        frames.frame(Kind.HEADERS, frames.END_HEADERS, number, fields)
        + frames.frame(Kind.DATA, 0, number, begun)
        for number in range(1, 64, 2)
    ]
    for _ in range(4):
        connection = cluster.connect(reader, port)
        connection.settimeout(scaled(1))  # at its end the ps reads no more of it
        with contextlib.suppress(OSError):
            connection.sendall(opening + b"".join(calls))
            for _ in range(30):
                for number in range(1, 64, 2):
                    connection.sendall(frames.frame(Kind.DATA, 0, number, bytes(16_000)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 60 * 1024  # KiB, of 60 MB that were sent
    leads = cluster.caller(CHIEF, cluster.ps)
    assert seconds_of(leads, ATTACH, attach()) < scaled(PROMPT_S)


@pytest.mark.parametrize("mode", ["token"])
def test_a_caller_that_is_refused_again_and_again_writes_a_line_a_second(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    reader = cluster.caller(ROLES["reader"], cluster.ps)
    began = time.monotonic()
    with caplog.at_level("WARNING", "ropewalk.audit"):
        for _ in range(30):
            assert reader.call(ATTACH, attach()) == REFUSED
    refusals = [line for line in caplog.messages if "Attach by reader" in line]
    assert 1 <= len(refusals) <= 1 + (time.monotonic() - began)
