"""The gRPC transport and a ps under faults: cut streams, replaced or silent ps, clients without sense."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport
from windlass.net.hosting import GrpcHost

from windlass.client.ps.control import PsControl
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.core import codec, error_table
from windlass.core.definitions import ShardDefinition, VariableDefinition
from windlass.core.errors import (
    FencedError,
    JoinTimeoutError,
    LimitExceededError,
    PeerLostError,
    ProtocolMismatchError,
    RefusedError,
    ShapeMismatchError,
    UnknownVariableError,
    WindlassError,
)
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId
from windlass.core.versions import Versions, own_versions
from windlass.net.channel import open_channel
from windlass.proto.v1 import ps_pb2, ps_pb2_grpc
from windlass.server.ps.server import PsServer

PS = TaskId("ps", 0)
WHO = Incarnation(TaskId("worker", 0), 1)
SETTINGS = Settings(
    chunk_bytes=4096,
    max_message_bytes=64 * 1024,
    max_step_bytes=64 * 1024**2,
    max_sessions=3,
    request_timeout_s=5.0,
    reconnect_timeout_s=3.0,
    join_timeout_s=1.0,
    tcp_sessions=False,
)
F32 = np.dtype(np.float32)
W = VariableDefinition("w", (3,), F32)

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def server() -> Iterator[PsServer]:
    """A ps on loopback."""
    made = PsServer(PS, SETTINGS)
    made.start("127.0.0.1:0")
    yield made
    made.stop(grace_s=0)


def address_of(server: PsServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def open_session() -> Iterator[Callable[..., ParameterSession]]:
    """Connects sessions of one ps, and closes them."""
    opened: list[ParameterSession] = []

    def make(
        address: str, settings: Settings = SETTINGS, who: Incarnation = WHO
    ) -> ParameterSession:
        session = ParameterSession([StreamTransport(PS, address, who, settings)], who, settings)
        opened.append(session)
        session.connect()
        return session

    yield make
    for session in opened:
        session.close()


OpenSession = Callable[..., ParameterSession]


def transport_of(session: ParameterSession) -> StreamTransport:
    [transport] = session.peers
    assert isinstance(transport, StreamTransport)
    return transport


def cut(session: ParameterSession) -> None:
    """Break the stream, as a network would."""
    stream = transport_of(session)._stream
    assert stream is not None
    stream.carrier.cancel()


def add(variable: VariableDefinition, value: float) -> PushPayload:
    return PushPayload(
        {variable.name: np.full(variable.shape, value, variable.dtype)}, Operation.ASSIGN_ADD
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does, 5 s at most."""
    deadline = time.monotonic() + 5
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        pause.wait(0.002)


# -- cut streams -------------------------------------------------------------------------------


def test_a_stream_cut_between_steps_is_opened_again(
    server: PsServer, open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    session = open_session(address_of(server))
    session.define([W], {"w": np.zeros(3, F32)}, create=True)
    for _ in range(3):
        cut(session)
        session.step(add(W, 1), step_increment=1)
    result = session.step(None, ["w"])
    np.testing.assert_array_equal(result.values["w"], 3)
    assert result.global_step == 3
    assert "reconnecting" in caplog.text


def test_a_push_whose_answer_was_lost_is_applied_once(
    server: PsServer, open_session: OpenSession
) -> None:
    session = open_session(address_of(server))
    session.define([W], {"w": np.zeros(3, F32)}, create=True)
    transport = transport_of(session)
    send = transport.send
    before = server.store.counters().pushes

    def send_and_cut(request: Any) -> None:
        send(request)
        until(lambda: server.store.counters().pushes > before)
        cut(session)

    transport.send = send_and_cut  # type: ignore[method-assign]
    result = session.step(add(W, 1), ["w"], step_increment=1)
    np.testing.assert_array_equal(result.values["w"], 1)
    assert result.global_step == 1
    assert server.store.counters().pushes == before + 1


def test_a_push_cut_in_the_middle_of_its_payload_is_repeated_and_applied_once(
    server: PsServer, open_session: OpenSession
) -> None:
    """Several blocks: those that had arrived skip the repeat, the others take it."""
    session = open_session(address_of(server))
    variables = [VariableDefinition(f"v{i}", (100_000,), F32) for i in range(8)]
    session.define(variables, {v.name: np.zeros(v.shape, F32) for v in variables}, create=True)
    transport = transport_of(session)
    pushes = PushPayload({v.name: np.full(v.shape, 1, v.dtype) for v in variables}, Operation.ASSIGN_ADD)
    names = [v.name for v in variables]
    send = transport.send
    rng = np.random.default_rng(0)

    def send_and_cut(request: Any) -> None:
        before = server.store.counters().bytes_in
        send(request)
        until(lambda: server.store.counters().bytes_in > before)  # the header has arrived
        threading.Event().wait(float(rng.uniform(0, 0.01)))
        cut(session)

    for expected in range(1, 6):
        transport.send = send_and_cut  # type: ignore[method-assign]
        session.step(pushes, step_increment=1)
        transport.send = send  # type: ignore[method-assign]
        result = session.step(None, names)
        assert result.global_step == expected
        for name in names:
            np.testing.assert_array_equal(result.values[name], expected)


def test_a_pull_cut_in_the_middle_is_repeated(server: PsServer, open_session: OpenSession) -> None:
    session = open_session(address_of(server))
    v = VariableDefinition("v", (500_000,), F32)
    values = np.random.default_rng(0).standard_normal(v.shape).astype(np.float32)
    session.define([v], {"v": values}, create=True)
    transport = transport_of(session)
    send = transport.send

    def send_and_cut(request: Any) -> None:
        send(request)
        until(lambda: server.store.counters().pulls > 0)
        cut(session)

    transport.send = send_and_cut  # type: ignore[method-assign]
    np.testing.assert_array_equal(session.step(None, ["v"]).values["v"], values)


def test_an_abort_ends_a_step_that_waits(open_session: OpenSession) -> None:
    with silent_ps(welcomes=True) as (address, reached):
        session = open_session(address)
        error = PeerLostError("the chief is lost")

        def abort() -> None:
            until(reached.is_set)
            session.abort(error)

        thread = threading.Thread(target=abort)
        thread.start()
        session._placed["w"] = _placed()
        with pytest.raises(PeerLostError) as caught:
            session.step(add(W, 1))
        thread.join(5)
        assert caught.value is error


# -- ps that are gone, new, silent or strange --------------------------------------------------


def test_a_ps_that_was_replaced_is_told_from_the_one_that_was_there(
    open_session: OpenSession,
) -> None:
    first = PsServer(PS, SETTINGS)
    first.start("127.0.0.1:0")
    session = open_session(address_of(first))
    session.define([W], {"w": np.zeros(3, F32)}, create=True)
    port = first.port
    first.stop(grace_s=0)
    second = PsServer(PS, SETTINGS)
    second.start(f"127.0.0.1:{port}")
    try:
        with pytest.raises(FencedError, match="restarted and lost its variables") as caught:
            session.step(add(W, 1))
        assert "/job:ps/task:0" in caught.value.message
        assert "restart the job" in caught.value.message
        assert second.store.counters().pushes == 0
    finally:
        second.stop(grace_s=0)


def test_a_ps_that_is_gone_is_lost_after_the_reconnect_timeout(open_session: OpenSession) -> None:
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    settings = SETTINGS.model_copy(update={"reconnect_timeout_s": 0.5})
    session = open_session(address_of(server), settings)
    session.define([W], {"w": np.zeros(3, F32)}, create=True)
    server.stop(grace_s=0)
    began = time.monotonic()
    with pytest.raises(PeerLostError, match="/job:ps/task:0"):
        session.step(add(W, 1))
    assert time.monotonic() - began < 4


def test_nobody_listening_is_a_join_timeout_naming_the_ps() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        session = ParameterSession([StreamTransport(PS, address, WHO, SETTINGS)], WHO, SETTINGS)
        waited: list[list[str]] = []
        began = time.monotonic()
        with pytest.raises(JoinTimeoutError, match=r"waited 1 s \(join_timeout_s\)") as caught:
            session.connect(on_wait=waited.append)
        session.close()
    assert caught.value.fields["missing"] == "/job:ps/task:0"
    assert address in caught.value.message
    assert waited == [["/job:ps/task:0"]]
    assert time.monotonic() - began < 4


def test_a_socket_that_accepts_and_says_nothing_is_a_join_timeout() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        session = ParameterSession([StreamTransport(PS, address, WHO, SETTINGS)], WHO, SETTINGS)
        began = time.monotonic()
        with pytest.raises(JoinTimeoutError, match="/job:ps/task:0"):
            session.connect()
        assert time.monotonic() - began < 4.5
        session.close()


class silent_ps:  # noqa: N801 - used as a function
    """A ps that speaks gRPC and then falls silent: at once, or after its welcome."""

    def __init__(self, *, welcomes: bool, protocol: int | None = None) -> None:
        self.reached, self._over = threading.Event(), threading.Event()
        versions = own_versions()
        if protocol is not None:
            versions = Versions(protocol, "9.9", versions.python, versions.numpy)
        outer = self

        # Only the session: it has no other methods.
        class Servicer(ps_pb2_grpc.ParameterServerServicer):
            Attach = Define = EndJob = GetJob = SaveShards = None  # type: ignore[assignment]

            def Exchange(self, requests: Any, context: Any) -> Iterator[ps_pb2.ExchangeResponse]:
                next(requests)
                if welcomes:
                    yield ps_pb2.ExchangeResponse(
                        welcome=ps_pb2.Welcome(
                            ps_generation=1,
                            versions=codec.versions_to_wire(versions),
                            max_step_bytes=SETTINGS.max_step_bytes,
                            max_message_bytes=SETTINGS.max_message_bytes,
                        )
                    )
                    for _ in requests:
                        outer.reached.set()
                outer._over.wait(20)

        self._host = GrpcHost(
            PS,
            threads=8,
            settings=SETTINGS,
            add=lambda made: ps_pb2_grpc.add_ParameterServerServicer_to_server(Servicer(), made),
            services=[],
        )

    def __enter__(self) -> tuple[str, threading.Event]:
        self._host.start("127.0.0.1:0")
        return f"127.0.0.1:{self._host.port}", self.reached

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._host.stop(0)


def _placed() -> Any:
    from windlass.client.ps.plans import Placed

    return Placed(W, ((0, ShardDefinition(W)),))


def test_a_ps_that_never_welcomes_is_a_join_timeout() -> None:
    with silent_ps(welcomes=False) as (address, _):
        session = ParameterSession([StreamTransport(PS, address, WHO, SETTINGS)], WHO, SETTINGS)
        began = time.monotonic()
        with pytest.raises(JoinTimeoutError, match="/job:ps/task:0"):
            session.connect()
        assert time.monotonic() - began < 4
        session.close()


def test_a_ps_that_falls_silent_in_a_step_is_lost_within_the_timeouts(
    open_session: OpenSession,
) -> None:
    settings = SETTINGS.model_copy(update={"request_timeout_s": 0.5, "reconnect_timeout_s": 0.5})
    with silent_ps(welcomes=True) as (address, _):
        session = open_session(address, settings)
        session._placed["w"] = _placed()
        began = time.monotonic()
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):
            session.step(add(W, 1))
        assert time.monotonic() - began < 4


def test_a_ps_of_another_protocol_is_refused_with_both_versions(open_session: OpenSession) -> None:
    with (
        silent_ps(welcomes=True, protocol=999) as (address, _),
        pytest.raises(ProtocolMismatchError, match=r"(?s)install the same windlass.*999"),
    ):
        open_session(address)


# -- what a ps answers to nonsense -------------------------------------------------------------


def raw_stub(server: PsServer) -> Iterator[ps_pb2_grpc.ParameterServerStub]:
    channel = grpc.insecure_channel(
        address_of(server),
        options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
    )
    yield ps_pb2_grpc.ParameterServerStub(channel)
    channel.close()


@pytest.fixture
def stub(server: PsServer) -> Iterator[ps_pb2_grpc.ParameterServerStub]:
    """A client without any of our checks."""
    yield from raw_stub(server)


Request = ps_pb2.ExchangeRequest


def hello(index: int = 0, protocol: int | None = None, expected: int = 0) -> ps_pb2.ExchangeRequest:
    versions = codec.versions_to_wire(own_versions())
    if protocol is not None:
        versions.protocol = protocol
    message = ps_pb2.Hello(versions=versions, expected_ps_generation=expected)
    who = Incarnation(TaskId("worker", index), 1)
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(who))
    return Request(hello=message)


def layout(layout_id: int, *entries: ps_pb2.LayoutEntry) -> ps_pb2.ExchangeRequest:
    return Request(layout=ps_pb2.Layout(layout_id=layout_id, entries=entries))


def entry(variable: str, operation: Any = ps_pb2.OPERATION_ASSIGN_ADD, **more: Any) -> Any:
    more = {"encoding": ps_pb2.ENCODING_DENSE} | more
    return ps_pb2.LayoutEntry(variable=variable, operation=operation, **more)


def step(data: bytes = b"", **fields: Any) -> ps_pb2.ExchangeRequest:
    given: dict[str, Any] = {"request_id": 1, "sequence": 1, "payload_bytes": len(data)}
    return Request(step=ps_pb2.Step(**(given | fields)), data=data)


def talk(
    stub: ps_pb2_grpc.ParameterServerStub, messages: Iterable[ps_pb2.ExchangeRequest]
) -> list[ps_pb2.ExchangeResponse]:
    """All answers, or the error behind the failed call; 5 s at most."""
    try:
        return list(stub.Exchange(iter(messages), timeout=5))
    except grpc.RpcError as failure:
        raise error_table.from_rpc_error(failure, peer="the ps", doing="talk") from None


def define(server: PsServer) -> None:
    server.store.define(
        [ShardDefinition(W), ShardDefinition(VariableDefinition("table", (4, 2), F32))], WHO
    )


def still_serves(server: PsServer, stub: ps_pb2_grpc.ParameterServerStub) -> None:
    """The ps goes on: a well-behaved worker's step is applied."""
    before = server.store.counters().pushes
    answers = talk(
        stub,
        [hello(7), layout(1, entry("w")), step(np.ones(3, F32).tobytes(), push_layout=1)],
    )
    assert [answer.WhichOneof("kind") for answer in answers] == ["welcome", "step"]
    assert not answers[1].step.HasField("error")
    assert server.store.counters().pushes == before + 1


TWELVE = np.ones(3, F32).tobytes()


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([step()], RefusedError, "first message of a session must be Hello"),
        ([Request(data=b"payload")], RefusedError, "first message of a session must be Hello"),
        ([Request()], RefusedError, "first message of a session must be Hello"),
        ([hello(), Request(data=b"payload")], RefusedError, "a payload frame without a step"),
        ([hello(protocol=999)], ProtocolMismatchError, "999"),
        ([hello(expected=12345)], FencedError, "restarted and lost its variables"),
        (
            [hello(), step(payload_bytes=10**12)],
            LimitExceededError,
            "1000000000000 bytes is over max_step_bytes=67108864",
        ),
        (
            [hello(), layout(1, entry("w")), step(b"1234", push_layout=1, payload_bytes=12)],
            RefusedError,
            "8 bytes of the payload|ended",
        ),
    ],
    ids=[
        "step-first", "payload-first", "nothing-first", "payload-without-step", "protocol",
        "other-ps", "beyond-the-limit", "ends-in-payload",
    ],
)  # fmt: skip
def test_a_session_of_nonsense_ends_with_a_typed_error_and_the_ps_goes_on(
    server: PsServer,
    stub: ps_pb2_grpc.ParameterServerStub,
    caplog: pytest.LogCaptureFixture,
    messages: list[ps_pb2.ExchangeRequest],
    error: type[WindlassError],
    text: str,
) -> None:
    define(server)
    with pytest.raises(error, match=text):
        talk(stub, messages)
    assert server.store.counters().pushes == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    still_serves(server, stub)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Request(data=b"x" * 9), "a frame of 9 bytes where 8"),
        (step(TWELVE, push_layout=1), "a frame of 12 bytes where 8"),
        (Request(), "a frame of 0 bytes where 8"),
    ],
    ids=["too-long", "another-step", "nothing"],
)
def test_a_frame_that_does_not_fit_ends_the_session_at_once(
    server: PsServer,
    stub: ps_pb2_grpc.ParameterServerStub,
    frame: ps_pb2.ExchangeRequest,
    text: str,
) -> None:
    """The ps cannot know any more where the next step begins; a client that waits is told."""
    define(server)
    answered = threading.Event()

    def messages() -> Iterator[ps_pb2.ExchangeRequest]:
        yield from (hello(), layout(1, entry("w")))
        yield step(b"1234", push_layout=1, payload_bytes=12)
        yield frame
        answered.wait(10)

    try:
        with pytest.raises(RefusedError, match=text):
            talk(stub, messages())
    finally:
        answered.set()
    assert server.store.counters().pushes == 0
    still_serves(server, stub)


ROW = np.zeros(1, np.int64).tobytes()


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (step(TWELVE, push_layout=9), RefusedError, "layout 9 was not sent in this session"),
        (step(pull_layout=9, sequence=0), RefusedError, "layout 9 was not sent"),
        (
            step(TWELVE, push_layout=1, payload_bytes=4),
            RefusedError,
            "a frame of 12 bytes in a payload of 4",
        ),
        (step(b"1234", push_layout=1), ShapeMismatchError, "sent 4 bytes for a push of 12"),
        (step(TWELVE), ShapeMismatchError, "sent 12 bytes for a push of 0"),
        (step(push_layout=2), ShapeMismatchError, "row counts for 0 pushed and 0 pulled"),
        (
            step(TWELVE, push_layout=1, push_rows=[1]),
            ShapeMismatchError,
            "row counts for 1 pushed and 0 pulled",
        ),
        (
            step(np.array([-1], np.int64).tobytes() + b"\0" * 8, push_layout=2, push_rows=[1]),
            ShapeMismatchError,
            "row -1 of 'table' is out of range",
        ),
        (
            step(np.array([4], np.int64).tobytes() + b"\0" * 8, push_layout=2, push_rows=[1]),
            ShapeMismatchError,
            "row 4 of 'table' is out of range",
        ),
        (
            step(push_layout=2, push_rows=[2**62]),
            ShapeMismatchError,
            "sent 0 bytes for a push of",
        ),
        (
            step(ROW, pull_layout=3, pull_rows=[2**40], sequence=0),
            ShapeMismatchError,
            "sent 8 bytes for a push of",
        ),
        (step(push_layout=4), UnknownVariableError, "'nowhere'"),
        (step(TWELVE, push_layout=5), RefusedError, "number 0 in a message stands for none"),
        (step(TWELVE, push_layout=6), RefusedError, "no update rule"),
    ],
    ids=[
        "unknown-push-layout", "unknown-pull-layout", "frame-beyond-payload", "too-few-bytes",
        "bytes-for-nothing", "no-row-counts", "row-count-for-dense", "negative-row",
        "row-past-the-end", "huge-count",
        "huge-pull", "unknown-variable", "no-operation", "no-rule",
    ],
)  # fmt: skip
def test_a_step_of_nonsense_is_answered_with_a_typed_error_and_the_session_goes_on(
    server: PsServer,
    stub: ps_pb2_grpc.ParameterServerStub,
    message: ps_pb2.ExchangeRequest,
    error: type[WindlassError],
    text: str,
) -> None:
    define(server)
    layouts = [
        layout(1, entry("w")),
        layout(2, entry("table", encoding=ps_pb2.ENCODING_ROWS)),
        layout(3, entry("table", ps_pb2.OPERATION_PULL, encoding=ps_pb2.ENCODING_ROWS)),
        layout(4, entry("nowhere")),
        layout(5, entry("w", 0)),
        layout(6, entry("w", ps_pb2.OPERATION_APPLY)),
    ]
    good = step(TWELVE, push_layout=1, request_id=2)
    answers = talk(stub, [hello(), *layouts, message, good])
    welcome, refused, applied = answers
    assert welcome.WhichOneof("kind") == "welcome"
    found = error_table.from_detail(refused.step.error)
    assert type(found) is error
    assert text in found.message
    assert refused.step.request_id == 1
    assert refused.step.payload_bytes == 0
    assert not applied.step.HasField("error")
    counters = server.store.counters()
    assert (counters.pushes, counters.refused) == (1, 1)


def test_too_many_layouts_in_one_session_are_refused(
    server: PsServer, stub: ps_pb2_grpc.ParameterServerStub
) -> None:
    define(server)
    with pytest.raises(LimitExceededError, match="more than 4096 different sets"):
        talk(stub, [hello(), *(layout(i, entry("w")) for i in range(1, 5000))])
    still_serves(server, stub)


def test_too_many_sessions_are_refused_by_the_limits_name_and_leave_room_when_they_end(
    server: PsServer, stub: ps_pb2_grpc.ParameterServerStub
) -> None:
    define(server)
    over = threading.Event()

    def session(index: int) -> Any:
        def messages() -> Iterator[ps_pb2.ExchangeRequest]:
            yield hello(index)
            over.wait(10)

        call = stub.Exchange(messages(), timeout=10)
        assert next(call).WhichOneof("kind") == "welcome"
        return call

    calls = [session(i) for i in range(SETTINGS.max_sessions)]
    try:
        with pytest.raises(LimitExceededError, match=r"serves 3 sessions already \(max_sessions\)"):
            talk(stub, [hello(9)])
    finally:
        over.set()
    for call in calls:
        assert list(call) == []
    still_serves(server, stub)


def test_a_message_over_the_limit_is_resource_exhausted(
    server: PsServer, stub: ps_pb2_grpc.ParameterServerStub
) -> None:
    define(server)
    big = b"x" * (SETTINGS.max_message_bytes + 1)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Exchange(iter([hello(), Request(data=big)]), timeout=5))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(LimitExceededError, match="RESOURCE_EXHAUSTED"):
        talk(stub, [Request(data=big)])
    request = ps_pb2.DefineRequest(restore_from="x" * len(big))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Define(request, timeout=5)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    still_serves(server, stub)


def test_frames_always_fit_into_a_message(server: PsServer, open_session: OpenSession) -> None:
    """A worker whose chunks are larger than the ps's messages follows the ps."""
    settings = SETTINGS.model_copy(
        update={"chunk_bytes": 1024**2, "max_message_bytes": 8 * 1024**2}
    )
    session = open_session(address_of(server), settings)
    v = VariableDefinition("v", (100_000,), F32)
    values = np.random.default_rng(0).standard_normal(v.shape).astype(np.float32)
    session.define([v], {"v": values}, create=True)
    np.testing.assert_array_equal(session.step(None, ["v"]).values["v"], values)


def test_a_definition_that_makes_no_sense_is_a_typed_error(
    server: PsServer, stub: ps_pb2_grpc.ParameterServerStub
) -> None:
    good = codec.shard_to_wire(ShardDefinition(W))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"variable": ""}, "printable name"),
        ({"dtype": 99}, "unknown dtype number 99"),
        ({"rows": -4}, "-4 rows"),
        ({"row_offset": 2}, "not in a variable of 3 rows"),
        ({"part": 3}, "part 3 of 1"),
    ]
    for change, text in changes:
        bad = ps_pb2.ShardDefinition()
        bad.CopyFrom(good)
        for name, value in change.items():
            setattr(bad, name, value)
        request = ps_pb2.DefineRequest(create=True, shards=[bad])
        with pytest.raises(grpc.RpcError) as caught:
            stub.Define(request, timeout=5)
        error = error_table.from_rpc_error(caught.value, peer="the ps", doing="define")
        assert isinstance(error, RefusedError)
        assert text in error.message
    assert server.store.counters().shards == 0


def test_an_attach_without_meaning_is_harmless(server: PsServer) -> None:
    """Unary calls of the chief on the same port: who leads, and whether a second one may."""
    control = PsControl(PS, address_of(server), SETTINGS)
    try:
        assert control.find_chief(timeout_s=2) == ""
        chief = Incarnation(TaskId("chief", 0), 5)
        answer = control.attach(chief, "here:1", lease_s=30, timeout_s=2)
        assert answer.generation == server.generation
        assert not answer.draining
        assert control.find_chief(timeout_s=2) == "here:1"
        with pytest.raises(FencedError, match="cannot lead it as well"):
            control.attach(Incarnation(TaskId("worker", 0), 9), "there:1", lease_s=1, timeout_s=2)
        server.drain()
        assert control.attach(chief, "here:1", lease_s=30, timeout_s=2).draining
    finally:
        control.close()


def test_a_ps_that_cannot_write_says_where_and_what_is_needed(
    server: PsServer, tmp_path: Any
) -> None:
    define(server)
    file = tmp_path / "file"
    file.write_text("")
    control = PsControl(PS, address_of(server), SETTINGS)
    try:
        with pytest.raises(RefusedError, match=r"cannot write to .*/file/below.*model_dir"):
            control.save_shards(f"{file}/below", timeout_s=5)
    finally:
        control.close()


def test_a_peer_of_another_service_is_a_protocol_mismatch(server: PsServer) -> None:
    from windlass.client.chief.calls import ChiefClient

    client = ChiefClient(address_of(server), SETTINGS)
    try:
        with pytest.raises(ProtocolMismatchError, match="UNIMPLEMENTED"):
            client.status(timeout_s=2)
    finally:
        client.close()


def test_channels_to_one_address_do_not_share_a_connection(server: PsServer) -> None:
    """A session has a connection of its own; cutting one leaves the others."""
    channels = [open_channel(address_of(server), SETTINGS) for _ in range(2)]
    try:
        stubs = [ps_pb2_grpc.ParameterServerStub(channel) for channel in channels]
        channels[0].close()
        assert stubs[1].GetJob(ps_pb2.GetJobRequest(), timeout=5).chief_address == ""
    finally:
        for channel in channels:
            channel.close()
