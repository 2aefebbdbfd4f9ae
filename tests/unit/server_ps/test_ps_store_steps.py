"""Steps on a store: pushes, pulls, the global step and the counters."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from windlass.core.arrays import DTYPES, Array, DType
from windlass.core.definitions import ShardDefinition, VariableDefinition, cut
from windlass.core.errors import FencedError, SequenceError, ShapeMismatchError
from windlass.core.schedules import ExponentialDecay
from windlass.core.settings import Settings
from windlass.core.steps import Encoding, LayoutEntry, Operation, PushResult
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD, UpdateRule
from windlass.engine.block import StepInfo
from windlass.server.ps.store import PushRequest, Store

PS = TaskId("ps", 0)
TASK = TaskId("worker", 0)
WORKER = Incarnation(TASK, 1)
F32 = np.dtype(np.float32)
PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation


def make_store(*variables: VariableDefinition, rule: UpdateRule | None = None) -> Store:
    store = Store(PS, Settings())
    store.define([ShardDefinition(item) for item in variables], WORKER)
    if rule is not None:
        store.bind([item.name for item in variables], rule, WORKER)
    return store


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

    layout = store.compile(entries)
    store.check_rows(layout, rows)
    info = StepInfo(who, sequence, global_step, scale)
    result = store.push(PushRequest(layout, tuple(rows), info, increment), fetch)
    assert position == len(payload), "a push is read to its end"
    return result


def pull(store: Store, name: str = "w", part: int = 0) -> Array:
    [copy] = store.read(store.compile([LayoutEntry(name, part, PULL)]), ())
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
        store.define([shard], WORKER)
        store.bind(["w"], SGD(learning_rate=0.1), WORKER)
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
    assert not store.lookup([ShardDefinition(vector("w", 3, dtype))], WORKER)[0].initialized
    first, second = np.array([0, 1, 1], dtype), np.array([1, 0, 1], dtype)
    push(store, 1, [LayoutEntry("w", 0, ASSIGN)], [first])
    push(store, 2, [LayoutEntry("w", 0, ADD)], [second])
    np.testing.assert_array_equal(pull(store), first + second)
    assert pull(store).dtype == dtype
    assert store.lookup([ShardDefinition(vector("w", 3, dtype))], WORKER)[0].initialized


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


def test_rows_and_dense_values_travel_in_one_push() -> None:
    table = VariableDefinition("table", (4, 2), F32)
    store = make_store(table, vector("bias"), rule=SGD(learning_rate=1.0))
    entries = [
        LayoutEntry("table", 0, APPLY, encoding=Encoding.ROWS),
        LayoutEntry("bias", 0, APPLY),
    ]
    arrays = [floats(1, 2, 3, 4), floats(5, 6, 7)]
    push(store, 1, entries, arrays, rows=[np.array([0, 3])], scale=2.0)
    assert pull(store, "table").tolist() == [-2, -4, 0, 0, 0, 0, -6, -8]
    assert pull(store, "bias").tolist() == [-10, -12, -14]


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


def test_a_push_that_comes_again_is_read_and_answered_but_not_applied() -> None:
    store = make_store(vector())
    first, again = add_one(store, 1), add_one(store, 1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (first.global_step, again.global_step) == (1, 1)
    assert pull(store).tolist() == [1, 1, 1]
    assert (store.counters().pushes, store.counters().duplicates) == (1, 1)


def test_a_push_from_the_future_is_refused_and_the_missing_one_named() -> None:
    store = make_store(vector())
    add_one(store, 1)
    with pytest.raises(SequenceError, match=r"push 3 .* came before push 2"):
        add_one(store, 3)
    assert pull(store).tolist() == [1, 1, 1]
    assert not add_one(store, 2).duplicate


def test_a_new_life_counts_from_one_and_the_old_one_is_fenced() -> None:
    store = make_store(vector())
    for sequence in (1, 2, 3):
        add_one(store, sequence)
    assert not add_one(store, 1, Incarnation(TASK, 2)).duplicate
    with pytest.raises(FencedError, match="superseded by generation 2"):
        add_one(store, 4)
    with pytest.raises(FencedError):
        store.register_incarnation(WORKER)
    assert pull(store).tolist() == [4, 4, 4]
    assert store.global_step == 4


def test_a_new_session_of_a_new_life_fences_the_old_one_before_any_push() -> None:
    store = make_store(vector())
    add_one(store, 1)
    store.register_incarnation(Incarnation(TASK, 2))
    with pytest.raises(FencedError):
        add_one(store, 2)


def test_tasks_count_their_pushes_independently() -> None:
    store = make_store(vector())
    other = Incarnation(TaskId("worker", 1), 1)
    assert [add_one(store, 1, who).duplicate for who in (WORKER, other, WORKER)] == [0, 0, 1]


# -- the global step -----------------------------------------------------------------------------


def test_the_global_step_grows_by_the_increment_of_each_push() -> None:
    store = make_store(vector())
    steps = [add_one(store, i + 1, increment=n).global_step for i, n in enumerate((1, 0, 3))]
    assert steps == [1, 1, 4]
    assert store.global_step == 4


def test_the_global_step_catches_up_with_what_a_worker_has_seen_elsewhere() -> None:
    store = make_store(vector())
    entries, ones = [LayoutEntry("w", 0, ADD)], [floats(1, 1, 1)]
    assert push(store, 1, entries, ones, global_step=10, increment=1).global_step == 11
    late = push(store, 2, entries, ones, global_step=4, increment=1)
    assert (late.global_step, late.staleness) == (12, 7)


@pytest.mark.parametrize(("seen", "staleness"), [(0, 5), (3, 2), (5, 0), (9, 0)])
def test_staleness_is_the_steps_between_its_pull_and_the_push(seen: int, staleness: int) -> None:
    store = make_store(vector())
    for sequence in range(1, 6):
        add_one(store, sequence)
    other = Incarnation(TaskId("worker", 1), 1)
    entries = [LayoutEntry("w", 0, ADD)]
    result = push(store, 1, entries, [floats(0, 0, 0)], who=other, global_step=seen, increment=1)
    assert result.staleness == staleness


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


@pytest.mark.parametrize("operation", [APPLY, ASSIGN, ADD], ids=str)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([-1, 2], "row -1 of 't/part_1' is out of range: the shard has 3 rows"),
        ([0, 3], "row 3 of 't/part_1' is out of range: the shard has 3 rows"),
        ([1, 1], "'t/part_1' must ascend without repeating"),
        ([2, 0], "'t/part_1' must ascend without repeating"),
    ],
    ids=["negative", "past-the-end", "repeated", "descending"],
)
def test_row_numbers_are_checked_before_anything_is_applied(
    operation: Operation, rows: list[int], message: str
) -> None:
    store = Store(PS, Settings())
    store.define(cut(VariableDefinition("t", (6, 2), F32), 2)[1:], WORKER)
    store.bind(["t"], SGD(), WORKER)
    layout = store.compile([LayoutEntry("t", 1, operation, encoding=Encoding.ROWS)])
    with pytest.raises(ShapeMismatchError, match=message):
        store.check_rows(layout, [np.array(rows)])


@pytest.mark.parametrize("rows", [[2, 0, 2], [], [1]], ids=str)
def test_a_pull_may_repeat_rows_and_take_them_in_any_order(rows: list[int]) -> None:
    store = make_store(VariableDefinition("t", (3, 2), F32))
    push(store, 1, [LayoutEntry("t", 0, ASSIGN)], [np.arange(6, dtype=np.float32)])
    layout = store.compile([LayoutEntry("t", 0, PULL, encoding=Encoding.ROWS)])
    numbers = [np.array(rows, np.int64)]
    store.check_rows(layout, numbers)
    [got] = store.read(layout, numbers)
    assert got.tolist() == [float(2 * row + i) for row in rows for i in (0, 1)]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_pull_of_rows_that_are_not_there_is_refused(row: int) -> None:
    store = make_store(VariableDefinition("t", (3, 2), F32))
    layout = store.compile([LayoutEntry("t", 0, PULL, encoding=Encoding.ROWS)])
    with pytest.raises(ShapeMismatchError, match=f"row {row} of 't'"):
        store.check_rows(layout, [np.array([row])])


# -- reads and counters --------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_a_pull_is_a_copy_that_later_pushes_do_not_change(sparse: bool) -> None:
    store = make_store(vector())
    rows = [np.array([0, 1, 2])] if sparse else []
    encoding = Encoding.ROWS if sparse else Encoding.DENSE
    [before] = store.read(store.compile([LayoutEntry("w", 0, PULL, encoding)]), rows)
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
