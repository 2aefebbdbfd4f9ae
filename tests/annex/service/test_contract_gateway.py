"""A gateway over real connections: nodes that repeat themselves, drivers that come back, routes."""

import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from helpers.calls import Calls
from helpers.tls_files import with_tls
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.service.calls import GatewayClient
from ropewalk.annexes.service.daemon import GatewayServer
from ropewalk.annexes.service.kept import JobLog
from ropewalk.annexes.service.table import ClusterLimits, JobTable
from ropewalk.annexes.service.versions import own_environment
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import (
    ConfigurationError,
    EnvironmentMismatchError,
    LimitExceededError,
    PeerLostError,
    PermissionDeniedError,
    RefusedError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec
from ropewalk.launch.cli import ropewalk
from ropewalk.net.arrival import ROUTE
from ropewalk.net.routes import Forwarder, connect_forwarded
from ropewalk.net.this_machine import free_ports
from ropewalk.proto.v1 import gateway_pb2

CHIEF, PS, W0 = TaskId("chief", 0), TaskId("ps", 0), TaskId("worker", 0)
PACKAGE = b"a package" * 100
DIGEST = hashlib.sha256(PACKAGE).hexdigest()


class Gateway:
    """A gateway on loopback with three nodes that this test plays."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.table = JobTable(ClusterLimits())
        self.server = GatewayServer(CHIEF, self.table, self.settings)
        self.server.start("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.server.port}"
        self.driver = self.client("driver")
        self.ports = {task: 20_001 + number for number, task in enumerate((CHIEF, PS, W0))}
        self.polling = {task: self.client(task.type, task.index) for task in self.ports}

    def client(self, role: str, index: int | None = None) -> GatewayClient:
        return GatewayClient(self.address, self.settings, Principal(role, index=index))

    def poll(
        self,
        task: TaskId,
        events: list[gateway_pb2.TaskEvent] | None = None,
        first: int = 1,
        **fields: object,
    ) -> gateway_pb2.PollResponse:
        return self.polling[task].poll(
            gateway_pb2.PollRequest(
                node=codec.task_to_wire(task),
                instance=f"of {task.short}",
                host="127.0.0.1",
                ports=[self.ports[task]],
                events=events or [],
                first_event=first,
                versions=codec.versions_to_wire(own_versions()),
                **fields,  # type: ignore[arg-type]
            )
        )

    def begin(self, job: str = "j", **fields: object) -> None:
        """Every node is there, and a job runs."""
        for task in self.ports:
            self.poll(task)
        self.driver.put_package(DIGEST, PACKAGE, lambda held: None)
        assert self.driver.submit(request(job, **fields)).state == "running"

    def line(self, text: str) -> gateway_pb2.TaskEvent:
        line = gateway_pb2.LogLine(task=codec.task_to_wire(W0), text=text)
        return gateway_pb2.TaskEvent(job="j", task=codec.task_to_wire(W0), line=line)

    def close(self) -> None:
        for client in (self.driver, *self.polling.values()):
            client.close()
        self.server.stop()


def request(job: str = "j", **fields: object) -> gateway_pb2.SubmitRequest:
    given = {
        "id": job, "digest": DIGEST, "program": ["train.py"], "workers": 1, "ps": 1,
        "grace_s": 60.0, "environment": own_environment(), **fields,
    }  # fmt: skip
    return gateway_pb2.SubmitRequest(**given)  # type: ignore[arg-type]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


def test_what_a_node_repeats_counts_once_and_no_line_is_lost(gateway: Gateway) -> None:
    gateway.begin()
    events = [gateway.line("one"), gateway.line("two")]
    assert gateway.poll(W0, events).events_taken == 2
    assert gateway.poll(W0, events).events_taken == 2, "the answer was lost, and it asks again"
    assert gateway.poll(W0, [*events[1:], gateway.line("three")], first=2).events_taken == 3
    news = gateway.driver.follow("j", 0, wait_s=0, drives=False)
    assert [line.text for line in news.lines] == ["one", "two", "three"]
    assert gateway.driver.follow("j", news.offset, wait_s=0, drives=False).lines == ()
    assert gateway.driver.follow("j", 0, wait_s=0, drives=False).lines == news.lines


def test_ticks_go_on_whatever_one_of_them_raises(
    gateway: Gateway, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    calls.fail(JobTable, "tick", OSError("no space"), KeyError("a bug"))
    ticks = calls.noted(JobTable, "tick")
    wait_until(lambda: len(ticks) > 2, 20, "a tick after two that failed")
    assert "the gateway cannot tidy up" in caplog.text


def test_logs_show_what_tasks_print_and_steer_no_terminal(gateway: Gateway) -> None:
    gateway.begin()
    texts = ["\x1b]52;c;cm0=\x07clip", "one\nps:0 | two", "\x1b[31mred\x1b[2J", "\u202eback"]
    gateway.poll(W0, [gateway.line(text) for text in texts])
    shown = CliRunner().invoke(ropewalk, ["logs", "j", "--cluster", gateway.address], color=True)
    assert shown.output.splitlines() == [
        "worker:0 | clip",
        "worker:0 | one\ufffdps:0 | two",
        "worker:0 | \x1b[31mred\x1b[0m",
        "worker:0 | \ufffdback",
    ]


def test_a_driver_that_waits_hears_of_a_line_at_once(gateway: Gateway) -> None:
    gateway.begin()
    timer = threading.Timer(0.2, lambda: gateway.poll(W0, [gateway.line("news")]))
    timer.start()
    began = time.monotonic()
    news = gateway.driver.follow("j", 0, wait_s=15.0, drives=True)
    assert [line.text for line in news.lines] == ["news"]
    assert time.monotonic() - began < scaled(3)
    timer.join()


def test_a_job_ends_if_a_node_says_that_it_runs_nothing_of_it(gateway: Gateway) -> None:
    gateway.begin()
    [order] = gateway.poll(PS).orders
    runs = gateway_pb2.RunningTasks(
        tasks=[gateway_pb2.RunningTask(job="j", task=codec.task_to_wire(PS))]
    )
    gateway.poll(PS, orders_taken=order.number)
    gateway.poll(PS, orders_taken=order.number, running=runs)
    [job], _ = gateway.driver.jobs()
    assert job.tasks[PS] is None, "a node that does not say runs what it was given"
    gateway.poll(PS, orders_taken=order.number, running=gateway_pb2.RunningTasks())
    [job], _ = gateway.driver.jobs()
    assert job.tasks[PS] == -9
    assert job.reason == "ps:0 was lost: its node ps:0 runs it no longer"


@pytest.mark.parametrize(
    ("own_index", "says", "has_own_index"),
    [
        pytest.param(1, False, True, id="a certificate with an index"),
        pytest.param(None, False, False, id="one without"),
        pytest.param(None, True, True, id="the node knows better"),
    ],
)
def test_the_gateway_knows_which_node_may_run_one_task_alone(
    own_index: int | None, says: bool, has_own_index: bool
) -> None:
    table = JobTable(ClusterLimits())
    server = GatewayServer(CHIEF, table, with_tls(Settings(), "chief", 0))
    server.start("127.0.0.1:0")
    settings = with_tls(Settings(), "worker", own_index)
    node = TaskId("worker", 1)
    client = GatewayClient(f"127.0.0.1:{server.port}", settings, Principal("worker", index=1))
    try:
        client.poll(
            gateway_pb2.PollRequest(
                node=codec.task_to_wire(node),
                instance="a",
                host="127.0.0.1",
                first_event=1,
                has_own_index=says,
                versions=codec.versions_to_wire(own_versions()),
            )
        )
        assert table.nodes[node].has_own_index is has_own_index
    finally:
        client.close()
        server.stop()


def test_with_a_key_alone_any_node_may_run_any_task(gateway: Gateway) -> None:
    gateway.begin()
    assert not any(node.has_own_index for node in gateway.table.nodes.values())


def test_an_order_is_given_until_it_is_taken(gateway: Gateway) -> None:
    gateway.begin()
    first, again = gateway.poll(W0).orders, gateway.poll(W0).orders
    assert first == again
    assert [order.start.job for order in first] == ["j"]
    gateway.polling[W0].poll(
        gateway_pb2.PollRequest(
            node=codec.task_to_wire(W0),
            instance=f"of {W0.short}",
            host="127.0.0.1",
            orders_taken=first[0].number,
            first_event=1,
            versions=codec.versions_to_wire(own_versions()),
        )
    )
    assert list(gateway.poll(W0).orders) == []


def test_submitting_again_is_the_same_job_and_a_package_is_sent_once(gateway: Gateway) -> None:
    gateway.begin()
    sent: list[int] = []
    gateway.driver.put_package(DIGEST, PACKAGE, sent.append)
    assert sent == [len(PACKAGE)], "it is there already"
    assert gateway.driver.submit(request()).id == "j"
    assert len(gateway.driver.jobs()[0]) == 1
    with pytest.raises(RefusedError, match="exists already"):
        gateway.driver.submit(request(arguments=["other"]))
    assert gateway.polling[W0].get_package(DIGEST) == PACKAGE


def test_an_answer_that_was_lost_is_asked_for_again(gateway: Gateway, calls: Calls) -> None:
    for task in gateway.ports:
        gateway.poll(task)
    called = itertools.count(1)

    def lose(*_: object) -> None:
        if next(called) in (2, 4):
            raise PeerLostError("the answer was lost")

    calls.after(gateway.driver, "_call", lose)
    gateway.driver.put_package(DIGEST, PACKAGE, lambda held: None)
    assert gateway.driver.submit(request(), 5.0).state == "running"
    assert len(gateway.driver.jobs()[0]) == 1


def test_an_address_without_a_port_is_none() -> None:
    with pytest.raises(ConfigurationError, match="address 'chief' does not read as host:port"):
        GatewayClient("chief", Settings(), Principal("driver"))


def test_a_job_whose_package_did_not_come_is_refused(gateway: Gateway) -> None:
    with pytest.raises(RefusedError, match="is not here; send it first"):
        gateway.driver.submit(request(digest="1" * 64))


def test_a_driver_with_another_version_gets_the_whole_table(gateway: Gateway) -> None:
    theirs = {**own_environment(), "python": "3.8.1"}
    with pytest.raises(EnvironmentMismatchError, match=r"python +3\.8\.1"):
        gateway.driver.submit(request(digest="", program=[], coordinator=True, environment=theirs))


def test_what_may_matter_is_a_warning(gateway: Gateway) -> None:
    for task in gateway.ports:
        gateway.poll(task)
    gateway.driver.put_package(DIGEST, PACKAGE, lambda held: None)
    job = gateway.driver.submit(request(environment={**own_environment(), "numpy": "1.20.0"}))
    [warning] = job.warnings
    assert warning.startswith("numpy is 1.20.0 here and ")


def test_who_may_not_is_refused(gateway: Gateway) -> None:
    gateway.begin()
    with closing(gateway.client("reader")) as reader:
        assert [job.id for job in reader.jobs()[0]] == ["j"]
        with pytest.raises(PermissionDeniedError, match="reader may not Submit"):
            reader.submit(request("k"))
        with pytest.raises(PermissionDeniedError):
            reader.follow("j", 0, wait_s=0, drives=True)
        with pytest.raises(PermissionDeniedError):
            reader.open_route("j", W0, 1.0)
    with closing(gateway.client("worker", 7)) as worker:
        gateway.polling[W0], before = worker, gateway.polling[W0]
        with pytest.raises(RefusedError, match="is not the node worker:0"):
            gateway.poll(W0)
        gateway.polling[W0] = before
        with pytest.raises(PermissionDeniedError):
            worker.stop("j")


def test_no_node_writes_into_the_log_of_tasks_that_others_run(gateway: Gateway) -> None:
    gateway.begin()
    assert gateway.poll(PS, [gateway.line("as worker:0")]).events_taken == 1
    assert gateway.driver.follow("j", 0, wait_s=0, drives=False).lines == ()


def test_a_line_that_cannot_be_written_is_lost_and_nothing_counts_twice(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.begin()
    with monkeypatch.context() as patch:
        patch.setattr(JobLog, "append", Mock(side_effect=OSError(28, "No space left on device")))
        assert gateway.poll(W0, [gateway.line("one")]).events_taken == 1
    assert gateway.poll(W0, [gateway.line("two")], first=2).events_taken == 2
    news = gateway.driver.follow("j", 0, wait_s=0, drives=False)
    assert [line.text for line in news.lines] == ["two"]
    assert "a line of job j is lost" in caplog.text


def test_a_package_is_not_looked_for_under_a_path(gateway: Gateway) -> None:
    for digest in ("../../../../etc/passwd", "x" * 5000):
        with pytest.raises(RefusedError, match="is not here; send it first"):
            gateway.driver.submit(request("k", digest=digest))


def test_a_connection_to_a_task_is_forwarded_as_it_is(gateway: Gateway) -> None:
    with socket.socket() as task:
        task.bind(("127.0.0.1", 0))
        task.listen()
        gateway.ports[W0] = task.getsockname()[1]
        gateway.begin()
        ticket = gateway.driver.open_route("j", W0, 5.0)
        with closing(connect_forwarded(gateway.address, ticket, 5.0)) as here:
            there, _ = task.accept()
            with there:
                data = os.urandom(1_000_000)
                sender = threading.Thread(target=here.sendall, args=(data,))
                sender.start()
                assert read(there, len(data)) == data
                sender.join()
                there.sendall(b"back")
                assert read(here, 4) == b"back"
                here.shutdown(socket.SHUT_WR)
                assert there.recv(1) == b"", "each direction ends by itself"
                there.sendall(b"last")
                there.shutdown(socket.SHUT_WR)
                assert read(here, 4) == b"last"
                assert here.recv(1) == b""


def test_a_task_that_is_not_there_is_said_to_be_so(gateway: Gateway) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        gateway.ports[W0] = taken.getsockname()[1]
        gateway.begin()
        with pytest.raises(PeerLostError, match="worker/task:0 of job j is not reached"):
            gateway.driver.open_route("j", W0, 5.0)
    with pytest.raises(RefusedError, match="has no worker:9 to reach"):
        gateway.driver.open_route("j", TaskId("worker", 9), 5.0)


def test_a_guessed_ticket_opens_nothing(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.server.port), 5) as stranger:
        stranger.settimeout(scaled(5))
        stranger.sendall(ROUTE + b"\0" * 32)
        with suppress(ConnectionError):
            assert stranger.recv(1) == b""


def test_a_ticket_is_good_once_and_soon() -> None:
    with socket.socket() as task:
        task.bind(("127.0.0.1", 0))
        task.listen()
        address = f"127.0.0.1:{task.getsockname()[1]}"
        with closing(socket.create_connection(task.getsockname())) as client:
            now = [0.0]
            forwarder = Forwarder(limit=2, clock=lambda: now[0])
            late = forwarder.ticket(address)
            now[0] = 60.0
            with pytest.raises(ConnectionError, match="no ticket"):
                forwarder.accept(client, late)
            ticket = forwarder.ticket(address)
            forwarder.accept(client.dup(), ticket)
            with pytest.raises(ConnectionError, match="no ticket"):
                forwarder.accept(client, ticket)
            forwarder.ticket(address)
            with pytest.raises(LimitExceededError, match="2 connections are forwarded already"):
                forwarder.ticket(address)
            forwarder.stop()


def test_one_driver_has_half_of_the_connections_that_a_gateway_forwards() -> None:
    drivers = [Principal("driver", team) for team in ("vision", "speech")]
    with socket.create_server(("127.0.0.1", 0)) as task:
        address = f"127.0.0.1:{task.getsockname()[1]}"
        forwarder = Forwarder(limit=4)
        for driver in drivers:
            for _ in range(2):
                forwarder.ticket(address, driver)
            with pytest.raises(LimitExceededError, match="half as many for one driver"):
                forwarder.ticket(address, driver)
        forwarder.stop()


def test_a_connection_that_was_not_made_takes_no_place() -> None:
    with socket.create_server(("127.0.0.1", 0)) as task:
        address = f"127.0.0.1:{task.getsockname()[1]}"
        forwarder = Forwarder(limit=1)
        [closed] = free_ports(1)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                forwarder.ticket(f"127.0.0.1:{closed}")
        forwarder.ticket(address)
        forwarder.stop()


def test_tickets_that_nobody_uses_make_room() -> None:
    now = [0.0]
    with socket.create_server(("127.0.0.1", 0)) as task:
        forwarder = Forwarder(limit=2, clock=lambda: now[0])
        for _ in range(5):
            now[0] += 60.0
            forwarder.ticket(f"127.0.0.1:{task.getsockname()[1]}")
        forwarder.stop()


def read(connection: socket.socket, count: int) -> bytes:
    connection.settimeout(scaled(10))
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more
        data += more
    return data
