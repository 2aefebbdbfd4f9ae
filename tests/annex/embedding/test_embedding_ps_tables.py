"""Growing tables of a ps: who may define what, what is refused whole, and what is counted."""

from typing import Any

import numpy as np
import pytest

from helpers.pushes import push_of
from helpers.rules import SGD, Adam, Lamb
from helpers.tables import DIM, EXTREMES, F32, gradients, table
from ropewalk.annexes.embedding.keyed.block import KeyedBlock
from ropewalk.annexes.embedding.options import Chance, NormClipping, Sightings, SketchedSightings
from ropewalk.annexes.embedding.update_rules import GroupFtrl, RowwiseAdagrad
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.dtypes import as_bytes
from ropewalk.core.errors import (
    ConfigurationError,
    DefinitionMismatchError,
    LimitExceededError,
    RefusedError,
    ShapeMismatchError,
)
from ropewalk.core.report import PsCounters, TableCounters, total_counters
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire import codec
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.engine.push_target import StepInfo
from ropewalk.proto.v1 import replication_pb2 as pb
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.payload import BufferPayload
from ropewalk.server.ps.store import Store
from ropewalk.telemetry.task_metrics import ps_samples

CHIEF = Incarnation(TaskId("chief", 0), 1)
SETTINGS = Settings(max_ps_bytes=1 << 20, join_timeout_s=0.2)
SGD1 = SGD(learning_rate=1.0)


def make_store(*tables: VariableDefinition) -> Store:
    store = Store(TaskId("ps", 0), SETTINGS)
    store.table.define([ShardDefinition(each) for each in tables], CHIEF)
    return store


def session_of(store: Store, index: int = 0) -> ParameterSession:
    who = Incarnation(TaskId("worker", index), 1)
    session = ParameterSession([LocalPs(store.task, who, SETTINGS, store)], who, SETTINGS)
    session.connect()
    return session


def training(definition: VariableDefinition) -> tuple[Store, ParameterSession]:
    store = Store(TaskId("ps", 0), SETTINGS)
    session = session_of(store)
    session.define([definition], {}, create=True)
    return store, session


# -- definitions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "definition",
    [
        table(rule=Adam(learning_rate=0.1), max_unseen_steps=70, evicts="least_recent"),
        table(rule=RowwiseAdagrad(), admission=Sightings(3), unknown="zeros"),
        table(rule=GroupFtrl(beta=0.5), admission=SketchedSightings(2, 1 << 10)),
        table(admission=Chance(0.25), evicts="least_frequent", clipping=NormClipping(1.0, 2.0)),
        table(memory_bytes=1 << 40),
    ],
    ids=["adam", "sightings", "sketch", "chance", "memory"],
)
def test_a_definition_survives_the_wire(definition: VariableDefinition) -> None:
    shard = ShardDefinition(definition)
    assert codec.shard_from_wire(codec.shard_to_wire(shard)) == shard


def test_the_same_definition_again_changes_nothing_and_another_one_names_both_tasks() -> None:
    store = make_store(table(max_unseen_steps=5))
    store.table.define([ShardDefinition(table(max_unseen_steps=5))], CHIEF)
    assert len(store.table.tables()) == 1
    for other in (table(max_unseen_steps=6), VariableDefinition("t", (1000, DIM), F32)):
        with pytest.raises(DefinitionMismatchError, match=r"max_unseen_steps=5.*same program"):
            store.table.define([ShardDefinition(other)], Incarnation(TaskId("worker", 1), 1))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_rows": 10_000_000}, LimitExceededError),
        ({"dim": 1 << 20}, LimitExceededError),
        ({"admission": SketchedSightings(2, 1 << 30)}, LimitExceededError),
        ({"admission": Sightings(2, 1 << 40)}, LimitExceededError),
        ({"admission": Sightings(2**63, 2)}, ConfigurationError),
        ({"admission": SketchedSightings(2, 3)}, ConfigurationError),
        ({"admission": Chance(float("nan"))}, ConfigurationError),
        ({"max_unseen_steps": 2**40}, ConfigurationError),
        ({"rule": Lamb()}, ConfigurationError),
        ({"dtype": np.dtype(np.int32)}, ConfigurationError),
        ({"dtype": np.dtype(np.float16)}, ConfigurationError),
        ({"dim": 0}, ConfigurationError),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_table_beyond_the_limits_is_refused_and_nothing_is_left(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    store = make_store()
    with pytest.raises(error, match="'t'"):
        store.table.define([ShardDefinition(table(**changes))], CHIEF)
    assert store.table.tables() == []
    store.table.define([ShardDefinition(table())], CHIEF)


def test_tables_count_as_large_as_they_may_become() -> None:
    store = make_store(table(max_rows=9000))
    with pytest.raises(LimitExceededError, match="max_ps_bytes"):
        store.table.define([ShardDefinition(VariableDefinition("w", (100_000,), F32))], CHIEF)


def test_a_table_needs_a_row_for_each_ps() -> None:
    stores = [Store(TaskId("ps", index), SETTINGS) for index in range(2)]
    peers = [LocalPs(store.task, CHIEF, SETTINGS, store) for store in stores]
    session = ParameterSession(peers, CHIEF, SETTINGS)
    session.connect()
    with pytest.raises(ConfigurationError, match="raise max_rows"):
        session.define([table(max_rows=1)], {}, create=True)


def test_a_table_that_a_lost_chief_has_made_on_some_ps_is_completed() -> None:
    stores = [Store(TaskId("ps", index), SETTINGS) for index in range(2)]
    peers = [LocalPs(store.task, CHIEF, SETTINGS, store) for store in stores]
    peers[0].define([ShardDefinition(table(), 0, 2, 0, 500)], create=True)
    session = ParameterSession(peers, CHIEF, SETTINGS)
    session.connect()
    session.define([table()], {}, create=True)
    assert [len(store.table.tables()) for store in stores] == [1, 1]


def test_rules_of_whole_rows_are_refused_for_arrays() -> None:
    store = make_store(VariableDefinition("w", (3,), F32))
    with pytest.raises(RefusedError, match="growing tables alone"):
        store.table.bind(["w"], RowwiseAdagrad(), CHIEF)


def test_tables_of_several_shares_are_shown_as_one() -> None:
    several = [PsCounters(tables=(TableCounters("t", rows=n, evicted=1),)) for n in (2, 3)]
    assert total_counters(several, 0).tables == (TableCounters("t", rows=5, evicted=2),)


# -- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        LayoutEntry("t", 0, Operation.PULL),
        LayoutEntry("t", 0, Operation.PULL, Encoding.ROWS),
        LayoutEntry("t", 0, Operation.ASSIGN, Encoding.KEYS),
        LayoutEntry("t", 0, Operation.MULTIPLY, Encoding.KEYS),
        LayoutEntry("w", 0, Operation.PULL, Encoding.KEYS),
        LayoutEntry("w", 0, Operation.PULL, Encoding.STATES),
        LayoutEntry("t", 0, Operation.APPLY, Encoding.STATES),
        LayoutEntry("t", 0, Operation.PULL, Encoding.STATES, np.dtype(np.float16)),
    ],
    ids=[
        "whole",
        "by number",
        "assign",
        "multiply",
        "array by key",
        "array with slots",
        "push of slots",
        "narrow slots",
    ],
)
def test_a_layout_that_does_not_fit_is_refused(entry: LayoutEntry) -> None:
    store = make_store(table(), VariableDefinition("w", (3, 4), F32))
    with pytest.raises(RefusedError):
        compile_layout(store.table, [entry])


def test_a_push_of_another_width_is_refused_before_it_is_sent() -> None:
    _, session = training(table())
    with pytest.raises(ShapeMismatchError, match="'t'"):
        session.step(Step(gradients(t=(EXTREMES, np.ones((EXTREMES.size, DIM + 1), np.float32)))))


def test_the_budget_holds_whatever_keys_come() -> None:
    store, session = training(table(max_rows=100))
    rng = np.random.default_rng(0)
    for _ in range(5):
        keys = rng.integers(-(2**63), 2**63 - 1, 60)
        session.step(Step(gradients(t=(keys, np.ones((60, DIM), np.float32)))))
    [counted] = store.counters().tables
    assert (counted.rows, counted.admitted, counted.full) == (100, 100, 200)
    [block] = store.table.tables()
    assert block.value_bytes + block.slot_bytes <= block.most_bytes


def test_refused_and_evicted_rows_are_counted() -> None:
    store, session = training(
        table(rule=SGD1, max_rows=10, admission=Sightings(2, 100), evicts="least_recent")
    )
    for start in (0, 0, 10, 10):
        keys = np.arange(start, start + 10)
        session.step(Step(gradients(t=(keys, np.ones((10, DIM), np.float32))), increment=1))
    [counted] = store.counters().tables
    assert (counted.rows, counted.admitted, counted.refused, counted.evicted) == (10, 20, 20, 10)
    again = codec.counters_from_wire(codec.counters_to_wire(store.counters()))
    assert again.tables == (counted,)
    shown = ps_samples(again, limit_bytes=0, max_sessions=0, chief_silent_s=0)
    values = {each.metric.name: each.value for each in shown if each.labels == ("t",)}
    assert values == {
        "ropewalk_ps_table_rows": 10,
        "ropewalk_ps_table_bytes": counted.num_bytes,
        "ropewalk_ps_table_disk_bytes": 0,
        "ropewalk_ps_table_admitted_rows_total": 20,
        "ropewalk_ps_table_refused_keys_total": 20,
        "ropewalk_ps_table_full_keys_total": 0,
        "ropewalk_ps_table_evicted_rows_total": 10,
    }


def test_a_steps_clipping_and_hyperparameters_are_those_of_arrays() -> None:
    """A table clips by what it says, and its optimizer is another one than the program's."""
    _, session = training(table(rule=SGD1))
    before = session.rows.lookup("t", EXTREMES)
    [push] = gradients(t=(EXTREMES, np.ones((EXTREMES.size, DIM), np.float32)))
    session.step(Step([push._replace(hyperparameters={"beta_1": 0.5})], gradient_scale=0.5))
    np.testing.assert_allclose(session.rows.lookup("t", EXTREMES), before - 1, rtol=1e-6)


def test_a_step_beyond_what_a_row_can_note_counts_as_the_last_one() -> None:
    store = make_store(table(rule=SGD1))
    [block] = store.table.tables()
    block.run((), StepInfo(CHIEF, 1, 2**40))
    _, session = training(table(rule=SGD1))
    session.global_step = 2**33
    session.step(Step(gradients(t=(EXTREMES, np.ones((EXTREMES.size, DIM), np.float32)))))


@pytest.mark.annex("replication")
def test_a_record_of_a_push_makes_the_same_bits_in_a_table_with_the_same_rows() -> None:
    """It is the record of any push: keys stand where arrays have numbers of rows."""
    from ropewalk.annexes.replication.server.follower import Follower
    from ropewalk.annexes.replication.server.posting import StoreRecords
    from ropewalk.annexes.replication.server.record_codec import RecordDecoder
    from ropewalk.annexes.replication.server.records import BlockUpdated

    definition = table(max_rows=30, admission=Chance(0.7), evicts="least_recent")
    store, session = training(definition)
    [block] = store.table.tables()
    sent: list[tuple[pb.Record, bytes]] = []
    follower = Follower(TaskId("ps", 1), _Collecting(sent))
    follower.blocks.add(block.number)
    store.part(StoreRecords).stream.attach(follower)
    rng = np.random.default_rng(4)
    for _ in range(6):
        keys = rng.integers(0, 60, 20)
        push = gradients(t=(keys, rng.standard_normal((20, DIM), np.float32)))
        session.step(Step(push, increment=1))
    replica, decoder = KeyedBlock(ShardDefinition(definition)), RecordDecoder()
    decoder.dtypes[block.number] = F32, F32
    for message, arrays in sent:
        record = decoder.decode(message, memoryview(arrays))
        if isinstance(record, BlockUpdated):
            replica.run(record.parts, record.info)
    assert isinstance(block, KeyedBlock)
    assert replica.table.digest() == block.table.digest()
    assert replica.applied == block.applied
    assert block.counters.evicted > 0


def test_a_push_that_broke_off_between_two_tables_is_repeated_for_the_other_one_alone() -> None:
    definitions = [table("t", rule=SGD1), table("u", rule=SGD1)]
    store = make_store(*definitions)
    entries = [LayoutEntry(name, 0, Operation.APPLY, Encoding.KEYS) for name in ("t", "u")]
    values = np.ones((2, EXTREMES.size, DIM), np.float32)
    store.register_incarnation(CHIEF)
    push = push_of(
        compile_layout(store.table, entries), (EXTREMES, EXTREMES), StepInfo(CHIEF, 1, 0)
    )
    before = [block.read(EXTREMES) for block in store.table.tables()]
    next(store.applying(push, BufferPayload([as_bytes(values)]).take))
    store.push(push, BufferPayload([as_bytes(values)]).take)
    for block, start in zip(store.table.tables(), before, strict=True):
        np.testing.assert_allclose(block.read(EXTREMES), start - 1, rtol=1e-6)


class _Collecting:
    """A link that keeps what goes over it."""

    shares_memory = False

    def __init__(self, sent: list[tuple[pb.Record, bytes]]) -> None:
        from ropewalk.annexes.replication.server.record_codec import RecordEncoder

        self._sent = sent
        self._encoder = RecordEncoder()

    def send(self, position: int, record: Any) -> None:
        message, arrays = self._encoder.encode(position, record)
        self._sent.append((message, b"".join(array.tobytes() for array in arrays)))

    def read(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        """Nothing is open."""

    def cancel(self) -> None:
        pass

    def lead_in(self, epoch: int) -> None:
        pass


def test_a_push_that_is_repeated_is_applied_once() -> None:
    store, session = training(table(rule=SGD1))
    push = gradients(t=(EXTREMES, np.ones((EXTREMES.size, DIM), np.float32)))
    session.step(Step(push))
    after = session.rows.lookup("t", EXTREMES)
    again = session_of(store)  # the same life of the task, whose answer was lost
    again.define([table(rule=SGD1)], {}, create=False)
    again.step(Step(push))
    np.testing.assert_array_equal(again.rows.lookup("t", EXTREMES), after)
    assert store.counters().duplicates == 1
