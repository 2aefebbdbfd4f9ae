"""The chief's service over loopback: register, heartbeat, finish, stop, status."""

import threading
from collections.abc import Iterator

import grpc
import pytest

from helpers.calls import Calls
from helpers.clock import ManualClock
from helpers.waiting import wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import ShareLeader
from ropewalk.core.errors import (
    ConfigurationError,
    FencedError,
    OtherJobError,
    PeerLostError,
    ProtocolMismatchError,
    RefusedError,
)
from ropewalk.core.report import PsCounters, TaskEnd, TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.step_times import StepPart
from ropewalk.core.task import Incarnation, Outcome, Phase, State, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec, error_table
from ropewalk.proto.v1 import chief_pb2, chief_pb2_grpc
from ropewalk.server.chief.server import ChiefServer

CHIEF, PS = TaskId("chief", 0), TaskId("ps", 0)
W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
WHO = Principal("driver")
SETTINGS = Settings(heartbeat_s=0.25, lease_s=10.0, insecure=True)
T = 5.0


@pytest.fixture
def clock() -> ManualClock:
    """Turned by hand."""
    return ManualClock(100.0)


@pytest.fixture
def server(clock: ManualClock) -> Iterator[ChiefServer]:
    """The control plane of a job of a chief, a ps and two workers."""
    expected = [(CHIEF, "c:1"), (PS, "p:1"), (W0, "w:1"), (W1, "w:2")]
    made = ChiefServer(CHIEF, expected, SETTINGS, clock)
    made.start("127.0.0.1:0")
    yield made
    made.stop(grace_s=0)


@pytest.fixture
def client(server: ChiefServer) -> Iterator[ChiefClient]:
    """Reaches it."""
    made = ChiefClient(f"127.0.0.1:{server.port}", SETTINGS, WHO)
    yield made
    made.close()


def register(client: ChiefClient, task: TaskId) -> Incarnation:
    return client.register(task, f"{task.short}", timeout_s=T)[0]


def test_registering_gives_the_generation_the_heartbeat_and_the_phase(client: ChiefClient) -> None:
    who, heartbeat_s, phase, reason, held = client.register(W0, "here:1", timeout_s=T)
    assert who.task == W0
    assert who.generation > 0
    assert (heartbeat_s, phase, reason, held) == (0.25, Phase.RUNNING, "", False)


def test_each_registration_is_a_new_generation_and_fences_the_one_before(
    client: ChiefClient,
) -> None:
    old, new = register(client, W0), register(client, W0)
    assert new.generation > old.generation
    assert client.heartbeat(new, TaskReport(), timeout_s=T) == (Phase.RUNNING, "")
    with pytest.raises(FencedError) as caught:
        client.heartbeat(old, TaskReport(), timeout_s=T)
    assert str(old.generation) in caught.value.message
    assert caught.value.fields["current"] == str(new.generation)
    with pytest.raises(FencedError):
        client.finish(old, TaskEnd(Outcome.FAILED, "boom"), TaskReport(), timeout_s=T)
    assert client.status(timeout_s=T).phase is Phase.RUNNING


def test_the_status_shows_tasks_with_state_age_and_report(
    client: ChiefClient, server: ChiefServer, clock: ManualClock
) -> None:
    who = register(client, W0)
    clock.advance(3)
    report = TaskReport(
        steps=4, pushes=3, bytes_pushed=5, bytes_pulled=6, refused_pushes=1, global_step=17,
        staleness=0.5, metrics={"loss": 0.25}, total_steps=100, transports=("ps:0 grpc",),
        step_parts=(StepPart("data", 0.5, (1, 0, 2)), StepPart("step", 1.5, (0, 0, 3))),
    )  # fmt: skip
    client.heartbeat(who, report, timeout_s=T)
    counters = PsCounters(pushes=3, value_bytes=12, labels=("w",), global_step=17)
    with server.locked_job.open() as (job, now):
        job.ps_answered(PS, 9, counters, now=now)
        job.saved_step = 12
    server.locked_job.last_checkpoint = "/somewhere"
    status = client.status(timeout_s=T)
    assert (status.phase, status.reason, status.age_s) == (Phase.RUNNING, "", 3.0)
    assert (status.global_step, status.total_steps) == (17, 100)
    assert (status.last_checkpoint, status.last_checkpoint_step) == ("/somewhere", 12)
    assert status.versions == own_versions()
    tasks = {item.task: item for item in status.tasks}
    assert list(tasks) == [CHIEF, PS, W0, W1]
    worker = tasks[W0]
    assert (worker.state, worker.since_s, worker.generation) == (State.ALIVE, 3.0, who.generation)
    assert worker.report == report
    assert worker.counters is None
    assert worker.address == "worker:0"
    assert worker.pid > 0
    assert worker.host
    assert tasks[PS].counters == counters
    assert (tasks[W1].state, tasks[W1].since_s) == (State.MISSING, 3.0)


def test_a_job_runs_to_its_end_over_the_wire(client: ChiefClient, server: ChiefServer) -> None:
    chief, worker = register(client, CHIEF), register(client, W0)
    done = client.finish(worker, TaskEnd(Outcome.DONE), TaskReport(global_step=5), timeout_s=T)
    assert done == (Phase.RUNNING, "")
    again = client.finish(worker, TaskEnd(Outcome.FAILED, "late"), TaskReport(), timeout_s=T)
    assert again == (Phase.RUNNING, ""), "the first outcome stays"
    client.finish(chief, TaskEnd(Outcome.DONE), TaskReport(), timeout_s=T)
    with server.locked_job.open() as (job, _):
        assert job.members.waited_for() == []
        job.complete()
    assert client.heartbeat(worker, TaskReport(), timeout_s=T) == (Phase.DONE, "")
    states = {item.task: item.state for item in client.status(timeout_s=T).tasks}
    assert states[W0] is states[CHIEF] is State.DONE


def test_a_failure_is_reported_to_everybody_with_the_task_and_its_words(
    client: ChiefClient,
) -> None:
    first, second = register(client, W0), register(client, W1)
    failed = client.finish(
        first, TaskEnd(Outcome.FAILED, "ValueError: boom"), TaskReport(), timeout_s=T
    )
    told = client.heartbeat(second, TaskReport(), timeout_s=T)
    assert told == failed == (Phase.FAILED, "/job:worker/task:0 failed: ValueError: boom")
    assert client.register(W0, "", timeout_s=T)[2:4] == told, "who comes late is told, too"


@pytest.fixture
def stub(server: ChiefServer) -> Iterator[chief_pb2_grpc.ChiefStub]:
    """A client without our checks."""
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    yield chief_pb2_grpc.ChiefStub(channel)
    channel.close()


def stop_job(stub: chief_pb2_grpc.ChiefStub, reason: str) -> Phase:
    answer = stub.StopJob(chief_pb2.StopJobRequest(reason=reason), timeout=T)
    return codec.PHASES.from_wire(answer.phase)


def test_stopping_is_asked_for_with_a_reason_and_heard_by_all(
    stub: chief_pb2_grpc.ChiefStub, client: ChiefClient
) -> None:
    who = register(client, W0)
    assert stop_job(stub, "SIGINT") is Phase.STOPPING
    assert stop_job(stub, "again") is Phase.STOPPING
    assert client.heartbeat(who, TaskReport(), timeout_s=T) == (Phase.STOPPING, "SIGINT")
    assert client.status(timeout_s=T).reason == "SIGINT"


def test_stopping_without_a_reason_has_one(
    stub: chief_pb2_grpc.ChiefStub, client: ChiefClient
) -> None:
    stop_job(stub, "")
    assert client.status(timeout_s=T).reason == "asked to stop"


def test_a_task_of_another_protocol_is_refused_with_both_versions(
    stub: chief_pb2_grpc.ChiefStub, client: ChiefClient
) -> None:
    versions = codec.versions_to_wire(own_versions())
    versions.protocol, versions.ropewalk = 999, "9.9"
    request = chief_pb2.RegisterRequest(task=codec.task_to_wire(W0), versions=versions)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Register(request, timeout=T)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    error = error_table.from_rpc_error(caught.value, peer="chief", doing="register")
    assert isinstance(error, ProtocolMismatchError)
    assert "999" in error.message
    assert "9.9" in error.message
    assert {item.state for item in client.status(timeout_s=T).tasks} == {State.MISSING}


def test_an_outcome_that_stands_for_nothing_is_refused(
    stub: chief_pb2_grpc.ChiefStub, client: ChiefClient
) -> None:
    who = register(client, W0)
    request = chief_pb2.FinishRequest()
    getattr(request, "from").CopyFrom(codec.incarnation_to_wire(who))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Finish(request, timeout=T)
    error = error_table.from_rpc_error(caught.value, peer="chief", doing="finish")
    assert isinstance(error, RefusedError)
    assert "stands for none of done, failed, left" in error.message


def test_a_chief_that_is_gone_is_a_lost_peer_with_its_address() -> None:
    server = ChiefServer(CHIEF, [], SETTINGS)
    server.start("127.0.0.1:0")
    address = f"127.0.0.1:{server.port}"
    server.stop(grace_s=0)
    client = ChiefClient(address, SETTINGS, WHO)
    try:
        with pytest.raises(
            PeerLostError, match=f"status: the chief \\({address}\\) answered UNAVA"
        ):
            client.status(timeout_s=2)
    finally:
        client.close()


@pytest.mark.annex("replication")
def test_a_share_of_a_job_with_one_for_each_ps_does_not_move(client: ChiefClient) -> None:
    with pytest.raises(ConfigurationError, match="the shares of this job do not move"):
        client.move_share(0, PS, timeout_s=T)
    assert client.status(timeout_s=T).move is None


def test_tasks_that_wait_for_another_leader_hold_up_no_other_call(
    calls: Calls,
) -> None:
    """Each task of a job with replicas has such a call open all the time."""
    settings = SETTINGS.model_copy(update={"ps_replicas": 2})
    server = ChiefServer(CHIEF, [(CHIEF, "c:1")], settings)
    server.start("127.0.0.1:0")
    leaders = server.locked_job.leaders
    arrived, changed = list[int](), threading.Event()

    def wait(seen: int, _: float) -> None:
        arrived.append(seen)
        changed.wait(60)

    calls.before(leaders, "watch", wait)
    clients = [ChiefClient(f"127.0.0.1:{server.port}", SETTINGS, WHO) for _ in range(40)]
    waiting = [
        threading.Thread(target=lambda each=each: each.watch_leaders(1, timeout_s=60))
        for each in clients
    ]
    try:
        for thread in waiting:
            thread.start()
        wait_until(lambda: len(arrived) == len(clients), 20)
        assert clients[0].status(timeout_s=T).ps_replicas == 2
        leaders.publish(ShareLeader(0, 1, PS, "p:1", ()))
        changed.set()
        for thread in waiting:
            thread.join(20)
            assert not thread.is_alive()
    finally:
        changed.set()
        for each in clients:
            each.close()
        server.stop(grace_s=0)


@pytest.mark.annex("replication")
def test_the_number_of_ps_changes_only_where_shares_can_be_led_elsewhere() -> None:
    from ropewalk.annexes.replication.chief_part import Servers

    servers = Servers()
    with pytest.raises(ConfigurationError, match="start it with ROPEWALK_PS_SHARES"):
        servers.scale(3, replicas=1, shares=0)
    for count in (1, 9):
        with pytest.raises(RefusedError, match=f"can have 2 to 8 ps, not {count}"):
            servers.scale(count, replicas=2, shares=8)
    assert servers.wanted == 0
    servers.scale(8, replicas=2, shares=8)
    assert servers.wanted == 8


def test_a_task_that_reports_much_leaves_the_others_in_the_status() -> None:
    tasks = [CHIEF, *(TaskId("worker", index) for index in range(4))]
    server = ChiefServer(CHIEF, [(task, "") for task in tasks], SETTINGS)
    server.start("127.0.0.1:0")
    client = ChiefClient(f"127.0.0.1:{server.port}", SETTINGS, Principal("worker", index=0))
    try:
        who = client.register(tasks[1], "", timeout_s=T)[0]
        large = TaskReport(steps=7, transports=("x" * 1024,) * 4096)
        client.heartbeat(who, large, timeout_s=T)
        status = client.status(timeout_s=T)
    finally:
        client.close()
        server.stop(grace_s=0)
    assert [each.task for each in status.tasks] == tasks
    assert status.tasks[1].report == TaskReport(steps=7)


@pytest.mark.annex("replication")
def test_a_ps_for_which_there_can_be_no_share_does_not_come() -> None:
    from ropewalk.annexes.replication.chief_part import Servers

    servers = Servers()
    servers.check(TaskId("ps", 500))  # the chief does not know yet how many there are
    servers.shares = 4
    servers.check(TaskId("ps", 7))
    with pytest.raises(RefusedError, match=r"ps:0 to ps:7 can, as there are 4 shares"):
        servers.check(TaskId("ps", 8))


def test_a_task_that_is_refused_again_and_again_writes_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ChiefServer(CHIEF, [(CHIEF, "c:1")], SETTINGS, job_id="job-a")
    server.start("127.0.0.1:0")
    settings = SETTINGS.model_copy(update={"job_id": "job-b"})
    client = ChiefClient(f"127.0.0.1:{server.port}", settings, Principal("worker", index=0))
    try:
        for _ in range(20):
            with pytest.raises(OtherJobError):
                client.register(TaskId("worker", 0), "", timeout_s=T)
        assert sum(each.startswith("refused: ") for each in caplog.messages) == 1
    finally:
        client.close()
        server.stop(grace_s=0)


@pytest.mark.annex("replication")
def test_a_ps_comes_to_a_chief_that_leads_and_to_no_other_job() -> None:
    from ropewalk.annexes.replication.chief_part import Servers

    settings = SETTINGS.model_copy(update={"ps_shares": 4})
    server = ChiefServer(CHIEF, [(CHIEF, "c:1")], settings, job_id="job-a")
    server.start("127.0.0.1:0")
    came: list[tuple[TaskId, str]] = []
    ps = Principal("ps", index=2)
    own, other = (
        ChiefClient(f"127.0.0.1:{server.port}", settings.model_copy(update={"job_id": job}), ps)
        for job in ("job-a", "job-b")
    )
    try:
        with pytest.raises(PeerLostError, match="does not lead the ps yet"):
            own.join_ps(TaskId("ps", 2), "p:2", timeout_s=T)
        server.locked_job.part(Servers).join = lambda task, address: came.append((task, address))
        own.join_ps(TaskId("ps", 2), "p:2", timeout_s=T)
        for task in (TaskId("ps", 5000), TaskId("worker", 0)):
            with pytest.raises(RefusedError, match="cannot come as a ps"):
                own.join_ps(task, "p:2", timeout_s=T)
        with pytest.raises(OtherJobError):
            other.join_ps(TaskId("ps", 2), "p:2", timeout_s=T)
        assert came == [(TaskId("ps", 2), "p:2")]
    finally:
        own.close()
        other.close()
        server.stop(grace_s=0)
