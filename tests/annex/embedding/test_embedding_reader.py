"""A reader of a running job: what it reads, follows, may do, and costs."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ropewalk as rw
from helpers.digests import log_of
from helpers.ps_peers import REMOTE, Ps, open_session
from helpers.tables import DIM, EXTREMES, F32, RULE, gradients, table
from helpers.tls_files import tls_settings
from helpers.waiting import wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import CopyTo, GiveUpShare, Lead, ShareLeader
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.net.this_machine import free_ports
from ropewalk.proto.v1 import session_pb2
from ropewalk.server.chief.server import ChiefServer
from ropewalk.server.chief.servicer import WATCH_S

emb = rw.embedding
WEEKDAYS = VariableDefinition("weekdays", (7, DIM), F32)
TABLES = {
    "t": emb.TableConfig("t", dim=DIM, combiner="sum"),
    "weekdays": emb.TableConfig("weekdays", dim=DIM, vocabulary_size=7, combiner="sum"),
}
FEATURES = [
    emb.FeatureConfig("id", TABLES["t"]),
    emb.FeatureConfig("more", TABLES["t"]),
    emb.FeatureConfig("day", TABLES["weekdays"]),
]
SHORT = {"reconnect_timeout_s": 0.3, "join_timeout_s": 5.0, "request_timeout_s": 5.0}


CHANGES: dict[str, dict[str, Any]] = {
    "shm": {},
    "unix": {},
    "grpc": {"shared_memory": False, "tcp_sessions": False},
}


class Job:
    """A chief, two ps and a worker that has made the tables, in this process."""

    def __init__(self, kind: str = "tcp", *, insecure: bool = False, **options: Any) -> None:
        self.servers = [Ps(kind, index, insecure=insecure) for index in range(2)]
        expected = [(ps.task, ps.address) for ps in self.servers]
        own = tls_settings("chief", 0) if kind == "tls" else {"insecure": insecure}
        self.chief = ChiefServer(TaskId("chief", 0), expected, Settings(**own))
        self.chief.start("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.chief.port}"
        self.worker: ParameterSession = open_session(*self.servers)
        definitions = [table("t", **options), WEEKDAYS]
        start = np.arange(7 * DIM, dtype=F32).reshape(7, DIM)
        self.worker.define(definitions, {"weekdays": start}, create=True)

    def reader(self, **arguments: Any) -> "rw.embedding.Reader":
        return emb.Reader(self.address, FEATURES, settings=SHORT, **arguments)

    def push(self, keys: Array, step_increment: int = 1) -> None:
        values = np.ones((keys.size, DIM), F32)
        self.worker.step(Step(gradients(t=(keys, values)), increment=step_increment))

    def add_to_weekdays(self, rows: Array) -> None:
        ones = IndexedSlices(np.ones((rows.size, DIM), F32), rows)
        self.worker.step(Step([Write(Operation.ASSIGN_ADD, {"weekdays": ones})]))

    def close(self) -> None:
        self.worker.close()
        self.chief.stop()
        for ps in self.servers:
            ps.close()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_a_reader_combines_rows_as_training_does_and_makes_none(job: Job) -> None:
    job.push(EXTREMES)
    with job.reader() as reader:
        rows = reader.lookup(
            {"id": emb.Ragged(EXTREMES, row_lengths=[3, 0, 4]), "more": [5], "day": [0, 6]},
            {"id": emb.Ragged(np.arange(7.0), row_lengths=[3, 0, 4])},
        )
        each = job.worker.rows.lookup("t", EXTREMES) * np.arange(7, dtype=F32)[:, None]
        expected = [each[:3].sum(axis=0), np.zeros(DIM), each[3:].sum(axis=0)]
        np.testing.assert_allclose(rows["id"], expected, rtol=1e-5)
        np.testing.assert_array_equal(rows["more"], job.worker.rows.lookup("t", np.array([5])))
        np.testing.assert_array_equal(
            rows["day"], job.worker.rows.lookup("weekdays", np.array([0, 6]))
        )
        assert reader.lag_s == 0
    counters = [each for ps in job.servers for each in ps.store.counters().tables]
    assert sum(each.rows for each in counters) == EXTREMES.size
    assert sum(each.admitted + each.refused for each in counters) == EXTREMES.size


@pytest.mark.parametrize(
    "keys",
    [[(-(2**63), 2**63 - 1)], np.arange(-50, 50), "looked_up"],
    ids=["ranges", "list", "looked_up"],
)
def test_rows_that_are_kept_have_every_change_after_a_round(keys: Any) -> None:
    """Pushes, evictions and rows that are made again, beside what the worker reads."""
    job = Job(max_unseen_steps=3, rule=RULE)
    rng = np.random.default_rng(7)
    ids = np.arange(-50, 50)
    with job.reader(keys={"t": keys, "weekdays": [(0, 3)]}, max_lag_s=1000.0) as reader:
        for _ in range(12):
            job.push(rng.choice(ids, 20, replace=False))
            job.add_to_weekdays(np.unique(rng.integers(0, 7, 3)))
            reader._follow_all()
            rows = reader.lookup({"id": ids, "day": np.arange(7)})
            np.testing.assert_array_equal(rows["id"], job.worker.rows.lookup("t", ids))
            expected = job.worker.rows.lookup("weekdays", np.arange(7))
            np.testing.assert_array_equal(rows["day"], expected)
        assert reader.kept_rows["t"] >= 90
    assert sum(t.evicted for ps in job.servers for t in ps.store.counters().tables) > 20
    job.close()


def test_lookups_of_rows_that_are_kept_need_no_ps(job: Job) -> None:
    job.push(np.arange(40))
    with job.reader(keys={"t": [(0, 39)]}, max_lag_s=1000.0) as reader:
        before = reader.lookup({"id": np.arange(40)})["id"]
        pulls = [ps.store.counters().pulls for ps in job.servers]
        job.push(np.arange(40))
        np.testing.assert_array_equal(reader.lookup({"id": np.arange(40)})["id"], before)
        assert [ps.store.counters().pulls for ps in job.servers] == pulls


@pytest.mark.parametrize("role", ["reader", "worker"])
def test_a_reader_shows_a_certificate_of_its_role(role: str) -> None:
    job = Job("tls")
    job.push(np.arange(9))
    settings = {**SHORT, **tls_settings(role, None), "shared_memory": False}
    if role == "reader":
        with emb.Reader(job.address, FEATURES, keys={"t": [(0, 9)]}, settings=settings) as reader:
            rows = reader.lookup({"id": np.arange(9)})["id"]
            np.testing.assert_array_equal(rows, job.worker.rows.lookup("t", np.arange(9)))
    else:
        with pytest.raises(rw.errors.PermissionDeniedError, match="credentials of"):
            emb.Reader(job.address, FEATURES, settings=settings)
    job.close()


@pytest.mark.parametrize("kind", [kind for kind in REMOTE if kind not in ("tcp", "tls")])
def test_a_reader_follows_over_every_connection(kind: str) -> None:
    job = Job()
    settings = {**SHORT, **CHANGES[kind]}
    kept = {"t": np.arange(9)}
    with emb.Reader(
        job.address, FEATURES, keys=kept, max_lag_s=1000.0, settings=settings
    ) as reader:
        job.push(np.arange(5))
        reader._follow_all()
        rows = reader.lookup({"id": np.arange(12)})["id"]
        np.testing.assert_array_equal(rows, job.worker.rows.lookup("t", np.arange(12)))
    job.close()


def test_rows_follow_by_themselves_within_the_lag(job: Job) -> None:
    with job.reader(keys={"t": np.arange(5)}, max_lag_s=0.2) as reader:
        job.push(np.arange(5))
        expected = job.worker.rows.lookup("t", np.arange(5))
        ids = {"id": np.arange(5)}
        wait_until(lambda: np.array_equal(reader.lookup(ids)["id"], expected), 10)
        assert reader.lag_s < 60


def test_rows_older_than_the_lag_are_an_error_or_a_warning_where_no_ps_answers(job: Job) -> None:
    job.push(np.arange(5))
    ids = {"id": np.arange(5)}
    strict = job.reader(keys={"t": np.arange(5)}, max_lag_s=0.2)
    lax = job.reader(keys={"t": np.arange(5)}, max_lag_s=0.2, on_lag="warn")
    before = lax.lookup(ids)["id"]
    for ps in job.servers:
        ps.close()
    time.sleep(0.3)
    with pytest.raises(rw.errors.StaleRowsError, match=r"more than max_lag_s=0\.2"):
        strict.lookup(ids)
    np.testing.assert_array_equal(lax.lookup(ids)["id"], before)
    with pytest.raises(rw.errors.PeerLostError):
        lax.lookup({"id": [77]})
    assert lax.lag_s > 0.2
    strict.close()
    lax.close()


def test_rows_that_are_kept_stay_within_their_bytes(job: Job) -> None:
    from ropewalk.annexes.embedding.features.row_cache import ROW_BYTES

    job.push(np.arange(500))
    most = 50 * (DIM * 4 + ROW_BYTES)
    with job.reader(keys={"t": [(0, 499)]}, max_bytes=most, max_lag_s=1000.0) as reader:
        assert reader.kept_rows == {"t": 50}
        job.push(np.arange(500))
        reader._follow_all()
        expected = job.worker.rows.lookup("t", np.arange(500))
        np.testing.assert_array_equal(reader.lookup({"id": np.arange(500)})["id"], expected)
        assert reader.kept_rows == {"t": 50}


def test_prometheus_reads_what_a_reader_keeps(job: Job) -> None:
    job.push(np.arange(10))
    [port] = free_ports(1)
    options: dict[str, Any] = {"keys": {"t": [(0, 7)]}, "max_lag_s": 1000.0}
    with job.reader(**options, metrics_port=port) as reader:
        job.push(np.arange(4))
        reader._follow_all()
        reader.lookup({"id": [1, 2, 9], "day": [0]})
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            found = {s.name: s for family in families for s in family.samples}
        with pytest.raises(rw.errors.AddressInUseError, match="metrics"):
            job.reader(metrics_port=port)
    wanted = {"kept_rows": 8, "cached_rows_total": 2, "looked_up_rows_total": 1,
              "changed_rows_total": 8 + 4, "renewed_rows_total": 8 + 4}  # fmt: skip
    for name, value in wanted.items():
        sample = found[f"ropewalk_reader_{name}"]
        assert (sample.value, sample.labels) == (value, {"table": "t"}), name
    assert 0 <= found["ropewalk_reader_lag_seconds"].value < 100
    assert found["ropewalk_reader_kept_bytes"].value == reader._kept["t"].rows.num_bytes
    assert found["ropewalk_reader_received_bytes_total"].value >= (8 + 4 + 2) * 4 * DIM
    assert found["ropewalk_task_info"].labels["role"] == "reader"


def test_a_ps_notes_changes_only_while_a_reader_follows(job: Job) -> None:
    def followed() -> int:
        return sum(len(each.changes) for ps in job.servers for each in ps.store.table.targets())

    with job.reader():
        assert followed() == 0
    with job.reader(keys={"t": [(0, 9)], "weekdays": [(0, 6)]}):
        assert followed() == 3  # two parts, and one variable
        assert job.servers[0].store.table.targets()[0].followed_bytes > 0
    wait_until(lambda: followed() == 0, 10)


def test_a_reader_is_no_worker_and_fills_no_place_of_one(job: Job) -> None:
    with job.reader() as reader:
        assert reader.lookup({"day": [1]})
        assert [ps.store.counters().sessions for ps in job.servers] == [0, 0]
        assert TaskId("reader", 0).type not in {
            task.type for ps in job.servers for task in log_of(ps.store).pushes
        }


@pytest.mark.parametrize("insecure", [False, True], ids=["proven", "insecure"])
def test_a_reader_pushes_nothing_also_where_nobody_shows_who_they_are(insecure: bool) -> None:
    job = Job(insecure=insecure)
    settings = {**SHORT, "insecure": insecure}
    with emb.Reader(job.address, FEATURES, settings=settings) as reader:
        session = reader._session._session
        ones = np.ones((1, DIM), F32)
        attempts: list[Callable[[], object]] = [
            lambda: session.step(Step(gradients(t=(np.array([1]), ones)))),
            lambda: session.step(
                Step([Write(Operation.ASSIGN, {"weekdays": np.zeros((7, DIM), F32)})])
            ),
            lambda: session.step(Step(increment=1)),
        ]
        for attempt in attempts:
            with pytest.raises(rw.errors.PermissionDeniedError, match="reader may not"):
                attempt()
        job.push(np.arange(3))
    assert job.worker.global_step == 1
    job.close()


def test_readers_fill_their_own_places_alone() -> None:
    ps = Ps("tcp", max_sessions=4)  # so one reader

    def greeted(who: TaskId) -> RemotePs:
        made = RemotePs(ps.task, ps.address, Incarnation(who, 1), ps.settings)
        made.connect(5)
        return made

    opened = [greeted(TaskId("reader", 3))]
    with pytest.raises(rw.errors.TooManyWorkersError, match="max_sessions=4 allows 1 readers"):
        greeted(TaskId("reader", 4))
    opened += [greeted(TaskId("worker", index)) for index in range(4)]
    for each in opened:
        each.close()
    ps.close()


def test_a_chief_answers_readers_at_once_so_that_they_hold_no_thread_of_a_task() -> None:
    chief = ChiefServer(TaskId("chief", 0), [], Settings(ps_replicas=2))
    chief.start("127.0.0.1:0")
    leaders, waited = chief.locked_job.leaders, list[float]()
    watch = leaders.watch

    def noted(seen: int, wait_s: float) -> tuple[int, list[ShareLeader]]:
        waited.append(wait_s)
        return watch(seen, 0.0)

    leaders.watch = noted  # type: ignore[method-assign]
    for who in (Principal("reader"), Principal("worker", index=0)):
        client = ChiefClient(f"127.0.0.1:{chief.port}", Settings(), who)
        client.watch_leaders(1, timeout_s=10)
        client.close()
    chief.stop()
    assert waited == [0.0, WATCH_S]


def test_messages_of_a_reader_that_make_no_sense_are_refused_and_it_goes_on(job: Job) -> None:
    Message, keep = session_pb2.ClientMessage, session_pb2.KeepRows
    entry = session_pb2.KeptEntry
    ranges = [session_pb2.KeyRange()] * 65
    nonsense = [
        (Message(follow_rows=session_pb2.FollowRows(variable="nowhere")), None),
        (Message(follow_rows=session_pb2.FollowRows(variable="t", part=9)), None),
        (Message(follow_rows=session_pb2.FollowRows(variable="t", ranges=ranges)), None),
        (Message(keep_rows=keep(entries=[entry(variable="t", rows=2**64 - 1)])), np.zeros(3)),
        (Message(keep_rows=keep(entries=[entry(variable="nowhere", rows=1)])), np.zeros(1)),
        (Message(keep_rows=keep(entries=[entry(variable="t", rows=1)] * 2)), np.zeros(2)),
        (Message(keep_rows=keep(entries=[entry(variable="t")])), None),
        (Message(keep_rows=keep()), np.zeros(1)),
        (Message(keep_rows=keep()), None),
        (Message(read_kept_rows=session_pb2.ReadKeptRows(cut=0)), None),
        (Message(read_kept_rows=session_pb2.ReadKeptRows(cut=7)), None),
    ]
    with job.reader() as reader:
        peer = reader._session._peers[0]
        for message, payload in nonsense:
            reply, values = peer.ask(message, payload)
            answer = getattr(reply, str(reply.WhichOneof("kind")))
            assert answer.HasField("error"), message
            assert not values
        assert reader.lookup({"day": [1]})
    worker = job.servers[0].worker(1)
    for message, payload in nonsense:
        with pytest.raises(rw.errors.RefusedError, match="a session goes on with steps"):
            worker.peer.ask(message, payload)  # type: ignore[attr-defined]


def test_a_table_that_the_job_has_otherwise_is_refused(job: Job) -> None:
    wrong = emb.FeatureConfig("x", emb.TableConfig("t", dim=DIM + 1))
    with pytest.raises(rw.errors.ConfigurationError, match="table 't' is float32"):
        emb.Reader(job.address, [wrong], settings=SHORT)
    missing = emb.FeatureConfig("x", emb.TableConfig("nowhere", dim=DIM))
    with pytest.raises(rw.errors.JoinTimeoutError, match="no 'nowhere'"):
        emb.Reader(job.address, [missing], settings={**SHORT, "join_timeout_s": 0.2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": {"x": "looked_up"}}, "no feature has such a table"),
        ({"keys": {"t": "all"}}, "looked_up"),
        ({"keys": {"t": np.zeros(2)}}, "float64"),
        ({"keys": {"t": np.zeros(0, np.int64)}}, "one at least"),
        ({"keys": {"t": [(5, 4)]}}, "no range of keys"),
        ({"keys": {"t": [(0, 2**63)]}}, "no range of keys"),
        ({"keys": {"t": []}}, "0 ranges"),
        ({"max_lag_s": float("inf")}, "max_lag_s"),
        ({"max_lag_s": float("nan")}, "max_lag_s"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"on_lag": "ignore"}, "on_lag"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        emb.Reader("nowhere:1", FEATURES, **arguments)


def test_a_reader_finds_the_chief_in_tf_config(job: Job, monkeypatch: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {{"chief": ["{job.address}"]}}}}')
    with emb.Reader(None, FEATURES, settings=SHORT) as reader:
        np.testing.assert_array_equal(reader.lookup({"day": [2]})["day"][0], np.arange(8, 12))


def test_lookups_while_rows_change_are_never_of_before_the_last_round(job: Job) -> None:
    """A row that a lookup pulls before a round, and would keep after it, is not kept."""
    keys = np.arange(2000)
    with job.reader(keys={"t": "looked_up"}, max_lag_s=1000.0) as reader:
        stop = threading.Event()
        ids = {"id": keys}

        def look() -> None:
            while not stop.is_set():
                reader.lookup(ids)

        looking = threading.Thread(target=look)
        looking.start()
        for _ in range(10):
            job.push(keys)
            reader._follow_all()
            expected = job.worker.rows.lookup("t", keys)
            np.testing.assert_array_equal(reader.lookup(ids)["id"], expected)
        stop.set()
        looking.join()


LAG = "ps_unacknowledged_records"


def followed(ps: Ps) -> dict[str, tuple[str, ...]]:
    """The labels of a ps's samples about its shares."""
    assert ps.server is not None
    names = ("ps_shares", LAG)
    found = ((each.metric.name.removeprefix("ropewalk_"), each) for each in ps.server.samples())
    return {name: each.labels for name, each in found if name in names}


@pytest.mark.annex("replication")
def test_a_reader_goes_on_with_the_ps_that_leads_next() -> None:
    """Rows that change before, while and after the share moves are all followed."""
    servers = [Ps("tcp", index, ps_replicas=2) for index in range(2)]
    chief = ChiefServer(
        TaskId("chief", 0), [(servers[0].task, servers[0].address)], Settings(ps_replicas=2)
    )
    chief.start("127.0.0.1:0")
    leaders, me = chief.locked_job.leaders, Incarnation(TaskId("chief", 0), 1)
    leaders.shares = 1
    controls = [
        PsControl(each.task, each.address, Settings(), Principal("chief", index=0))
        for each in servers
    ]
    for control in controls:
        control.attach(me, "chief:1", lease_s=60, timeout_s=5)

    def lead(ps: int, epoch: int, *, ended: bool = False) -> None:
        order = Lead(0, epoch, servers[ps].task, leader_ended=ended)
        controls[ps].lead_share(me, order, timeout_s=5)
        leaders.publish(ShareLeader(0, epoch, servers[ps].task, servers[ps].address, ()))

    lead(0, 1)
    who = Incarnation(TaskId("worker", 0), 1)
    peer = RemotePs(
        servers[0].task,
        servers[0].address,
        who,
        servers[0].settings,
        locate=lambda share: leaders.now()[share],
    )
    worker = ParameterSession([peer], who, servers[0].settings)
    worker.connect()
    worker.define([table("t")], {}, create=True)
    keys = np.arange(60)

    def push(some: Array) -> None:
        worker.step(Step(gradients(t=(some, np.ones((some.size, DIM), F32))), increment=1))

    push(keys[:40])
    address = f"127.0.0.1:{chief.port}"
    settings = {**SHORT, "reconnect_timeout_s": 5.0}
    kept: dict[str, Any] = {"t": [(0, 59)]}
    with emb.Reader(
        address, FEATURES[:1], keys=kept, max_lag_s=1000.0, settings=settings
    ) as reader:
        push(keys[:10])
        changes, _ = controls[0].watch_shares(me, 0, timeout_s=5)
        order = CopyTo(0, 1, servers[0].task, servers[1].task)
        controls[0].copy_share(me, order, servers[1].address, timeout_s=5)
        has_joined = False
        while not has_joined:
            changes, report = controls[0].watch_shares(me, changes, timeout_s=5)
            has_joined = any(f.has_joined for each in report.shares for f in each.followers)
        push(keys[10:20])
        assert followed(servers[0]) == {"ps_shares": ("leading",), LAG: ("0", "ps:1")}
        assert followed(servers[1]) == {"ps_shares": ("following",)}
        controls[0].give_up_share(me, GiveUpShare(0, 2, servers[0].task), timeout_s=5)
        lead(1, 2, ended=True)
        push(keys[20:])
        wait_until(lambda: _follows(reader), 10)
        rows = reader.lookup({"id": keys})["id"]
        np.testing.assert_array_equal(rows, worker.rows.lookup("t", keys))
    worker.close()
    chief.stop()
    for control in controls:
        control.close()
    for server in servers:
        server.close()


def _follows(reader: "rw.embedding.Reader") -> bool:
    try:
        reader._follow_all()
    except rw.errors.PeerLostError:
        return False
    return True


def test_a_program_that_knows_no_rules_of_the_job_can_read_it(job: Job) -> None:
    """Update rules are the job's: those of its own mean nothing to a reader."""
    job.worker.bind(["weekdays"], RULE)
    with job.reader() as reader:
        shards = reader._session.shards("weekdays") + reader._session.shards("t")
        assert [shard.rule for _, shard in shards if shard.variable.table is None] == [None]
        assert reader.lookup({"day": [1]})


@pytest.mark.annex("replication")
def test_a_reader_finds_more_shares_than_ps() -> None:
    """A ps that leads two shares serves the rows of both."""
    server = Ps("tcp", ps_shares=2)
    chief = ChiefServer(TaskId("chief", 0), [(server.task, server.address)], Settings(ps_shares=2))
    chief.start("127.0.0.1:0")
    leaders, me = chief.locked_job.leaders, Incarnation(TaskId("chief", 0), 1)
    leaders.shares = 2
    control = PsControl(server.task, server.address, Settings(), Principal("chief", index=0))
    control.attach(me, "chief:1", lease_s=60, timeout_s=5)
    for share in range(2):
        control.lead_share(me, Lead(share, 1, server.task), timeout_s=5)
        leaders.publish(ShareLeader(share, 1, server.task, server.address, ()))
    who = Incarnation(TaskId("worker", 0), 1)
    peers = [
        RemotePs(server.task, server.address, who, server.settings, share=share)
        for share in range(2)
    ]
    worker = ParameterSession(peers, who, server.settings)
    worker.connect()
    worker.define([table("t")], {}, create=True)
    keys = np.arange(60)
    worker.step(Step(gradients(t=(keys, np.ones((keys.size, DIM), F32))), increment=1))
    kept: dict[str, Any] = {"t": [(0, 59)]}
    address = f"127.0.0.1:{chief.port}"
    with emb.Reader(address, FEATURES[:1], keys=kept, settings=SHORT) as reader:
        wait_until(lambda: _follows(reader), 10)
        rows = reader.lookup({"id": keys})["id"]
        np.testing.assert_array_equal(rows, worker.rows.lookup("t", keys))
        assert worker.variables.shards("t")[-1][0] == 1, "the table lies on both shares"
    worker.close()
