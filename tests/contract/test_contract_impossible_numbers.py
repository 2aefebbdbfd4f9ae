"""Numbers that no task can have sent: refused by name, nothing is done, and the job goes on."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from helpers.ps_peers import ADD, F32, SETTINGS, Ps, put, vector
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import RefusedError, RopewalkError, TooManyWorkersError
from ropewalk.core.report import TaskEnd, TaskReport
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Outcome, Phase, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec, error_table
from ropewalk.core.wire.steps import LayoutEntry, WireLayout
from ropewalk.net.channel import open_channel
from ropewalk.net.connection import Connection
from ropewalk.net.dial import Dialer, receive_message
from ropewalk.proto.v1 import (
    chief_pb2,
    chief_pb2_grpc,
    common_pb2,
    ps_pb2,
    ps_pb2_grpc,
    session_pb2,
)
from ropewalk.server.chief.server import ChiefServer

W0 = TaskId("worker", 0)
CHIEF = TaskId("chief", 0)
W = vector()
INF, NAN = float("inf"), float("nan")
FAR = 2**53 + 1
T = 5.0
INSECURE = SETTINGS.model_copy(update={"insecure": True})
CALLER = Principal("worker", index=0)


def incarnation(generation: int = 1, **task: Any) -> common_pb2.Incarnation:
    return common_pb2.Incarnation(
        task=common_pb2.Task(**{"type": "worker", "index": 0, **task}), generation=generation
    )


def refusal(call: Callable[[], object]) -> RopewalkError:
    """What a call is refused with, as the peer reads it."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return error_table.from_rpc_error(caught.value, peer="the task", doing="try")


# -- the chief ---------------------------------------------------------------------------------


@pytest.fixture
def chief() -> Iterator[ChiefServer]:
    server = ChiefServer(
        CHIEF, [(CHIEF, "here:1"), (W0, "there:1")], Settings(max_sessions=4, insecure=True)
    )
    server.start("127.0.0.1:0")
    yield server
    server.stop(0)


@pytest.fixture
def stub(chief: ChiefServer) -> Iterator[Any]:
    with open_channel(f"127.0.0.1:{chief.port}", INSECURE, CALLER) as channel:
        yield chief_pb2_grpc.ChiefStub(channel)


@pytest.fixture
def client(chief: ChiefServer) -> Iterator[ChiefClient]:
    made = ChiefClient(f"127.0.0.1:{chief.port}", INSECURE, CALLER)
    yield made
    made.close()


def heartbeat(generation: int = 1, **report: Any) -> chief_pb2.HeartbeatRequest:
    request = chief_pb2.HeartbeatRequest(report=chief_pb2.TaskReport(**report))
    getattr(request, "from").CopyFrom(incarnation(generation))
    return request


def usage(**fields: Any) -> common_pb2.ProcessUsage:
    return common_pb2.ProcessUsage(**fields)


def part(**fields: Any) -> chief_pb2.StepPart:
    return chief_pb2.StepPart(**{"name": "data", **fields})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(heartbeat(2**64 - 1), [str(2**64 - 1), str(2**53)], id="generation-overflows"),
        pytest.param(heartbeat(FAR), [str(FAR), str(2**53)], id="generation-that-is-far"),
        pytest.param(heartbeat(global_step=2**62), ["global_step", str(2**62)], id="global-step"),
        pytest.param(heartbeat(total_steps=2**64 - 1), ["total_steps"], id="total-steps"),
        pytest.param(heartbeat(bytes_pushed=2**64 - 1), ["bytes_pushed"], id="bytes"),
        pytest.param(heartbeat(staleness=NAN), ["staleness", "nan"], id="staleness-nan"),
        pytest.param(heartbeat(staleness=-1.0), ["staleness", "-1.0"], id="staleness-negative"),
        pytest.param(
            heartbeat(metrics={f"m{n}": 0.0 for n in range(257)}), ["metrics", "257"], id="metrics"
        ),
        pytest.param(
            heartbeat(metrics={"m" * 300: 0.0}), ["name of a metric", "300"], id="metric-name"
        ),
        pytest.param(heartbeat(transports=["x" * 2000]), ["transport"], id="transport"),
        pytest.param(heartbeat(usage=usage(cores=NAN)), ["cores", "nan"], id="usage"),
        pytest.param(heartbeat(usage=usage(memory_bytes=2**63)), ["memory_bytes"], id="memory"),
        pytest.param(heartbeat(usage=usage(machine="x" * 2000)), ["machine", "2000"], id="machine"),
        pytest.param(
            heartbeat(usage=usage(gpus=[common_pb2.GpuUsage()] * 65)), ["GPUs", "65"], id="gpus"
        ),
        pytest.param(
            heartbeat(usage=usage(gpus=[common_pb2.GpuUsage(busy=-2.0)])), ["busy"], id="gpu"
        ),
        pytest.param(heartbeat(step_parts=[part()] * 17), ["parts of a step", "17"], id="parts"),
        pytest.param(heartbeat(step_parts=[part(name="x" * 65)]), ["name of a part"], id="part-name"),
        pytest.param(heartbeat(step_parts=[part(seconds=NAN)]), ["seconds", "nan"], id="part-seconds"),
        pytest.param(heartbeat(step_parts=[part(buckets=[0] * 63)]), ["buckets", "63"], id="buckets"),
        pytest.param(heartbeat(step_parts=[part(buckets=[2**63])]), ["bucket", str(2**63)], id="bucket"),
    ],
)  # fmt: skip
def test_a_heartbeat_that_cannot_be_is_refused_and_tasks_register_after_it(
    stub: Any, client: ChiefClient, request_: chief_pb2.HeartbeatRequest, words: list[str]
) -> None:
    who, *_ = client.register(W0, "there:1", timeout_s=T)
    error = refusal(lambda: stub.Heartbeat(request_, timeout=T))
    assert isinstance(error, RefusedError)
    assert all(word in error.message for word in [str(W0), *words]), error.message
    assert client.heartbeat(who, TaskReport(global_step=3), timeout_s=T)[0] is Phase.RUNNING
    assert client.status(timeout_s=T).global_step == 3
    again, *_ = client.register(W0, "there:1", timeout_s=T)
    assert who.generation < again.generation < FAR


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"task": common_pb2.Task(type="x" * 4_000_000)}, ["type of a task"], id="type"),
        pytest.param({"task": common_pb2.Task(type="worker", index=2**32 - 1)}, ["index"], id="index"),
        pytest.param({"task": common_pb2.Task(type="driver")}, ["/job:driver/task:9"], id="role"),
        pytest.param({"task": common_pb2.Task(type="ps")}, ["/job:ps/task:9"], id="ps"),
        pytest.param({"address": "x" * 4_000_000}, ["its address", "1024"], id="address"),
        pytest.param({"host": "x" * 2000}, ["its host", "2000"], id="host"),
        pytest.param({"pid": 2**32 - 1}, ["process id", "4294967295"], id="pid"),
        pytest.param({"job": "x" * 2000}, ["id of its job"], id="job"),
    ],
)  # fmt: skip
def test_a_registration_that_cannot_be_is_refused_and_costs_nothing(
    stub: Any, client: ChiefClient, fields: dict[str, Any], words: list[str]
) -> None:
    before = client.status(timeout_s=T).tasks
    request = chief_pb2.RegisterRequest(
        task=common_pb2.Task(type="worker", index=9),
        versions=codec.versions_to_wire(own_versions()),
    )
    request.MergeFrom(chief_pb2.RegisterRequest(**fields))
    error = refusal(lambda: stub.Register(request, timeout=T))
    assert isinstance(error, RefusedError)
    assert all(word in error.message for word in words), error.message
    assert len(error.message) < 1000
    assert len(client.status(timeout_s=T).tasks) == len(before)


def test_tasks_beyond_the_cluster_are_bounded_and_those_that_are_gone_make_room(
    client: ChiefClient,
) -> None:
    dynamic = [TaskId("worker", index) for index in range(1, 5)]
    lives = [client.register(task, "", timeout_s=T)[0] for task in dynamic]
    with pytest.raises(TooManyWorkersError, match=r"/job:worker/task:9 .*max_sessions"):
        client.register(TaskId("worker", 9), "", timeout_s=T)
    client.finish(lives[1], TaskEnd(Outcome.LEFT), TaskReport(), timeout_s=T)
    client.register(TaskId("worker", 9), "", timeout_s=T)
    shown = {item.task for item in client.status(timeout_s=T).tasks}
    assert shown == {CHIEF, W0, *dynamic, TaskId("worker", 9)} - {dynamic[1]}


def test_texts_of_a_task_are_shortened_where_they_are_shown(stub: Any, client: ChiefClient) -> None:
    who, *_ = client.register(W0, "there:1", timeout_s=T)
    client.finish(who, TaskEnd(Outcome.LEFT, "漢" * 1_000_000), TaskReport(), timeout_s=T)
    stub.StopJob(chief_pb2.StopJobRequest(reason="y" * 1_000_000), timeout=T)
    status = client.status(timeout_s=T)
    details = [item.detail for item in status.tasks if item.task == W0]
    assert 100 < len(details[0].encode()) <= 1024
    assert 100 < len(status.reason.encode()) <= 4096


def test_the_status_of_many_tasks_fits_a_message() -> None:
    settings = Settings(max_message_bytes=64 * 1024, insecure=True)
    tasks = [(TaskId("worker", index), "x" * 900) for index in range(200)]
    server = ChiefServer(CHIEF, [(CHIEF, "here:1"), *tasks], settings)
    server.start("127.0.0.1:0")
    client = ChiefClient(f"127.0.0.1:{server.port}", settings, CALLER)
    try:
        assert 10 < len(client.status(timeout_s=T).tasks) < 100
    finally:
        client.close()
        server.stop(0)


@pytest.mark.parametrize(("calls", "refused"), [([1, 3], True), ([5], False), ([1, 2, 1], False)])
def test_barriers_count_up_by_one(client: ChiefClient, calls: list[int], refused: bool) -> None:
    client.register(CHIEF, "", timeout_s=T)
    who, *_ = client.register(W0, "", timeout_s=T)
    *before, last = calls
    for call in before:
        client.arrive(who, call, timeout_s=T)
    if refused:
        with pytest.raises(RefusedError, match=r"barrier 3, and was at 1"):
            client.arrive(who, last, timeout_s=T)
    else:
        client.arrive(who, last, timeout_s=T)


# -- a ps --------------------------------------------------------------------------------------


@pytest.fixture
def ps() -> Iterator[Ps]:
    made = Ps("tcp", insecure=True)
    made.worker(1).create(W)
    yield made
    made.close()


@pytest.fixture
def ps_stub(ps: Ps) -> Iterator[Any]:
    with open_channel(ps.address, INSECURE, CALLER) as channel:
        yield ps_pb2_grpc.ParameterServerStub(channel)


@pytest.fixture
def connection(ps: Ps) -> Iterator[Connection]:
    """A greeted connection, without any of a worker's checks, and the layout of ``W``."""
    who = Incarnation(W0, 1)
    dialer = Dialer(ps.address, "the ps", session_pb2.Hello(service="ps"), who, INSECURE)
    made = dialer.tcp(T)
    dialer.greet(made, T)
    layout = codec.layout_to_wire(WireLayout(1, (LayoutEntry("w", 0, ADD),)))
    made.send([session_pb2.ClientMessage(layout=layout).SerializeToString()])
    yield made
    made.close()


def still_adds(ps: Ps) -> None:
    worker = ps.worker(9)
    worker.define(W)
    before = worker.value(W).copy()
    worker.push(put(W, ADD, 1))
    assert (worker.value(W) == before + 1).all()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(ps_pb2.AttachRequest(chief=incarnation(2**64 - 1, type="chief"), lease_s=9), id="overflow"),
        pytest.param(ps_pb2.AttachRequest(chief=incarnation(FAR, type="chief"), lease_s=9), id="far"),
        pytest.param(ps_pb2.AttachRequest(chief=incarnation(0, type="chief"), lease_s=9), id="generation-0"),
        *(
            pytest.param(ps_pb2.AttachRequest(chief=incarnation(1, type="chief"), lease_s=lease), id=f"lease-{lease}")
            for lease in (NAN, INF, -1.0, 1e308)
        ),
        pytest.param(
            ps_pb2.AttachRequest(chief=incarnation(1, type="chief"), lease_s=9, chief_address="x" * 5000),
            id="address",
        ),
    ],
)  # fmt: skip
def test_a_lease_that_cannot_be_is_refused_and_the_chief_has_its_own(
    ps_stub: Any, request_: ps_pb2.AttachRequest
) -> None:
    error = refusal(lambda: ps_stub.Attach(request_, timeout=T))
    assert isinstance(error, RefusedError)
    assert "/job:chief/task:0" in error.message
    mine = ps_pb2.AttachRequest(chief=incarnation(5, type="chief"), lease_s=9, chief_address="a:1")
    ps_stub.Attach(mine, timeout=T)
    assert ps_stub.GetJob(ps_pb2.GetJobRequest(), timeout=T).chief_address == "a:1"


def test_a_job_that_runs_is_not_over(ps: Ps, ps_stub: Any) -> None:
    request = ps_pb2.EndJobRequest(phase=common_pb2.JOB_PHASE_RUNNING)
    with pytest.raises(grpc.RpcError):
        ps_stub.EndJob(request, timeout=T)
    assert ps.server is not None
    assert not ps.server.lease.ended.is_set()


def define(**changes: Any) -> ps_pb2.DefineRequest:
    shard = codec.shard_to_wire(
        ShardDefinition(
            VariableDefinition("new", (4, 3), F32, Initializer("random_uniform")), rule=SGD()
        )
    )
    shape = changes.pop("full_shape", None)
    if shape is not None:
        del shard.full_shape[:]
        shard.full_shape.extend(shape)
    for name, value in changes.pop("arguments", {}).items():
        shard.initializer.arguments[name] = value
    for name, value in changes.pop("rule", {}).items():
        shard.rule[name] = value
    for name, value in changes.items():
        setattr(shard, name, value)
    request = ps_pb2.DefineRequest(create=True, shards=[shard])
    getattr(request, "from").CopyFrom(incarnation())
    return request


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(define(full_shape=[2**40, 2**40], rows=2**40), ["number of bytes"], id="overflow"),
        pytest.param(define(full_shape=[2**31, 2**10], rows=2**31), ["max_ps_bytes"], id="8-TiB"),
        pytest.param(define(full_shape=[4, *[1] * 40]), ["dimensions", "41"], id="dimensions"),
        pytest.param(define(variable="x" * 4_000_000), ["printable name"], id="name"),
        pytest.param(define(dtype=77), ["dtype number 77"], id="dtype"),
        pytest.param(define(rows=-1), ["-1 rows"], id="rows"),
        pytest.param(define(row_offset=-5), ["not in a variable"], id="row-offset"),
        pytest.param(define(row_offset=2**62), ["not in a variable"], id="row-offset-huge"),
        pytest.param(define(part=2**32 - 1), ["part 4294967295"], id="part"),
        pytest.param(define(arguments={"minval": NAN}), ["finite"], id="initializer-nan"),
        pytest.param(define(arguments={"maxval": INF}), ["finite"], id="initializer-inf"),
        pytest.param(define(arguments={"other": 1.0}), ["no argument other"], id="initializer-other"),
        pytest.param(define(rule={"learning_rate": NAN}), ["update rule"], id="rule-nan"),
        pytest.param(define(rule={f"a{n}": 1.0 for n in range(100)}), ["hyperparameters"], id="rule-many"),
        pytest.param(define(rule={"name": "x" * 100_000}), ["size of them"], id="rule-long"),
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_is_refused_and_nothing_is_defined(
    ps: Ps, ps_stub: Any, request_: ps_pb2.DefineRequest, words: list[str]
) -> None:
    error = refusal(lambda: ps_stub.Define(request_, timeout=T))
    assert isinstance(error, RefusedError)
    assert all(word in error.message for word in words), error.message
    assert ps.store.counters().shards == 1
    still_adds(ps)


@pytest.mark.parametrize("generation", [2**63, 2**64 - 1, FAR], ids=["half", "overflow", "far"])
def test_a_greeting_with_an_impossible_generation_does_not_fence_the_worker(
    ps: Ps, generation: int
) -> None:
    who = Incarnation(TaskId("worker", 9), generation)
    dialer = Dialer(ps.address, "the ps", session_pb2.Hello(service="ps"), who, INSECURE)
    with pytest.raises(RefusedError, match=rf"/job:worker/task:9: generation {generation}"):
        dialer.greet(dialer.tcp(T), T)
    still_adds(ps)


def test_a_greeting_that_takes_one_byte_at_a_time_is_refused(ps: Ps) -> None:
    hello = session_pb2.Hello(service="ps")
    dialer = Dialer(ps.address, "the ps", hello, Incarnation(W0, 1), INSECURE)
    hello.max_message_bytes = 1
    with pytest.raises(RefusedError, match="max_message_bytes is 1"):
        dialer.greet(dialer.tcp(T), T)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"global_step": 2**64 - 1}, ["global step"], id="global-step-overflows"),
        pytest.param({"step_increment": 2**32 - 1}, ["step_increment"], id="increment"),
        pytest.param({"gradient_scale": NAN}, ["gradient_scale", "nan"], id="scale-nan"),
        pytest.param({"gradient_scale": INF}, ["gradient_scale"], id="scale-inf"),
        pytest.param({"gradient_scale": -1.0}, ["gradient_scale"], id="scale-negative"),
        pytest.param({"direct_bytes": 2**64 - 1}, ["direct_bytes"], id="direct-bytes"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_ends_its_session_alone(
    ps: Ps, connection: Connection, fields: dict[str, Any], words: list[str]
) -> None:
    send_step(connection, **fields)
    with pytest.raises(RefusedError) as caught:
        receive_message(connection)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert ps.store.global_step == 0
    still_adds(ps)


def test_a_step_with_an_impossible_hyperparameter_is_refused_and_its_session_goes_on(
    ps: Ps, connection: Connection
) -> None:
    for hyperparameters, error in (({"learning_rate": NAN}, "update rule"), ({}, "")):
        send_step(connection, step_increment=1, hyperparameters=hyperparameters)
        reply = receive_message(connection).step
        assert error in reply.error.message
        assert bool(reply.error.message) == bool(error)
    assert ps.store.global_step == 1
    still_adds(ps)


def send_step(connection: Connection, **fields: Any) -> None:
    """Push twelve bytes of zeros by the layout that the session has."""
    step = session_pb2.Step(request_id=1, sequence=1, push_layout=1, payload_bytes=12, **fields)
    connection.deadline = time.monotonic() + T
    message = session_pb2.ClientMessage(step=step).SerializeToString()
    connection.send([message], [memoryview(bytes(12))], 12)


def test_a_step_from_far_ahead_is_refused_and_later_ones_are_not(ps: Ps) -> None:
    worker = ps.worker(5)
    worker.define(W)
    with pytest.raises(RefusedError, match=r"/job:worker/task:5 .*global step 9007199254740992"):
        worker.push(put(W, ADD, 1), global_step=2**53)
    still_adds(ps)
    assert ps.store.global_step < 2**40
