"""What a ps answers to messages that make no sense: an error with a type, and it goes on."""

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from helpers.ps_peers import ADD, F32, REMOTE, SETTINGS, Ps, put, vector
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import (
    FencedError,
    LimitExceededError,
    ProtocolMismatchError,
    RefusedError,
    RopewalkError,
)
from ropewalk.core.rules.definitions import ShardDefinition
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire import codec, error_table
from ropewalk.core.wire.steps import LayoutEntry, WireLayout
from ropewalk.net.channel import open_channel
from ropewalk.net.connection import Connection
from ropewalk.net.dial import Dialer, receive_message
from ropewalk.proto.v1 import ps_pb2, ps_pb2_grpc, session_pb2

CALLER = Principal("worker", index=0)
WHO = Incarnation(TaskId("worker", 0), 1)
Message = session_pb2.ClientMessage
W = vector()
TWELVE = np.ones(3, F32).tobytes()


def from_worker(**fields: Any) -> ps_pb2.DefineRequest:
    request = ps_pb2.DefineRequest(**fields)
    getattr(request, "from").CopyFrom(codec.incarnation_to_wire(WHO))
    return request


@pytest.fixture
def ps() -> Iterator[Ps]:
    """A ps with a variable."""
    made = Ps("tcp")
    made.worker(1).create(W)
    yield made
    made.close()


@pytest.fixture(params=[kind for kind in REMOTE if kind != "unix"])
def connection(request: pytest.FixtureRequest, ps: Ps) -> Iterator[Connection]:
    """A greeted connection, without any of a worker's checks."""
    dialer = Dialer(ps.address, "the ps", session_pb2.Hello(service="ps"), WHO, SETTINGS)
    made = dialer.tunnel(5) if request.param == "grpc" else dialer.tcp(5)
    welcome = dialer.greet(made, 5)
    if request.param == "shm":
        made.close()
        made = dialer.unix(welcome.unix_sockets[0])
        dialer.greet(made, 5)
    yield made
    made.close()


def still_serves(ps: Ps) -> None:
    worker = ps.worker(9)
    worker.define(W)
    before = worker.value(W)
    worker.push(put(W, ADD, 1))
    np.testing.assert_array_equal(worker.value(W), before + 1)


def step(**fields: Any) -> session_pb2.ClientMessage:
    return Message(step=session_pb2.Step(**{"request_id": 1, "sequence": 1, **fields}))


layout = Message(layout=codec.layout_to_wire(WireLayout(1, (LayoutEntry("w", 0, ADD),))))
Frames = list[tuple[Any, bytes]]


@pytest.mark.parametrize(
    ("frames", "error", "text"),
    [
        ([(Message(), b"")], RefusedError, "not with an empty message"),
        ([(Message(hello=session_pb2.Hello()), b"")], RefusedError, "not with hello"),
        ([(Message(begin_link=session_pb2.BeginLink()), b"")], RefusedError, "not with begin_link"),
        ([(layout, b"payload")], RefusedError, "7 unread payload bytes"),
        ([(b"\xff\xff", b"")], RefusedError, "cannot be read"),
        ([(step(payload_bytes=4), TWELVE)], RefusedError, "12 bytes follow a step that announces 4"),
        ([(step(payload_bytes=10**12), b"")], RefusedError, "0 bytes follow a step that announces"),
        ([(Message(map_slab=session_pb2.MapSlab(number=9)), b"")], RefusedError, "has no slab 9"),
        ([(Message(segment=session_pb2.Segment(num_bytes=9)), b"")], RefusedError, "file"),
        ([(Message(segment=session_pb2.Segment(number=2)), b"")], RefusedError, "below 2, not 2"),
        (
            [(Message(layout=session_pb2.Layout(layout_id=0)), b"")],
            RefusedError,
            "layout 0 stands for none",
        ),
    ],
    ids=[
        "nothing", "hello-again", "link", "payload-of-none", "no-message", "another-size", "no-payload",
        "unknown-slab", "segment-without-file", "third-segment", "layout-0",
    ],
)  # fmt: skip
def test_a_session_of_nonsense_ends_with_its_error(
    ps: Ps, connection: Connection, caplog: pytest.LogCaptureFixture,
    frames: Frames, error: type[RopewalkError], text: str,
) -> None:  # fmt: skip
    pushes = ps.store.counters().pushes
    for message, payload in frames:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        connection.send([data], [memoryview(payload)], len(payload))
    with pytest.raises(error, match=text):
        receive_message(connection)
    assert ps.store.counters().pushes == pushes
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    still_serves(ps)


def test_a_step_beyond_the_limit_is_refused_before_it_is_read(
    ps: Ps, connection: Connection
) -> None:
    size = SETTINGS.max_step_bytes + 4
    frame = connection.frame(
        step(payload_bytes=size).SerializeToString(), size, lambda n: np.empty(n, np.uint8)
    )
    frame.finish()
    with pytest.raises(LimitExceededError, match=f"{size} bytes is over max_step_bytes"):
        receive_message(connection)
    still_serves(ps)


def test_a_step_in_a_segment_that_was_never_handed_over_is_answered(
    ps: Ps, connection: Connection
) -> None:
    message = step(push_layout=1, payload_bytes=12, payload_in_segment=True)
    connection.send([layout.SerializeToString(), message.SerializeToString()])
    reply = codec.reply_from_wire(receive_message(connection).step)
    assert reply.error is not None
    assert "no segment was handed over" in reply.error.message
    good = step(push_layout=1, payload_bytes=12).SerializeToString()
    connection.send([good], [memoryview(TWELVE)], 12)
    assert codec.reply_from_wire(receive_message(connection).step).error is None
    still_serves(ps)


# -- unary calls -------------------------------------------------------------------------------


@pytest.fixture
def stub(ps: Ps) -> Iterator[ps_pb2_grpc.ParameterServerStub]:
    """A client without any of our checks."""
    with open_channel(ps.address, SETTINGS, CALLER) as channel:
        yield ps_pb2_grpc.ParameterServerStub(channel)


@pytest.fixture
def control(ps: Ps) -> Iterator[PsControl]:
    """What a chief uses."""
    made = PsControl(ps.task, ps.address, SETTINGS, Principal("chief"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"variable": ""}, "printable name"),
        ({"dtype": 99}, "unknown dtype number 99"),
        ({"rows": -4}, "-4 rows"),
        ({"row_offset": 2}, "not in a variable of 3 rows"),
        ({"part": 3}, "part 3 of 1"),
    ],
    ids=["name", "dtype", "rows", "offset", "part"],
)
def test_a_definition_that_makes_no_sense_is_refused(
    ps: Ps, stub: ps_pb2_grpc.ParameterServerStub, change: dict[str, Any], text: str
) -> None:
    bad = codec.shard_to_wire(ShardDefinition(vector("new")))
    for name, value in change.items():
        setattr(bad, name, value)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Define(from_worker(create=True, shards=[bad]), timeout=5)
    error = error_table.from_rpc_error(caught.value, peer="the ps", doing="define")
    assert isinstance(error, RefusedError)
    assert text in error.message
    assert ps.store.counters().shards == 1


def test_who_leads_is_reported_and_a_second_one_may_not(ps: Ps, control: PsControl) -> None:
    assert control.find_job(timeout_s=5).chief_address == ""
    chief = Incarnation(TaskId("chief", 0), 5)
    assert ps.server is not None
    answer = control.attach(chief, "here:1", lease_s=30, timeout_s=5)
    assert (answer.generation, answer.draining) == (ps.server.generation, False)
    assert control.find_job(timeout_s=5).chief_address == "here:1"
    with pytest.raises(FencedError, match="cannot lead it as well"):
        control.attach(Incarnation(TaskId("chief", 1), 1), "there:1", lease_s=1, timeout_s=5)
    ps.server.drain()
    assert control.attach(chief, "here:1", lease_s=30, timeout_s=5).draining


def test_a_message_over_the_limit_and_a_service_that_is_not_there_are_told_apart(
    ps: Ps, stub: ps_pb2_grpc.ParameterServerStub
) -> None:
    request = ps_pb2.DefineRequest(checkpoint="x" * (SETTINGS.max_message_bytes + 1))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Define(request, timeout=5)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    client = ChiefClient(ps.address, SETTINGS, CALLER)
    with pytest.raises(ProtocolMismatchError, match="UNIMPLEMENTED"):
        client.status(timeout_s=5)
    client.close()
    still_serves(ps)
