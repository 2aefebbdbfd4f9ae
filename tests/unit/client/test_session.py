"""A parameter session over several ps in this process: placement, cutting, errors."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.cluster.placement.partitioners import FixedShardsPartitioner
from windlass.core.arrays.dtypes import Array, DType
from windlass.core.arrays.indexed_slices import IndexedSlices
from windlass.core.errors import (
    DefinitionMismatchError,
    JobStoppedError,
    JoinTimeoutError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    ShapeMismatchError,
    UnknownVariableError,
    WindlassError,
)
from windlass.core.rules.built_in.sgd import SGD
from windlass.core.rules.definitions import ShardDefinition, VariableDefinition
from windlass.core.settings import Settings
from windlass.core.task import Incarnation, TaskId
from windlass.core.wire.steps import NO_TARGET, Operation, PullTarget, PushResult, StepRequest
from windlass.distribute.local_ps import LocalPs
from windlass.server.ps.store import Store

F32 = np.dtype(np.float32)
PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation
SETTINGS = Settings(join_timeout_s=0.3)


class FaultyTransport(LocalPs):
    """A local transport that fails when it is told to: at ``send`` or at ``receive``."""

    fail_prepare: BaseException | None = None
    fail_send: WindlassError | None = None
    fail_receive: WindlassError | None = None
    fail_connect: WindlassError | None = None
    in_flight = False
    log: list[str]

    def connect(self, timeout_s: float) -> None:
        if self.fail_connect is not None:
            raise self.fail_connect
        super().connect(timeout_s)

    def prepare(self, request: StepRequest) -> None:
        if self.fail_prepare is not None:
            raise self.fail_prepare
        super().prepare(request)

    def send(self) -> None:
        if self.fail_send is not None:
            raise self.fail_send
        assert not self.in_flight, "the answer to the last step was never read"
        super().send()
        self.in_flight = True
        self.log.append(f"send {self.task.index}")

    def receive(self, target: PullTarget = NO_TARGET) -> PushResult:
        self.in_flight = False
        self.log.append(f"receive {self.task.index}")
        result = super().receive(target)
        if self.fail_receive is not None:
            raise self.fail_receive
        return result


class Cluster:
    """Some ps, and workers that reach them."""

    def __init__(self, ps: int = 1) -> None:
        self.stores = [Store(TaskId("ps", i), SETTINGS) for i in range(ps)]
        self.log: list[str] = []

    def session(
        self, index: int = 0, generation: int = 1, settings: Settings = SETTINGS
    ) -> ParameterSession:
        who = Incarnation(TaskId("worker", index), generation)
        transports = []
        for store in self.stores:
            transport = FaultyTransport(store.task, who, settings, store)
            transport.log = self.log
            transports.append(transport)
        return ParameterSession(transports, who, settings)

    def labels(self) -> list[set[str]]:
        """Names of the shards on each ps."""
        return [set(store.counters().labels) for store in self.stores]


def faulty(session: ParameterSession, ps: int) -> FaultyTransport:
    transport = session.peers[ps]
    assert isinstance(transport, FaultyTransport)
    return transport


def variable(name: str, *shape: int, dtype: DType = F32) -> VariableDefinition:
    return VariableDefinition(name, shape, dtype)


def create(
    session: ParameterSession, *variables: VariableDefinition, parts: int = 1, **options: Any
) -> dict[str, Array]:
    """Define variables with random values; returns these."""
    rng = np.random.default_rng(0)
    values = {item.name: rng.standard_normal(item.shape).astype(item.dtype) for item in variables}
    partitioner = FixedShardsPartitioner(parts)
    session.define(variables, values, create=True, partitioner=partitioner, **options)
    return values


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


# -- placement ---------------------------------------------------------------------------------


def test_shards_go_to_the_ps_with_the_fewest_bytes() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    sizes = [100, 10, 10, 90, 60, 30, 5, 45]
    create(session, *(variable(f"v{i}", size) for i, size in enumerate(sizes)))
    loads = [store.table.held_bytes() for store in cluster.stores]
    assert sum(loads) == 4 * sum(sizes)
    assert max(loads) <= sum(loads) / 3 + 4 * max(sizes)
    assert max(loads) - min(loads) <= 4 * 45


def test_placement_is_shown_per_ps_with_shape_and_bytes() -> None:
    session = Cluster(2).session()
    create(session, variable("table", 5, 2), parts=2)
    create(session, variable("scalar"))
    assert session.variables.placement() == {
        "ps:0": [("table/part_0", "3×2", 24)],
        "ps:1": [("table/part_1", "2×2", 16), ("scalar", "scalar", 4)],
    }
    assert session.transports == ("ps:0 local", "ps:1 local")


# -- values ------------------------------------------------------------------------------------


def test_a_variable_cut_over_three_ps_comes_back_whole() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    values = create(session, variable("table", 7, 3), variable("w", 2), parts=3)
    assert sorted(len(labels) for labels in cluster.labels()) == [1, 2, 2]
    got = session.step(None, ["table", "w"]).values
    for name, expected in values.items():
        np.testing.assert_array_equal(got[name], expected)
    session.step(PushPayload({"table": np.ones((7, 3), np.float32)}, ADD))
    np.testing.assert_array_equal(
        session.step(None, ["table"]).values["table"], values["table"] + np.float32(1)
    )


def test_asking_for_a_variable_twice_gives_it_once() -> None:
    session = Cluster().session()
    values = create(session, variable("a", 2), variable("b", 2))
    got = session.step(None, ["a", "b", "a"]).values
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], values["a"])


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "2-parts"])
def test_values_that_are_kept_never_change_under_later_steps(parts: int) -> None:
    """Also a piece, a reshaped view, or a buffer of one keeps its memory."""
    session = Cluster(2).session()
    shape = (50, 4)
    session.define(
        [variable("w", *shape), variable("other", 3)],
        {"w": np.zeros(shape, np.float32), "other": np.zeros(3, np.float32)},
        create=True,
        partitioner=FixedShardsPartitioner(parts),
    )
    kept: list[tuple[int, Any]] = []
    one = PushPayload({"w": np.ones(shape, np.float32)}, ADD)
    for i in range(1, 60):
        value = session.step(one, ["w", "other"]).values["w"]
        views: list[Any] = [value, value[3:5], value.reshape(-1)[::7], value.data]
        if i % 3:
            kept.append((i, views[i % 4]))
    for i, view in kept:
        assert (np.asarray(view) == i).all()


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    session = Cluster().session()
    create(session, variable("w", 1000))

    def address() -> int:
        pointer: int = session.step(None, ["w"]).values["w"].ctypes.data
        return pointer

    assert len({address() for _ in range(20)}) == 1


def test_a_session_that_is_gone_frees_its_values() -> None:
    session = Cluster().session()
    create(session, variable("w", 1000))
    value = session.step(None, ["w"]).values["w"]
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert value.sum() == value.sum()


def test_bytes_moved_are_counted() -> None:
    session = Cluster(2).session()
    create(session, variable("w", 10))
    before = session.counters.pushed
    session.step(PushPayload({"w": np.ones(10, np.float32)}, ADD), ["w"])
    assert session.counters.pushed - before == 40
    assert session.counters.pulled == 40


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3], ids=["whole", "3-parts"])
def test_rows_come_in_the_order_asked_for_and_repeated_ones_are_fetched_once(parts: int) -> None:
    cluster = Cluster(3)
    session = cluster.session()
    table = create(session, variable("table", 10, 2), parts=parts)["table"]
    for ids in ([9, 0, 5, 5, 0], [[1, 2], [9, 1]], 7, []):
        index = np.asarray(ids, np.int64)
        got = session.rows.lookup("table", index)
        np.testing.assert_array_equal(got, table[index])
        assert got.shape == (*index.shape, 2)
    before = session.counters.pulled
    session.rows.lookup("table", np.array([4, 4, 4, 4]))
    assert session.counters.pulled - before == 8


def test_only_ps_that_hold_wanted_rows_are_asked() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    create(session, variable("table", 9, 2), parts=3)
    cluster.log.clear()
    session.rows.lookup("table", np.array([4]))
    assert cluster.log == ["send 1", "receive 1"]
    cluster.log.clear()
    session.rows.lookup("table", np.array([], np.int64))
    assert cluster.log == []


@pytest.mark.parametrize("row", [-1, 10], ids=["negative", "past-the-end"])
def test_rows_out_of_range_are_named_with_the_variable(row: int) -> None:
    session = Cluster().session()
    create(session, variable("table", 10, 2))
    message = rf"/job:worker/task:0: row {row} of 'table' is out of range: it has 10 rows"
    with pytest.raises(ShapeMismatchError, match=message):
        session.rows.lookup("table", np.array([0, row]))


def test_pushed_rows_go_to_the_shards_that_hold_them() -> None:
    session = Cluster(3).session()
    table = create(session, variable("table", 10, 2), parts=3)["table"]
    session.bind(["table"], SGD(learning_rate=1.0))
    ids = np.array([9, 2, 9, 4, 0])
    rows = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    session.step(PushPayload({"table": IndexedSlices(rows, ids)}, APPLY))
    expected = table.copy()
    np.subtract.at(expected, ids, rows)
    # Row 9 is summed before it is subtracted.
    np.testing.assert_allclose(session.step(None, ["table"]).values["table"], expected, rtol=1e-6)


# -- what does not fit -------------------------------------------------------------------------


def test_a_value_of_another_shape_names_task_variable_and_both_shapes() -> None:
    cluster = Cluster(2)
    session = cluster.session()
    create(session, variable("w", 3, 2))
    cluster.log.clear()
    with pytest.raises(ShapeMismatchError) as caught:
        session.step(PushPayload({"w": np.ones((2, 3), np.float32)}, ADD))
    assert caught.value.message == (
        "/job:worker/task:0: push to 'w' has shape (2, 3), the variable has (3, 2)"
    )
    assert caught.value.fields["pushed"] == "(2, 3)"
    assert caught.value.fields["expected"] == "(3, 2)"
    assert cluster.log == [], "nothing was sent"


@pytest.mark.parametrize(
    ("given", "held"),
    [(np.float64, np.int32), (np.float32, np.bool_), (np.int64, np.uint8), (np.complex64, np.float32)],
    ids=lambda t: t.__name__,
)  # fmt: skip
def test_a_dtype_that_loses_its_meaning_is_refused(given: Any, held: Any) -> None:
    session = Cluster().session()
    create(session, variable("w", 2, dtype=np.dtype(held)))
    with pytest.raises(
        ShapeMismatchError,
        match=f"push to 'w' is {given.__name__}, the variable is .*; convert it explicitly",
    ):
        session.step(PushPayload({"w": np.ones(2, given)}, ASSIGN))


def test_views_of_larger_arrays_are_sent_as_they_look() -> None:
    session = Cluster(2).session()
    create(session, variable("w", 3, 2), parts=2)
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    session.step(PushPayload({"w": whole[::2, ::2].T}, ASSIGN))
    np.testing.assert_array_equal(session.step(None, ["w"]).values["w"], whole[::2, ::2].T)


def test_a_variable_nobody_defined_is_named() -> None:
    session = Cluster().session()
    message = "/job:worker/task:0: no variable 'w' was defined; define it in strategy.scope"
    for call in (
        lambda: session.step(None, ["w"]),
        lambda: session.step(PushPayload({"w": floats(1)}, ADD)),
        lambda: session.rows.lookup("w", np.array([0])),
        lambda: session.bind(["w"], SGD()),
    ):
        with pytest.raises(UnknownVariableError, match=message):
            call()


# -- several tasks -----------------------------------------------------------------------------


def test_a_worker_finds_what_the_chief_created_wherever_it_is() -> None:
    cluster = Cluster(3)
    chief, worker = cluster.session(0), cluster.session(1)
    values = create(chief, variable("table", 7, 2), variable("b", 2), parts=3)
    worker.define([variable("b", 2), variable("table", 7, 2)], {}, create=False)
    for name, expected in values.items():
        np.testing.assert_array_equal(worker.step(None, [name]).values[name], expected)
    theirs, mine = chief.variables.placement(), worker.variables.placement()
    assert {ps: set(rows) for ps, rows in mine.items()} == {
        ps: set(rows) for ps, rows in theirs.items()
    }


def test_a_worker_waits_for_a_late_chief() -> None:
    cluster = Cluster(2)
    settings = Settings(join_timeout_s=5.0)
    chief, worker = cluster.session(0), cluster.session(1, settings=settings)
    looked = threading.Event()
    found: list[float] = []

    def define() -> None:
        worker.define([variable("w", 2)], {}, create=False, still_wanted=looked.set)
        found.append(float(worker.step(None, ["w"]).values["w"][0]))

    thread = threading.Thread(target=define)
    thread.start()
    assert looked.wait(3)
    chief.define([variable("w", 2)], {"w": floats(5, 5)}, create=True)
    thread.join(5)
    assert found == [5.0]


def test_a_worker_does_not_take_values_that_are_not_there_yet() -> None:
    """Created, but not assigned: the chief is between the two."""
    cluster = Cluster()
    half = cluster.session(0).peers[0]
    half.define([ShardDefinition(variable("w", 2))], create=True)
    with pytest.raises(JoinTimeoutError, match="'w'"):
        cluster.session(1).define([variable("w", 2)], {}, create=False)


def test_waiting_for_the_chief_ends_at_the_join_timeout_naming_the_variable() -> None:
    session = Cluster().session(1)
    began = time.monotonic()
    with pytest.raises(JoinTimeoutError) as caught:
        session.define([variable("w", 2), variable("b", 2)], {}, create=False)
    assert caught.value.message == (
        "/job:worker/task:1 waited 0.3 s (join_timeout_s) for the chief to create 'w' and 1 "
        "more; do all "
        "tasks run the same program?"
    )
    assert caught.value.fields["variable"] == "w"
    assert 0.25 < time.monotonic() - began < 2


def test_waiting_for_the_chief_ends_when_the_job_does() -> None:
    def stopped() -> None:
        raise JobStoppedError("stopping")

    with pytest.raises(JobStoppedError):
        Cluster().session(1).define([variable("w", 2)], {}, create=False, still_wanted=stopped)


def test_waiting_for_the_chief_ends_when_its_program_has_ended_without_the_variable() -> None:
    cluster = Cluster()
    create(cluster.session(0), variable("w", 2))
    worker = cluster.session(1, settings=Settings(join_timeout_s=30))
    worker.define([variable("w", 2)], {}, create=False, chief_has_ended=lambda: True)
    wanted = [variable("w", 2), variable("v", 2)]
    with pytest.raises(DefinitionMismatchError, match="worker/task:1 creates 'v', and the chief"):
        worker.define(wanted, {}, create=False, chief_has_ended=lambda: True)


def test_what_a_chief_creates_last_is_found_though_it_has_ended() -> None:
    cluster = Cluster()
    chief, worker = cluster.session(0), cluster.session(1, settings=Settings(join_timeout_s=30))

    def creates_and_ends() -> bool:
        create(chief, variable("w", 2))
        return True

    worker.define([variable("w", 2)], {}, create=False, chief_has_ended=creates_and_ends)
    assert worker.variables.definition("w").shape == (2,)


def test_a_chief_that_restarts_finds_its_variables_and_their_values() -> None:
    cluster = Cluster(2)
    first = cluster.session(0, generation=1)
    create(first, variable("w", 2))
    first.step(PushPayload({"w": floats(7, 7)}, ASSIGN), step_increment=3)
    second = cluster.session(0, generation=2)
    second.define([variable("w", 2)], {"w": floats(0, 0)}, create=True)
    assert second.step(None, ["w"]).values["w"][0] == 7
    assert second.global_step == 3


def test_a_chief_that_restarts_assigns_what_its_last_generation_had_only_created() -> None:
    """It died between the two; nobody else would ever do it."""
    cluster = Cluster(2)
    died = cluster.session(0, generation=1)
    died.peers[0].define([ShardDefinition(variable("w", 2))], create=True)
    second = cluster.session(0, generation=2)
    second.define(
        [variable("w", 2), variable("b", 1)], {"w": floats(1, 2), "b": floats(3)}, create=True
    )
    got = second.step(None, ["w", "b"]).values
    np.testing.assert_array_equal(got["w"], [1, 2])
    assert got["b"] == 3


# -- the global step ---------------------------------------------------------------------------


def test_the_first_ps_owns_the_global_step_and_hears_of_every_step() -> None:
    cluster = Cluster(3)
    session, other = cluster.session(0), cluster.session(1)
    create(session, variable("a", 100), variable("b", 2), variable("c", 2))
    other.define([variable("b", 2)], {}, create=False)
    item = PushPayload({"b": floats(1, 1)}, ADD)
    assert session.variables.shards("b")[0][0] == 1
    assert session.step(item, step_increment=1).global_step == 1
    assert other.step(item, step_increment=1).global_step == 2
    result = session.step(item, step_increment=1, seen_step=1)
    assert (result.global_step, result.staleness) == (3, 1)
    assert cluster.stores[0].global_step == 3
    assert other.global_step == 2, "as far as it has heard"


# -- ps that fail ------------------------------------------------------------------------------


def three() -> tuple[Cluster, ParameterSession, PushPayload, list[str]]:
    cluster = Cluster(3)
    session = cluster.session()
    names = ["a", "b", "c"]
    session.define(
        [variable(name, 2) for name in names], {n: floats(0, 0) for n in names}, create=True
    )
    return cluster, session, PushPayload({name: floats(1, 1) for name in names}, ADD), names


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["first", "second", "third"])
@pytest.mark.parametrize("when", ["send", "receive"])
def test_one_ps_that_fails_does_not_put_the_others_out_of_step(failing: int, when: str) -> None:
    """Every answer that was sent for is read; later steps reach all, and each push counts once."""
    _, session, pushes, names = three()
    error: WindlassError
    if when == "send":
        error = LimitExceededError("too large", limit="max_step_bytes")
        faulty(session, failing).fail_send = error
    else:
        error = RefusedError("not so")
        faulty(session, failing).fail_receive = error
    with pytest.raises(type(error)) as caught:
        session.step(pushes, names, step_increment=1)
    assert caught.value is error
    faulty(session, failing).fail_send = faulty(session, failing).fail_receive = None
    before = session.step(None, names).values
    after = session.step(pushes, names, step_increment=1).values
    for i, name in enumerate(names):
        # The one that was refused here had been applied, and its number is used again.
        gained = after[name] - before[name]
        assert (gained == 1).all() or (when == "receive" and i == failing)


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["first", "second", "third"])
def test_a_push_that_cannot_be_gathered_for_one_ps_is_applied_on_none(failing: int) -> None:
    _, session, pushes, names = three()
    faulty(session, failing).fail_prepare = MemoryError()
    with pytest.raises(MemoryError):
        session.step(pushes, names, step_increment=1)
    faulty(session, failing).fail_prepare = None
    assert all((value == 0).all() for value in session.step(None, names).values.values())
    assert all((value == 1).all() for value in session.step(pushes, names).values.values())


def test_after_a_push_whose_answer_is_lost_a_session_does_not_go_on() -> None:
    """It may have been applied: the next one would have its number and be taken for a repeat."""
    _, session, pushes, names = three()
    faulty(session, 1).fail_receive = PeerLostError("gone")
    with pytest.raises(PeerLostError, match="gone"):
        session.step(pushes, names, step_increment=1)
    faulty(session, 1).fail_receive = None
    with pytest.raises(PeerLostError, match="its outcome is not known"):
        session.step(pushes, names, step_increment=1)


def test_all_ps_are_asked_before_any_is_waited_for() -> None:
    cluster, session, pushes, names = three()
    cluster.log.clear()
    session.step(pushes, names)
    assert cluster.log == [f"{word} {i}" for word in ("send", "receive") for i in range(3)]


# -- connecting --------------------------------------------------------------------------------


def test_late_ps_are_waited_for() -> None:
    cluster = Cluster(3)
    session = cluster.session(settings=Settings(join_timeout_s=5.0))
    for ps in (0, 2):
        faulty(session, ps).fail_connect = PeerLostError("not yet")

    def appear(missing: list[str]) -> None:
        waited.append(missing)
        for ps in (0, 2):
            faulty(session, ps).fail_connect = None

    waited: list[list[str]] = []
    session.connect(on_wait=appear)
    session.close()
    assert waited == [["/job:ps/task:0", "/job:ps/task:2"]]


def test_ps_that_do_not_come_are_named_with_the_last_reason() -> None:
    session = Cluster(3).session()
    faulty(session, 1).fail_connect = PeerLostError("connection refused")
    with pytest.raises(JoinTimeoutError) as caught:
        session.connect()
    session.close()
    assert "waited 0.3 s (join_timeout_s) for /job:ps/task:1" in caught.value.message
    assert "connection refused" in caught.value.message
    assert caught.value.fields["missing"] == "/job:ps/task:1"


def test_connecting_is_given_up_when_the_job_ends() -> None:
    session = Cluster().session(settings=Settings(join_timeout_s=30.0))
    faulty(session, 0).fail_connect = PeerLostError("not yet")

    def stopped() -> None:
        raise JobStoppedError("stopping")

    with pytest.raises(JobStoppedError):
        session.connect(still_wanted=stopped)
    session.close()


def test_closing_ends_the_threads_of_a_session() -> None:
    before = set(threading.enumerate())
    session = Cluster(2).session()
    session.connect()
    mine = [thread for thread in threading.enumerate() if thread not in before]
    session.close()
    for thread in mine:
        thread.join(3)
        assert not thread.is_alive()


def test_a_step_whose_answer_breaks_in_another_thread_says_so_where_it_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with prefetching, where nobody looks at what the reading thread raises."""
    session = Cluster().session()
    session.define([variable("w", 2)], {"w": np.zeros(2, np.float32)}, create=True)
    push = PushPayload({"w": np.ones(2, np.float32)}, Operation.ASSIGN_ADD)

    def broken(self: LocalPs, target: PullTarget = NO_TARGET) -> PushResult:
        raise ValueError("a bug")

    monkeypatch.setattr(FaultyTransport, "receive", broken)
    pending = session.begin(push)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pending.wait)
    with pytest.raises(PeerLostError, match=r"interrupted \(ValueError\) and its outcome is not"):
        pending.result()


def test_a_step_that_was_interrupted_half_way_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in a notebook: the number may be used up, and the next push look like a repeat."""
    who, settings = Incarnation(TaskId("worker", 0), 1), Settings()
    transport = LocalPs(TaskId("ps", 0), who, settings)
    session = ParameterSession([transport], who, settings)
    definition = VariableDefinition("w", (2,), np.dtype(np.float32))
    session.define([definition], {"w": np.zeros(2, np.float32)}, create=True)
    push = PushPayload({"w": np.ones(2, np.float32)}, Operation.ASSIGN_ADD)
    receive = LocalPs.receive

    def interrupted(self: LocalPs, target: PullTarget = NO_TARGET) -> PushResult:
        receive(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalPs, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.step(push)
    with pytest.raises(PeerLostError, match="outcome is not known"):
        session.step(push)
