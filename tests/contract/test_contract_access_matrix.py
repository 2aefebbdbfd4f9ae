"""Who may do what, tried from outside: every call and operation, by everybody, in every way to show
who one is, over every connection. The tables are written by hand and not taken from the program.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from helpers.callers import (
    LET_IN,
    NO_SUCH,
    NO_TLS,
    REFUSED,
    UNKNOWN,
    Caller,
    Way,
    claim,
    frame,
    read_frame,
    step_frames,
    verdict_of,
)
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import Lead
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.error_table import from_detail
from ropewalk.net.shared_memory import unavailable
from ropewalk.proto.v1 import chief_pb2, collective_pb2, common_pb2, ps_pb2, session_pb2
from ropewalk.server.chief.server import ChiefServer
from ropewalk.server.ps.server import PsServer

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.annex("diagnosis", "moments", "replication", "ring", "service"),
]

JOB = "mnist"
MODES = ["local", "token", "mtls"]

# x: let in, .: refused, -: there is none
CALLS = """
                          driver  chief  worker:0  worker:1  ps:0  evaluator:0  reader
ParameterServer/Define      .       x       x         x       .        x          x
ParameterServer/Attach      .       x       .         .       .        .          .
ParameterServer/GetJob      x       x       x         x       x        x          x
ParameterServer/SaveShards  .       x       .         .       .        .          .
ParameterServer/VerifyShards .      x       .         .       .        .          .
ParameterServer/EndJob      .       x       .         .       .        .          .
ParameterServer/LeadShare   .       x       .         .       .        .          .
ParameterServer/CopyShare   .       x       .         .       .        .          .
ParameterServer/HandOverShare .     x       .         .       .        .          .
ParameterServer/GiveUpShare .       x       .         .       .        .          .
ParameterServer/WatchShares .       x       .         .       .        .          .
ParameterServer/BeginCut    .       x       .         .       .        .          .
ParameterServer/MarkCut     .       x       x         x       .        .          .
ParameterServer/FinishCut   .       x       .         .       .        .          .
ParameterServer/ReadCut     .       x       x         x       .        .          .
ParameterServer/EndCut      .       x       .         .       .        .          .
ParameterServer/Ask         .       x       .         .       .        .          .
Chief/Register              .       x       x         x       .        x          .
Chief/Heartbeat             .       x       x         x       .        x          .
Chief/Finish                .       x       x         x       .        x          .
Chief/Arrive                .       x       x         x       .        .          .
Chief/StopJob               x       x       .         .       .        .          .
Chief/MoveShare             x       x       .         .       .        .          .
Chief/JoinPs                .       .       .         .       x        .          .
Chief/ScalePs               x       x       .         .       .        .          .
Chief/GetStatus             x       x       x         x       x        x          x
Chief/GetHistory            x       x       x         x       x        x          x
Chief/WatchLeaders          .       x       x         x       .        x          x
Chief/JoinCut               .       x       x         x       .        .          .
Chief/TakeCut               .       x       x         x       .        .          .
Chief/ReleaseCut            .       x       x         x       .        .          x
Chief/AskTasks              x       x       .         .       .        .          .
Chief/GetAnswers            x       x       .         .       .        .          .
Chief/AnswerQuestion        .       x       x         x       .        x          .
Chief/LeaseRange            .       x       x         x       .        .          .
Collective/Probe            .       x       x         x       .        .          .
Health/Check                x       x       x         x       x        x          x
Health/Watch                -       -       -         -       -        -          -
"""
# Of a ps whose TF_CONFIG names only itself: until a chief attaches nobody knows that there is one.
BEFORE_A_CHIEF = """
                          driver  worker:0  worker:1  ps:0  evaluator:0  reader
ParameterServer/Attach      .       x         .       .        .          .
ParameterServer/SaveShards  .       x         .       .        .          .
ParameterServer/VerifyShards .      x         .       .        .          .
ParameterServer/EndJob      .       x         .       .        .          .
"""
AFTER_A_CHIEF = """
                          driver  chief  worker:0  worker:1  ps:0  evaluator:0  reader
ParameterServer/Attach      .       x       .         .       .        .          .
ParameterServer/SaveShards  .       x       .         .       .        .          .
ParameterServer/VerifyShards .      x       .         .       .        .          .
ParameterServer/EndJob      .       x       .         .       .        .          .
"""
DEFINITIONS = """
                          driver  chief  worker:0  worker:1  ps:0  evaluator:0  reader
create                      .       x       x         x       .        .          .
bind                        .       x       x         x       .        .          .
look_up                     .       x       x         x       .        x          x
"""
CUTS = """
                          driver  chief  worker:0  worker:1  ps:0  evaluator:0  reader
values                      .       x       x         x       .        .          .
rows                        .       .       .         .       .        .          x
"""
GREETINGS = """
                          driver  chief  worker:0  worker:1  ps:0  evaluator:0  reader
ps                          .       x       x         x       .        x          x
ring                        .       x       x         x       .        .          .
follow                      .       .       .         .       x        .          .
who                         x       x       x         x       x        x          x
"""
OPERATIONS = """
                                  chief  worker:0  worker:1       evaluator:0  reader
OPERATION_PULL                      x       x         x                x          x
OPERATION_APPLY                     x       x         x                .          .
OPERATION_ASSIGN                    x       x         x                .          .
OPERATION_ASSIGN_ADD                x       x         x                .          .
OPERATION_MULTIPLY                  x       x         x                .          .
OPERATION_DIVIDE                    x       x         x                .          .
OPERATION_MINIMUM                   x       x         x                .          .
OPERATION_MAXIMUM                   x       x         x                .          .
OPERATION_ADVANCE                   x       x         x                .          .
"""
# ?: it is not known who that is, tls: no connection comes about
STRANGERS = {
    "local": {
        "nothing": UNKNOWN,
        "other key": UNKNOWN,
        "other port": UNKNOWN,
        "other operation": UNKNOWN,
        "other caller": UNKNOWN,
    },
    "token": {"nothing": UNKNOWN, "other signer": UNKNOWN, "expired": UNKNOWN, "cut": UNKNOWN},
    "mtls": {"nothing": NO_TLS, "other CA": NO_TLS, "expired": NO_TLS},
}
HEALTH = "Health/Check"  # open to whoever gets a connection

SERVICES = [
    service
    for module in (chief_pb2, collective_pb2, common_pb2, ps_pb2, session_pb2, health_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS = {f"{each.name}/{method.name}": method for each in SERVICES for method in each.methods}
SERVED_BY = {"ParameterServer": "ps", "Chief": "chief", "Collective": "worker", "Health": "ps"}

Verdicts = dict[str, dict[str, str]]


def read_table(text: str) -> Verdicts:
    """Verdicts, by row and column."""
    head, *rows = (line.split() for line in text.strip().splitlines())
    return {name: dict(zip(head, marks, strict=True)) for name, *marks in rows}


def principal(name: str, job: str = JOB) -> Principal:
    role, _, index = name.partition(":")
    if role == "chief":
        index = "0"
    return Principal(role, job, int(index) if index else None)


EVERYBODY = [principal(name) for name in next(iter(read_table(CALLS).values()))]
ROLE_NAMES = list(next(iter(read_table(CALLS).values())))


@dataclass
class Cluster:
    """A chief, a ps, a ps of a job without a chief, and a worker, in one mode."""

    mode: str
    folder: Path
    way: Way = field(init=False)
    ports: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        from ropewalk.annexes.ring.server import CollectiveServer

        self.way = Way(self.mode, self.folder, JOB)
        worker = TaskId("worker", 0)
        servers: dict[str, Any] = {
            "ps": self._ps(has_chief=True),
            "leaderless": self._ps(has_chief=False),
            "chief": ChiefServer(
                TaskId("chief", 0), [(worker, "")], self.way.settings("chief"), job_id=JOB
            ),
            "worker": CollectiveServer(worker, self.way.settings("worker")),
        }
        for server in servers.values():
            server.start("127.0.0.1:0")
        self.ports = {name: server.port for name, server in servers.items()}
        self._servers = servers
        self._stack = ExitStack()
        self._callers: dict[tuple[Any, str], Caller] = {}

    def _ps(self, *, has_chief: bool) -> PsServer:
        """A ps with all calls and services, which leads its share."""
        from ropewalk.annexes.replication.server.share import ReplicatedShare

        task = TaskId("ps", 0)
        settings = self.way.settings("ps").model_copy(update={"ps_replicas": 2})
        server = PsServer(task, settings, has_chief=has_chief)
        share = server.shares.at(0)
        assert isinstance(share, ReplicatedShare)
        share.lead(Lead(0, 1, task))
        return server

    def stop(self) -> None:
        self._stack.close()
        for server in self._servers.values():
            server.stop()

    def at(self, server: str, who: Principal, stranger: str = "") -> Caller:
        """Somebody at a server; one connection for all their calls."""
        key = (who, stranger), server
        if key not in self._callers:
            shown = self.way.strangers(who)[stranger] if stranger else self.way.shown(who)
            made = Caller(shown, self.ports[server], self.mode != "local", self.folder)
            self._callers[key] = self._stack.enter_context(made)
        return self._callers[key]


@pytest.fixture(scope="module", params=MODES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(f"access-{request.param}")
    folder.chmod(0o700)
    made = Cluster(request.param, folder)
    yield made
    made.stop()


def path_of(name: str) -> str:
    method = METHODS[name]
    return f"/{method.containing_service.full_name}/{method.name}"


def request_of(name: str, who: Incarnation, **fields: Any) -> tuple[Message, bool]:
    """A request of a task, which changes nothing if it is let in; and whether it has a sender."""
    if name.endswith("/SaveShards"):
        fields["checkpoint"] = "ckpt-0000000001"
    if name.endswith("/ReadCut"):
        fields["cut"] = 7  # which nobody took
    request = GetMessageClass(METHODS[name].input_type)(**fields)
    return request, claim(request, who)


def called(caller: Caller, name: str, who: Incarnation | None = None, **fields: Any) -> str:
    request, _ = request_of(name, who or caller.shown.incarnation, **fields)
    return caller.call(path_of(name), request.SerializeToString())


def marks(table: Verdicts, of: Callable[[str, str], str]) -> Verdicts:
    """The same table as tried."""
    return {row: {name: of(row, name) for name in columns} for row, columns in table.items()}


# -- nothing is forgotten --------------------------------------------------------------------------


def test_every_call_and_operation_has_a_row() -> None:
    assert set(read_table(CALLS)) == set(METHODS)
    operations = set(session_pb2.Operation.keys()) - {"OPERATION_UNSPECIFIED"}
    assert set(read_table(OPERATIONS)) == operations
    assert {each.role for each in EVERYBODY} == {
        "driver", "chief", "worker", "ps", "evaluator", "reader",
    }  # fmt: skip


# -- calls -----------------------------------------------------------------------------------------


def test_calls_of_each_role(cluster: Cluster) -> None:
    table = read_table(CALLS)

    def ask(name: str, who: str) -> str:
        server = SERVED_BY[name.partition("/")[0]]
        return called(cluster.at(server, principal(who)), name)

    assert marks(table, ask) == table


def test_who_leads_a_ps_that_knows_only_itself(cluster: Cluster) -> None:
    def ask(name: str, who: str) -> str:
        fields: dict[str, Any] = {"lease_s": 1000.0} if name.endswith("/Attach") else {}
        return called(cluster.at("leaderless", principal(who)), name, **fields)

    before, after = read_table(BEFORE_A_CHIEF), read_table(AFTER_A_CHIEF)
    assert marks(before, ask) == before
    assert ask("ParameterServer/Attach", "chief") == LET_IN, "it wins over worker 0, which leads"
    assert marks(after, ask) == after
    chief = cluster.at("leaderless", principal("chief"))
    again = Incarnation(TaskId("chief", 0), 2, JOB)
    assert called(chief, "ParameterServer/Attach", again) == LET_IN, "a restart is the same chief"
    assert marks(after, lambda name, who: ask(name, who) if who != "chief" else LET_IN) == after


def test_definitions_of_each_role(cluster: Cluster) -> None:
    table = read_table(DEFINITIONS)
    fields: dict[str, dict[str, Any]] = {
        "create": {"create": True},
        "bind": {"bind_variables": ["none"]},
        "look_up": {},
    }

    def ask(kind: str, who: str) -> str:
        caller = cluster.at("ps", principal(who))
        return called(caller, "ParameterServer/Define", **fields[kind])

    assert marks(table, ask) == table


def test_cuts_for_each_role(cluster: Cluster) -> None:
    table = read_table(CUTS)

    def ask(kind: str, who: str) -> str:
        caller = cluster.at("chief", principal(who))
        return called(caller, "Chief/TakeCut", rows_only=kind == "rows")

    assert marks(table, ask) == table


def test_calls_of_strangers(cluster: Cluster) -> None:
    expected = STRANGERS[cluster.mode]
    names = [name for name in METHODS if name != "Health/Watch"]

    def ask(stranger: str, name: str) -> str:
        server = SERVED_BY[name.partition("/")[0]]
        return called(cluster.at(server, principal("chief"), stranger), name)

    tried = {stranger: {name: ask(stranger, name) for name in names} for stranger in expected}
    assert set(expected) == set(cluster.way.strangers(principal("chief")))
    assert tried == {
        stranger: {
            name: LET_IN if name == HEALTH and verdict == UNKNOWN else verdict for name in names
        }
        for stranger, verdict in expected.items()
    }


def test_calls_of_another_job_with_the_right_role(cluster: Cluster) -> None:
    def ask(name: str, who: str) -> str:
        server = SERVED_BY[name.partition("/")[0]]
        return called(cluster.at(server, principal(who, "other")), name)

    special = {HEALTH: LET_IN, "Health/Watch": NO_SUCH}
    table = read_table(CALLS)
    assert marks(table, ask) == {
        name: dict.fromkeys(columns, special.get(name, REFUSED)) for name, columns in table.items()
    }


SENDERS = [name for name in METHODS if request_of(name, Incarnation(TaskId("worker", 1), 1))[1]]


def test_requests_with_a_sender_are_known() -> None:
    assert SENDERS == [
        "Chief/Register", "Chief/Heartbeat", "Chief/Finish", "Chief/Arrive", "Chief/JoinPs",
        "Chief/JoinCut", "Chief/TakeCut", "Chief/ReleaseCut", "Chief/AnswerQuestion",
        "Chief/LeaseRange",
        "ParameterServer/Define", "ParameterServer/Attach",
        "ParameterServer/LeadShare", "ParameterServer/CopyShare",
        "ParameterServer/HandOverShare", "ParameterServer/GiveUpShare",
        "ParameterServer/WatchShares", "ParameterServer/BeginCut",
        "ParameterServer/MarkCut", "ParameterServer/FinishCut", "ParameterServer/ReadCut",
        "ParameterServer/EndCut",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SENDERS)
def test_a_request_in_the_name_of_another_is_refused(cluster: Cluster, name: str) -> None:
    server = SERVED_BY[name.partition("/")[0]]
    for mine in (who for who, mark in read_table(CALLS)[name].items() if mark == LET_IN):
        me = principal(mine)
        tasks = [TaskId(each.role, each.index or 0) for each in EVERYBODY if each != me]
        false = [Incarnation(task, 1, JOB) for task in (*tasks, TaskId("worker", 2))]
        own = cluster.at(server, me).shown.incarnation
        false.append(Incarnation(own.task, 1, "other"))
        for who in false:
            assert called(cluster.at(server, me), name, who) == REFUSED, (mine, who)
        assert called(cluster.at(server, me), name, own) == LET_IN


# -- greetings -------------------------------------------------------------------------------------

GREETED = {"follow": ["ps"], "ps": ["ps"], "ring": ["worker"], "who": ["ps", "worker", "chief"]}
OVER = ["tcp", "tunnel", *([] if unavailable() else ["unix"])]


def greet(cluster: Cluster, over: str, server: str, service: str, caller: Caller) -> str:
    if over == "tcp":
        return caller.greet_tcp(service).verdict
    if over == "tunnel":
        return caller.greet_in_tunnel(service).verdict
    # Anybody of the job hears of the Unix sockets, and gets a ticket for one of them.
    asked = caller.greet_tcp("who")
    if asked.welcome is None:
        friend = cluster.at(server, principal("worker:1")).greet_tcp("who").welcome
        assert friend is not None
        return caller.greet_unix(friend.unix_sockets[0], service).verdict
    ticket = asked.welcome.unix_ticket if cluster.mode == "mtls" else b""
    return caller.greet_unix(asked.welcome.unix_sockets[0], service, ticket).verdict


@pytest.mark.parametrize("over", OVER)
def test_greetings_of_each_role(cluster: Cluster, over: str) -> None:
    table = read_table(GREETINGS)
    tunnels = {
        "chief",
        "worker:0",
        "worker:1",
        "evaluator:0",
        "reader",
        *(n for n in ROLE_NAMES if n[:2] == "ps"),
    }

    def ask(service: str, who: str) -> set[str]:
        servers = GREETED[service]
        if over != "tcp":
            servers = [name for name in servers if name != "chief"]  # it has no sessions
        caller = principal(who)
        return {greet(cluster, over, s, service, cluster.at(s, caller)) for s in servers}

    def expected(service: str, who: str) -> set[str]:
        is_kept_out = over == "tunnel" and who not in tunnels
        return {REFUSED if is_kept_out else table[service][who]}

    tried = {row: {who: ask(row, who) for who in ROLE_NAMES} for row in table}
    assert tried == {row: {who: expected(row, who) for who in ROLE_NAMES} for row in table}


@pytest.mark.parametrize("over", OVER)
def test_greetings_of_strangers_and_of_another_job(cluster: Cluster, over: str) -> None:
    at = {"ps": "ps", "ring": "worker", "who": "ps"}
    for service, server in at.items():
        for stranger, verdict in STRANGERS[cluster.mode].items():
            caller = cluster.at(server, principal("chief"), stranger)
            expected = UNKNOWN if over == "unix" else verdict
            assert greet(cluster, over, server, service, caller) == expected, (service, stranger)
        for name in ("chief", "worker:0", "evaluator:0", "reader"):
            caller = cluster.at(server, principal(name, "other"))
            verdict = greet(cluster, over, server, service, caller)
            no_ticket = over == "unix" and cluster.mode == "mtls"
            assert verdict == (UNKNOWN if no_ticket else REFUSED), (service, name)


@pytest.mark.parametrize("service", ["ps", "ring"])
def test_a_greeting_in_the_name_of_another_is_refused(cluster: Cluster, service: str) -> None:
    me = cluster.at(GREETED[service][0], principal("worker:1"))
    tasks = [TaskId("worker", 0), TaskId("chief", 0), TaskId("evaluator", 0), TaskId("", 0)]
    for who in (
        *(Incarnation(task, 1, JOB) for task in tasks), Incarnation(TaskId("worker", 1), 1, "other")
    ):  # fmt: skip
        with me.tcp() as connection:
            connection.sendall(me.hello(service, who=who))
            message = session_pb2.ServerMessage.FromString(read_frame(connection))
        assert verdict_of(from_detail(message.failure)) == REFUSED, who


# -- operations of a session -----------------------------------------------------------------------


def test_operations_of_each_role(cluster: Cluster) -> None:
    table = read_table(OPERATIONS)
    shard = ps_pb2.ShardDefinition(
        variable="w", full_shape=[2], dtype=common_pb2.D_TYPE_FLOAT32, num_parts=1, rows=2,
        initializer=ps_pb2.Initializer(name="zeros"),
    )  # fmt: skip
    chief = cluster.at("ps", principal("chief"))
    assert called(chief, "ParameterServer/Define", create=True, shards=[shard]) == LET_IN

    def session_of(who: str) -> dict[str, str]:
        caller = cluster.at("ps", principal(who))
        verdicts = {}
        for number, name in enumerate(table, 1):
            with caller.tcp() as connection:
                assert caller.greet(connection, "ps").verdict == LET_IN
                operation = session_pb2.Operation.Value(name)
                fields = {"variable": "w", "operation": operation, "encoding": 1}
                connection.sendall(step_frames(number, **fields))
                verdicts[name] = step_verdict(connection)
        return verdicts

    tried = {who: session_of(who) for who in next(iter(table.values()))}
    assert {row: {who: tried[who][row] for who in tried} for row in table} == table


def test_an_evaluator_and_a_reader_cannot_count_steps(cluster: Cluster) -> None:
    step = session_pb2.Step(request_id=1, sequence=1, step_increment=1)
    for who, mark in {"evaluator:0": REFUSED, "reader": REFUSED, "worker:1": LET_IN}.items():
        caller = cluster.at("ps", principal(who))
        with caller.tcp() as connection:
            assert caller.greet(connection, "ps").verdict == LET_IN
            message = session_pb2.ClientMessage(step=step).SerializeToString()
            connection.sendall(frame(message))
            assert step_verdict(connection) == mark


def step_verdict(connection: Any) -> str:
    reply = session_pb2.ServerMessage.FromString(read_frame(connection))
    assert reply.WhichOneof("kind") == "step", reply
    return verdict_of(from_detail(reply.step.error) if reply.step.HasField("error") else None)
