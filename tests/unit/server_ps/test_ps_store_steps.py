"""Steps on a store: pushes, pulls, the global step and the counters."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from helpers.pushes import push_of
from ropewalk.core.arrays.dtypes import DTYPES, Array, DType, is_float
from ropewalk.core.errors import RefusedError
from ropewalk.core.report import MOST_LABELS
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.rules.schedules import ExponentialDecay
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation, PushResult
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

PS = TaskId("ps", 0)
TASK = TaskId("worker", 0)
WORKER = Incarnation(TASK, 1)
F32 = np.dtype(np.float32)
PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation


def make_store(*variables: VariableDefinition, rule: UpdateRule | None = None) -> Store:
    store = Store(PS, Settings())
    store.table.define([ShardDefinition(item) for item in variables], WORKER)
    if rule is not None:
        store.table.bind([item.name for item in variables], rule, WORKER)
    return store


def test_the_shards_whose_changes_moved_most_are_in_the_counters() -> None:
    sizes = {f"v{number}": number for number in range(1, 13)}
    store = make_store(*(vector(name, size) for name, size in sizes.items()))
    for sequence, name in enumerate(["v12", "v5", "v5", "v5", *sizes], 1):
        entry = LayoutEntry(name, 0, ADD)
        push(store, sequence, [entry], [np.ones(sizes[name], F32)])
    found = store.counters().busiest
    assert [(each.name, each.updates, each.num_bytes) for each in found][:3] == [
        ("v12", 2, 48),
        ("v5", 4, 20),
        ("v11", 1, 44),
    ]
    assert len(found) == MOST_LABELS


def vector(name: str = "w", size: int = 3, dtype: DType = F32) -> VariableDefinition:
    return VariableDefinition(name, (size,), dtype)


def push(
    store: Store,
    sequence: int,
    entries: Sequence[LayoutEntry],
    arrays: Sequence[Array],
    *,
    rows: Sequence[Array] = (),
    who: Incarnation = WORKER,
    global_step: int = 0,
    increment: int = 0,
    scale: float = 1.0,
) -> PushResult:
    payload = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    frame = bytearray(len(payload))  # used again by every fetch, as a receive buffer is
    position = 0

    def fetch(count: int) -> memoryview:
        nonlocal position
        frame[:] = b"\xff" * len(frame)
        frame[:count] = payload[position : position + count]
        position += count
        return memoryview(frame)[:count]

    layout = compile_layout(store.table, entries)
    layout.check_rows(rows, PS)
    info = StepInfo(who, sequence, global_step, scale)
    result = store.push(push_of(layout, tuple(rows), info, increment), fetch)
    assert position == len(payload), "a push is read to its end"
    return result


def pull(store: Store, name: str = "w", part: int = 0) -> Array:
    [copy] = store.read(compile_layout(store.table, [LayoutEntry(name, part, PULL)]), ())
    return copy


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("parts", [1, 2], ids=["one-store", "two-stores"])
def test_sgd_through_stores_is_the_numpy_expression_to_the_bit(parts: int) -> None:
    """However the variable is cut. 65 kB a part, so the kernel's vector loop runs."""
    rng = np.random.default_rng(0)
    definition = VariableDefinition("w", (127, 129), F32)
    shards = cut(definition, parts)
    stores = [Store(TaskId("ps", index), Settings()) for index in range(parts)]
    expected = rng.standard_normal(definition.shape).astype(np.float32)
    gradients = rng.standard_normal((5, *definition.shape)).astype(np.float32)
    for store, shard in zip(stores, shards, strict=True):
        rows = slice(shard.row_offset, shard.row_offset + shard.rows)
        store.table.define([shard], WORKER)
        store.table.bind(["w"], SGD(learning_rate=0.1), WORKER)
        push(store, 1, [LayoutEntry("w", shard.part, ASSIGN)], [expected[rows]])
        for step, g in enumerate(gradients):
            push(store, step + 2, [LayoutEntry("w", shard.part, APPLY)], [g[rows]])
    for g in gradients:
        expected -= np.float32(0.1) * g
    got = [pull(store, "w", part) for part, store in enumerate(stores)]
    np.testing.assert_array_equal(np.concatenate(got).reshape(definition.shape), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_assign_and_assign_add_reach_every_dtype(dtype: DType) -> None:
    store = make_store(vector("w", 3, dtype))
    assert not store.table.lookup([ShardDefinition(vector("w", 3, dtype))], WORKER)[0].initialized
    first, second = np.array([0, 1, 1], dtype), np.array([1, 0, 1], dtype)
    push(store, 1, [LayoutEntry("w", 0, ASSIGN)], [first])
    push(store, 2, [LayoutEntry("w", 0, ADD)], [second])
    np.testing.assert_array_equal(pull(store), first + second)
    assert pull(store).dtype == dtype
    assert store.table.lookup([ShardDefinition(vector("w", 3, dtype))], WORKER)[0].initialized


def test_what_is_added_with_a_decay_makes_a_moving_average() -> None:
    """Neighbours of other decays, or of none, keep theirs."""
    store = make_store(*(vector(name) for name in "abcd"))
    push(store, 1, [LayoutEntry(name, 0, ASSIGN) for name in "abcd"], [floats(8, np.nan, 2)] * 4)
    decays = {"a": 0.25, "b": 0.25, "c": 1.0, "d": 0.0}
    entries = [LayoutEntry(name, 0, ADD, decay=decay) for name, decay in decays.items()]
    push(store, 2, entries, [floats(1, 1, 1)] * 4)
    for name in "ab":
        np.testing.assert_array_equal(pull(store, name), floats(7, np.nan, 2.5))
    np.testing.assert_array_equal(pull(store, "c"), floats(1, 1, 1))  # whatever was there
    np.testing.assert_array_equal(pull(store, "d"), floats(9, np.nan, 3))


@pytest.mark.parametrize("dtype", [each for each in DTYPES if is_float(each)], ids=str)
def test_every_floating_point_dtype_has_moving_averages(dtype: DType) -> None:
    store = make_store(vector("w", 2, dtype))
    push(store, 1, [LayoutEntry("w", 0, ASSIGN)], [np.array([8, 16], dtype)])
    push(store, 2, [LayoutEntry("w", 0, ADD, decay=0.5)], [np.array([1, 2], dtype)])
    assert pull(store).dtype == dtype
    assert pull(store).astype(float).tolist() == [5, 10]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param(LayoutEntry("w", 0, ADD, decay=1.5), "decay of 'w' is 1.5", id="too-large"),
        pytest.param(LayoutEntry("w", 0, ADD, decay=-0.5), "decay of 'w' is -0.5", id="negative"),
        pytest.param(LayoutEntry("w", 0, ADD, decay=np.nan), "decay of 'w' is nan", id="nan"),
        pytest.param(LayoutEntry("w", 0, ASSIGN, decay=0.5), "has a decay", id="assigned"),
        pytest.param(LayoutEntry("n", 0, ADD, decay=0.5), "int64", id="integers"),
        pytest.param(LayoutEntry("w", 0, ADD, Encoding.ROWS, decay=0.5), "has a decay", id="rows"),
    ],
)
def test_a_decay_that_cannot_be_is_refused(entry: LayoutEntry, message: str) -> None:
    store = make_store(vector("w"), vector("n", dtype=np.dtype(np.int64)))
    with pytest.raises(RefusedError, match=message):
        compile_layout(store.table, [entry])


def test_entries_of_one_block_may_stand_between_those_of_others() -> None:
    """The payload's memory is overwritten by every fetch; what waits for its block is kept."""
    wide = np.dtype(np.float64)
    store = make_store(vector("a"), vector("x", 2, wide), vector("b"), vector("y", 2, wide))
    entries = [LayoutEntry(name, 0, ASSIGN) for name in "bxay"]
    entries.append(LayoutEntry("b", 0, ADD))
    arrays = [floats(1, 2, 3), np.array([4.0, 5.0]), floats(6, 7, 8), np.array([9.0, 10.0])]
    push(store, 1, entries, [*arrays, floats(0.5, 0.5, 0.5)])
    assert pull(store, "a").tolist() == [6, 7, 8]
    assert pull(store, "b").tolist() == [1.5, 2.5, 3.5]
    assert pull(store, "x").tolist() == [4, 5]
    assert pull(store, "y").tolist() == [9, 10]


@pytest.mark.parametrize("operation", [APPLY, ASSIGN, ADD], ids=str)
def test_a_push_of_no_rows_is_a_push(operation: Operation) -> None:
    """The part of a table that none of a batch's rows fall on gets such a one."""
    store = make_store(VariableDefinition("t", (4, 2), F32), rule=SGD())
    entries = [LayoutEntry("t", 0, operation, encoding=Encoding.ROWS)]
    rows = [np.zeros(0, np.int64)]
    assert not push(store, 1, entries, [floats()], rows=rows).duplicate
    assert pull(store, "t").tolist() == [0] * 8


# -- sequences and generations -------------------------------------------------------------------


def add_one(
    store: Store, sequence: int, who: Incarnation = WORKER, increment: int = 1
) -> PushResult:
    entries = [LayoutEntry("w", 0, ADD)]
    return push(store, sequence, entries, [floats(1, 1, 1)], who=who, increment=increment)


# -- the global step -----------------------------------------------------------------------------


def test_the_global_step_catches_up_with_what_a_worker_has_seen_elsewhere() -> None:
    store = make_store(vector())
    entries, ones = [LayoutEntry("w", 0, ADD)], [floats(1, 1, 1)]
    assert push(store, 1, entries, ones, global_step=10, increment=1).global_step == 11
    late = push(store, 2, entries, ones, global_step=4, increment=1)
    assert (late.global_step, late.staleness) == (12, 7)


def test_schedules_are_read_at_the_stores_global_step_not_at_the_workers() -> None:
    schedule = ExponentialDecay(initial_learning_rate=1.0, decay_steps=1, decay_rate=0.5)
    store = make_store(vector(size=1), rule=SGD(learning_rate=schedule))
    entries = [LayoutEntry("w", 0, APPLY)]
    for sequence in (1, 2, 3):
        push(store, sequence, entries, [floats(1)], global_step=0, increment=1)
    assert pull(store).tolist() == [-1.75]
    push(store, 4, entries, [floats(1)], global_step=5, increment=1)  # the worker knows more
    assert pull(store).tolist() == [-1.75 - 0.5**5]


# -- rows ----------------------------------------------------------------------------------------


# -- reads and counters --------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_a_pull_is_a_copy_that_later_pushes_do_not_change(sparse: bool) -> None:
    store = make_store(vector())
    rows = [np.array([0, 1, 2])] if sparse else []
    encoding = Encoding.ROWS if sparse else Encoding.DENSE
    [before] = store.read(compile_layout(store.table, [LayoutEntry("w", 0, PULL, encoding)]), rows)
    add_one(store, 1)
    assert before.tolist() == [0, 0, 0]


def test_counters_tell_the_work_done() -> None:
    store = make_store(vector())
    add_one(store, 1)
    add_one(store, 1)
    pull(store)
    store.count_bytes(received=10, sent=20)
    store.count_bytes(received=1)
    store.count_refused()
    counters = store.counters()
    assert (counters.pushes, counters.duplicates, counters.pulls) == (1, 1, 1)
    assert (counters.refused, counters.bytes_in, counters.bytes_out) == (1, 11, 20)


@pytest.mark.parametrize("operation", [APPLY, ADD], ids=str)
def test_eight_threads_pushing_to_one_variable_lose_nothing(operation: Operation) -> None:
    """Small integers, so that float32 sums are exact in any order.

    Large enough that kernels and copies, which run without the GIL, overlap if nothing stops them.
    """
    threads, pushes, size = 8, 20, 300_000
    store = make_store(vector(size=size), rule=SGD(learning_rate=1.0))
    torn: list[Array] = []

    def work(index: int) -> None:
        who = Incarnation(TaskId("worker", index), 1)
        for sequence in range(1, pushes + 1):
            values = np.full(size, index + 1, np.float32)
            entries = [LayoutEntry("w", 0, operation)]
            push(store, sequence, entries, [values], who=who, increment=1)
            copy = pull(store)
            if copy.min() != copy.max():
                torn.append(copy)

    crew = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    total = pushes * sum(range(1, threads + 1)) * (-1 if operation is APPLY else 1)
    assert bool((pull(store) == total).all())
    assert store.global_step == store.counters().pushes == threads * pushes
    assert not torn, "a pull saw half of a push"
