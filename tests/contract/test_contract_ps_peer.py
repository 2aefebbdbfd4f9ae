"""What every connection with a ps promises: one suite over all of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    CONNECTIONS,
    F32,
    PS,
    Ps,
    Put,
    Worker,
    get,
    put,
    vector,
)
from windlass.core.arrays import BFLOAT16, DTYPES, FLOATS, INTEGERS, DType
from windlass.core.definitions import ShardDefinition, VariableDefinition, cut
from windlass.core.errors import (
    DefinitionMismatchError,
    FencedError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    SequenceError,
    ShapeMismatchError,
    UnknownVariableError,
)
from windlass.core.gather_buffer import GatherBuffer
from windlass.core.initializers import Initializer
from windlass.core.steps import Operation, PushResult, StepRequest
from windlass.core.update_rules import SGD, Adam, UpdateRule


@pytest.fixture(params=CONNECTIONS)
def ps(request: pytest.FixtureRequest) -> Iterator[Ps]:
    """A ps that is reached over each connection."""
    made = Ps(request.param, max_step_bytes=4 * 1024**2, chunk_bytes=4096)
    yield made
    made.close()


@pytest.fixture
def local() -> Ps:
    """The one in process, for what a session does alike whatever carries its steps."""
    return Ps("local")


def test_a_transport_says_whom_it_reaches_and_how(ps: Ps) -> None:
    transport = ps.worker().peer
    assert transport.task == PS
    assert transport.description.split()[0] == ps.kind


def test_defining_creates_and_a_value_makes_it_initialized(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    ones = VariableDefinition("ones", (2,), F32, Initializer("ones"))
    held = worker.define(w, ones)
    assert [item.initialized for item in held] == [False, True]
    assert not any(item.restored for item in held)
    assert held[0].shard == ShardDefinition(w)
    worker.push(put(w, ASSIGN, [1, 2, 3]))
    assert [item.initialized for item in worker.define(w, ones)] == [True, True]
    np.testing.assert_array_equal(worker.value(ones), 1)


def test_defining_again_is_a_no_op_for_anybody(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    first.push(put(w, ASSIGN, [1, 2, 3]))
    for worker in (first, second):
        [held] = worker.define(w)
        assert held.initialized
    np.testing.assert_array_equal(second.value(w), [1, 2, 3])
    assert ps.store.counters().shards == 1


def test_looking_up_finds_whatever_parts_are_held_and_leaves_out_the_rest(ps: Ps) -> None:
    first, second = ps.worker(0), ps.worker(1)
    table = vector("table", 5, 2)
    parts = cut(table, 3)[1:]
    first.peer.define(parts, create=True)
    held = second.define(table, vector("nowhere"), create=False)
    assert [item.shard for item in held] == parts
    assert ps.store.counters().shards == 2


def test_held_bytes_are_those_of_the_last_definition(local: Ps) -> None:
    worker = local.worker()
    worker.define(vector("a", 10), vector("b", 5, dtype=np.dtype(np.float64)))
    assert worker.peer.held_bytes() == 80


@pytest.mark.parametrize("create", [True, False], ids=["create", "look-up"])
def test_a_different_definition_is_an_error_naming_both_tasks(ps: Ps, create: bool) -> None:
    first, second = ps.worker(0), ps.worker(1)
    first.define(vector())
    others = {"float32[4]": vector("w", 4), "float64": vector(dtype=np.dtype(np.float64))}
    for shown, other in others.items():
        with pytest.raises(DefinitionMismatchError) as caught:
            second.define(other, create=create)
        for part in ("/job:worker/task:0", "/job:worker/task:1", "'w'", "float32[3]", shown):
            assert part in caught.value.message
    [held] = second.define(vector())
    assert held.shard.variable == vector()


def test_thousands_of_definitions_go_in_one_call(ps: Ps) -> None:
    worker = ps.worker()
    variables = [vector(f"v{i}", 1) for i in range(2500)]
    assert len(worker.define(*variables)) == 2500
    assert ps.store.counters().variables == 2500
    worker.peer.bind([item.name for item in variables], SGD())


def test_binding_is_idempotent_and_another_rule_names_both_tasks(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    for worker in (first, first, second):
        worker.peer.bind(["w"], SGD(learning_rate=0.5))
    for other in (Adam(), SGD(learning_rate=0.25)):
        with pytest.raises(DefinitionMismatchError) as caught:
            second.peer.bind(["w"], other)
        for part in ("/job:worker/task:0", "/job:worker/task:1", "'w'", repr(other), "SGD("):
            assert part in caught.value.message
    first.push(put(w, ASSIGN, 0))
    first.push(put(w, APPLY, [2, 2, 2]))
    np.testing.assert_array_equal(first.value(w), -1)


# -- values ------------------------------------------------------------------------------------


SHAPES = [(), (1,), (0,), (0, 3), (3, 0), (7, 5), (2, 3, 4), (300, 100)]


def test_values_of_every_dtype_and_shape_arrive_as_they_left(ps: Ps) -> None:
    worker, rng = ps.worker(), np.random.default_rng(0)
    for dtype in DTYPES:
        for shape in SHAPES:
            w = VariableDefinition(f"{dtype.name}{shape}", shape, dtype)
            values = (10 * rng.standard_normal(shape)).astype(np.int8).astype(dtype)
            worker.define(w)
            worker.push(put(w, ASSIGN, values))
            np.testing.assert_array_equal(worker.value(w), values)


def test_payloads_around_every_threshold_arrive_whole(ps: Ps) -> None:
    """A message of a tunnel, what goes behind a message, what is overlapped, and far beyond."""
    worker, rng = ps.worker(), np.random.default_rng(0)
    around = [n + more for n in (4096, 64 * 1024, 1024**2, 2 * 1024**2) for more in (-1, 0, 1)]
    for size in (1, *around, 4 * 1024**2):
        w = vector(f"w{size}", size, dtype=np.dtype(np.uint8))
        values = rng.integers(0, 255, size).astype(np.uint8)
        worker.define(w)
        [back] = worker.step([put(w, ASSIGN, values)], [get(w)])
        np.testing.assert_array_equal(back, values)
        [again] = worker.pull(get(w))
        np.testing.assert_array_equal(again, values)


def test_one_step_carries_dtypes_and_shapes_mixed_and_pulls_after_it_pushed(ps: Ps) -> None:
    worker, rng = ps.worker(), np.random.default_rng(0)
    shapes = [(), (4000,), (0, 2), (3,), (33, 40), (1,)]
    variables = [
        VariableDefinition(f"v{i}", shape, DTYPES[i % len(DTYPES)])
        for i, shape in enumerate(shapes * 4)
    ]
    values = [(rng.standard_normal(item.shape) > 0).astype(item.dtype) for item in variables]
    worker.define(*variables)
    puts = [put(item, ASSIGN, value) for item, value in zip(variables, values, strict=True)]
    backwards = [get(item) for item in reversed(variables)]
    for got, expected in zip(worker.step(puts, backwards), reversed(values), strict=True):
        np.testing.assert_array_equal(got, expected)
    moved = sum(value.nbytes for value in values)
    assert worker.result == PushResult(0, 0, duplicate=False, pulled_bytes=moved)


def test_operations_mix_in_one_push(ps: Ps) -> None:
    worker = ps.worker()
    a, b, c = (vector(name) for name in "abc")
    worker.create(a, b, c)
    worker.peer.bind(["b"], SGD(learning_rate=0.5))
    worker.push(put(a, ASSIGN, [1, 1, 1]), put(b, APPLY, [2, 4, 6]), put(c, ADD, [3, 3, 3]))
    got = worker.pull(get(a), get(b), get(c))
    for values, expected in zip(got, [[1, 1, 1], [-1, -2, -3], [3, 3, 3]], strict=True):
        np.testing.assert_array_equal(values, expected)


def test_the_gradient_scale_multiplies_gradients(local: Ps) -> None:
    worker, w = local.worker(), vector()
    worker.create(w)
    worker.peer.bind(["w"], SGD(learning_rate=1.0))
    worker.push(put(w, APPLY, [2, 4, 6]), gradient_scale=0.5)
    np.testing.assert_array_equal(worker.value(w), [-1, -2, -3])


def test_shards_of_one_variable_differ_by_part(local: Ps) -> None:
    worker, table = local.worker(), vector("table", 5, 2)
    parts = cut(table, 2)
    worker.peer.define(parts, create=True)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    worker.push(Put(parts[1], ASSIGN, rows[3:]), Put(parts[0], ASSIGN, rows[:3]))
    first, second = worker.pull(get(parts[0]), get(parts[1]))
    np.testing.assert_array_equal(np.concatenate([first, second]), rows)


# -- rows --------------------------------------------------------------------------------------


def test_rows_are_pushed_and_pulled_by_number(ps: Ps) -> None:
    worker, table, w = ps.worker(), vector("table", 2000, 4), vector()
    worker.create(table, w)
    worker.peer.bind(["table"], SGD(learning_rate=1.0))
    rows = np.arange(0, 2000, 3)
    values = np.repeat(rows[:, None], 4, 1)
    worker.push(
        put(table, APPLY, -values, rows),
        put(w, ASSIGN, [1, 2, 3]),
    )
    expected = np.zeros((2000, 4), np.float32)
    expected[rows] = values
    np.testing.assert_array_equal(worker.value(table), expected)
    asked = np.array([3, 0, 1999, 3, 999])
    some, whole, none = worker.pull(get(table, asked), get(w), get(table, []))
    np.testing.assert_array_equal(some, expected[asked])
    np.testing.assert_array_equal(whole, [1, 2, 3])
    assert none.shape == (0, 4)


def test_rows_can_be_pushed_and_pulled_in_one_step(ps: Ps) -> None:
    worker, table = ps.worker(), vector("table", 10, 2)
    worker.create(table)
    puts = [put(table, ADD, np.ones((2, 2)), [1, 7])]
    gets = [get(table, [7, 0]), get(table)]
    some, whole = worker.step(puts, gets)
    np.testing.assert_array_equal(some, [[1, 1], [0, 0]])
    assert whole.sum() == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 10], r"row 10 of 'table' is out of range: the shard has 10 rows"),
        ([-1, 3], r"row -1 of 'table' is out of range"),
        ([3, 3], "must ascend without repeating"),
        ([4, 3], "must ascend without repeating"),
    ],
    ids=["past-the-end", "negative", "repeated", "descending"],
)
def test_rows_that_cannot_be_are_refused_whole(local: Ps, rows: list[int], message: str) -> None:
    worker, table, w = local.worker(), vector("table", 10, 2), vector()
    worker.create(table, w)
    with pytest.raises(ShapeMismatchError, match=message):
        worker.push(put(w, ADD, 1), put(table, ADD, np.ones((2, 2)), rows))
    assert worker.value(w).sum() == worker.value(table).sum() == 0


@pytest.mark.parametrize("row", [-1, 10], ids=["negative", "past-the-end"])
def test_pulled_rows_are_checked_too(local: Ps, row: int) -> None:
    worker, table = local.worker(), vector("table", 10, 2)
    worker.create(table)
    with pytest.raises(ShapeMismatchError, match=f"row {row} of 'table' is out of range"):
        worker.pull(get(table, [0, row]))
    assert worker.value(table).shape == (10, 2)


# -- narrower on the way -----------------------------------------------------------------------

F16, F64 = np.dtype(np.float16), np.dtype(np.float64)
HALVES = pytest.mark.parametrize("wire", [F16, BFLOAT16], ids=lambda dtype: dtype.name)


@HALVES
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])
def test_narrow_gradients_are_applied_as_if_they_were_wide(
    local: Ps, wire: DType, dtype: DType, size: int
) -> None:
    worker = local.worker()
    given, wanted = vector("given", size, dtype=dtype), vector("wanted", size, dtype=dtype)
    worker.create(given, wanted)
    worker.peer.bind(["given", "wanted"], Adam(learning_rate=0.1))
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradient = rng.standard_normal(size).astype(wire)
        worker.push(put(given, APPLY, gradient, wire=wire), put(wanted, APPLY, gradient))
    np.testing.assert_array_equal(worker.value(given), worker.value(wanted))
    assert worker.value(given).any()


@HALVES
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])
def test_values_may_come_narrower_than_they_are(
    local: Ps, wire: DType, dtype: DType, size: int
) -> None:
    worker, w = local.worker(), vector("w", size, dtype=dtype)
    values = np.random.default_rng(0).standard_normal(size).astype(dtype)
    worker.define(w)
    worker.push(put(w, ASSIGN, values))
    for _ in range(2):
        [got] = worker.pull(get(w, wire=wire))
        np.testing.assert_array_equal(got, values.astype(wire))
        assert worker.result.pulled_bytes == 2 * size
    np.testing.assert_array_equal(worker.value(w), values)


def test_values_beyond_float16_come_as_its_largest_number(local: Ps) -> None:
    worker, w = local.worker(), vector("w", 3)
    worker.define(w)
    worker.push(put(w, ASSIGN, [1e6, -1e6, 1]))
    [got] = worker.pull(get(w, wire=F16))
    np.testing.assert_array_equal(got, np.array([65504, -65504, 1], F16))


@HALVES
def test_narrow_rows_are_pushed_and_pulled(local: Ps, wire: DType) -> None:
    worker, table = local.worker(), vector("table", 10, 2)
    worker.create(table)
    rows, values = np.array([2, 7]), np.array([[1.5, 2], [-3, 4]], wire)
    worker.push(Put(ShardDefinition(table), ADD, values, rows, wire))
    [got] = worker.pull(get(table, np.array([7, 0, 2]), wire=wire))
    np.testing.assert_array_equal(got, np.array([[-3, 4], [0, 0], [1.5, 2]], wire))


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(np.bool_)], ids=lambda dtype: dtype.name)
def test_integers_and_booleans_are_not_narrowed(local: Ps, dtype: DType) -> None:
    worker, w = local.worker(), vector("w", 3, dtype=dtype)
    worker.create(w)
    message = f"'w' is {dtype.name} and cannot travel as float16"
    with pytest.raises(RefusedError, match=message):
        worker.push(put(w, ADD, [1, 1, 1], wire=F16))
    with pytest.raises(RefusedError, match=message):
        worker.pull(get(w, wire=F16))
    assert worker.value(w).sum() == 0


def test_floats_do_not_travel_as_integers(local: Ps) -> None:
    worker, w = local.worker(), vector()
    worker.create(w)
    with pytest.raises(RefusedError, match="'w' is float32 and cannot travel as int8"):
        worker.push(put(w, ADD, [1, 1, 1], wire=np.dtype(np.int8)))
    assert worker.value(w).sum() == 0


def test_wide_and_narrow_neighbours_travel_in_one_step(ps: Ps) -> None:
    worker = ps.worker()
    variables = [vector(f"v{i}", 2000, dtype=F64 if i % 4 == 3 else F32) for i in range(40)]
    wires = [None, F16, BFLOAT16, F16]
    worker.define(*variables)
    puts = [put(v, ASSIGN, i, wire=wires[i % 4]) for i, v in enumerate(variables)]
    gets = [get(v, wire=wires[(i + 1) % 4]) for i, v in enumerate(variables)]
    got = worker.step(puts, gets)
    for i, array in enumerate(got):
        np.testing.assert_array_equal(array.astype(np.float64), i)


# -- single elements ---------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [None, F16, BFLOAT16], ids=["as-it-is", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "rule",
    [SGD(learning_rate=0.1), SGD(learning_rate=0.1, momentum=0.9), Adam(learning_rate=0.1)],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("shape", [(7, 5), (300, 100)], ids=["small", "large"])
def test_elements_are_the_gradient_that_is_zero_elsewhere(
    local: Ps, rule: UpdateRule, dtype: DType, wire: DType | None, shape: tuple[int, ...]
) -> None:
    """To the bit: momentum and Adam also move where the gradient is zero."""
    worker = local.worker()
    some, whole = vector("some", *shape, dtype=dtype), vector("whole", *shape, dtype=dtype)
    rng = np.random.default_rng(0)
    start = rng.standard_normal(shape).astype(dtype)
    worker.define(some, whole)
    worker.push(put(some, ASSIGN, start), put(whole, ASSIGN, start))
    worker.peer.bind(["some", "whole"], rule)
    size = start.size
    for count in (size // 3, 1, 0, size):
        numbers = np.sort(rng.choice(size, count, replace=False))
        values = rng.standard_normal(count).astype(wire or dtype)
        dense = np.zeros(size, dtype)
        dense[numbers] = values.astype(dtype)
        worker.push(
            put(some, APPLY, values, numbers, elements=True, wire=wire),
            put(whole, APPLY, dense.reshape(shape)),
            gradient_scale=0.5,
            step_increment=1,
        )
        np.testing.assert_array_equal(worker.value(some), worker.value(whole))
    assert not np.array_equal(worker.value(some), start)


def test_elements_of_parts_are_counted_in_their_part(local: Ps) -> None:
    worker, table = local.worker(), vector("table", 5, 2)
    parts = cut(table, 2)
    worker.peer.define(parts, create=True)
    worker.push(*(put(part, ASSIGN, 0) for part in parts))
    worker.peer.bind(["table"], SGD(learning_rate=1.0))
    worker.push(
        put(parts[0], APPLY, [-1, -2], [0, 5], elements=True),
        put(parts[1], APPLY, [-3], [3], elements=True),
    )
    got = worker.pull(get(parts[0]), get(parts[1]))
    np.testing.assert_array_equal(got[0], [[1, 0], [0, 0], [0, 2]])
    np.testing.assert_array_equal(got[1], [[0, 0], [0, 3]])


def test_dense_rows_and_elements_mix_in_one_push(ps: Ps) -> None:
    worker = ps.worker()
    a, b, c, d = (vector(name, 4, 2) for name in "abcd")
    worker.create(a, b, c, d)
    worker.peer.bind(["a", "b", "c"], SGD(learning_rate=1.0))
    worker.push(
        put(a, APPLY, [-1], [7], elements=True),
        put(b, APPLY, np.full((1, 2), -2), [3]),
        put(d, ADD, np.full((4, 2), 4)),
        put(c, APPLY, np.full((4, 2), -3)),
    )
    got = worker.pull(get(a), get(b), get(c), get(d))
    assert [array.sum() for array in got] == [1, 4, 24, 32]
    assert got[0][3, 1] == 1


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 20], r"element 20 of 'table' is out of range: the shard has 20 elements"),
        ([-1, 3], r"element -1 of 'table' is out of range"),
        ([3, 3], "element numbers pushed to 'table' must ascend without repeating"),
        ([4, 3], "element numbers pushed to 'table' must ascend without repeating"),
        ([2**62, 2**63 - 1], "out of range"),
    ],
    ids=["past-the-end", "negative", "repeated", "descending", "huge"],
)
def test_elements_that_cannot_be_are_refused_whole(
    local: Ps, numbers: list[int], message: str
) -> None:
    worker, table, w = local.worker(), vector("table", 10, 2), vector()
    worker.create(table, w)
    worker.peer.bind(["table"], SGD(learning_rate=1.0))
    with pytest.raises(ShapeMismatchError, match=message):
        worker.push(put(w, ADD, 1), put(table, APPLY, [1, 1], numbers, elements=True))
    assert worker.value(w).sum() == worker.value(table).sum() == 0
    assert not worker.push(put(table, APPLY, [-1], [19], elements=True)).duplicate
    assert worker.value(table)[9, 1] == 1


@pytest.mark.parametrize("operation", [ADD, ASSIGN], ids=["add", "assign"])
def test_single_elements_are_for_gradients(local: Ps, operation: Operation) -> None:
    worker, w, x = local.worker(), vector("w"), vector("x")
    worker.create(w, x)
    with pytest.raises(RefusedError, match="single elements are for gradients"):
        worker.push(put(x, ADD, 1), put(w, operation, [1], [0], elements=True))
    assert worker.value(w).sum() == worker.value(x).sum() == 0


def test_a_repeated_push_of_elements_is_not_applied_again(local: Ps) -> None:
    worker, w = local.worker(), vector()
    worker.create(w)
    worker.peer.bind(["w"], SGD(learning_rate=1.0))
    request = worker.request([put(w, APPLY, [-1], [2], elements=True)])
    for duplicate in (False, True):
        worker.exchange(request)
        assert worker.result.duplicate is duplicate
    np.testing.assert_array_equal(worker.value(w), [0, 0, 1])


# -- exactly once ------------------------------------------------------------------------------


def test_a_repeated_push_is_answered_and_not_applied_again(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(put(w, ASSIGN, 0), step_increment=1)
    request = worker.request([put(w, ADD, [1, 2, 3])], [get(w)], step_increment=1)
    for duplicate in (False, True, True):
        value = get(w).room()
        worker.exchange(request, [value])
        np.testing.assert_array_equal(value, [1, 2, 3])
        assert worker.result.duplicate is duplicate
        assert worker.result.global_step == 2
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (2, 2)


def test_a_push_that_would_leave_a_gap_is_refused_and_may_come_in_turn(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    with pytest.raises(SequenceError, match=r"push 3 of .* came before push 2"):
        worker.push(put(w, ADD, 1), sequence=3)
    assert worker.value(w).sum() == 0
    worker.push(put(w, ADD, 1), sequence=2)
    assert worker.value(w).sum() == 3


def test_each_worker_counts_its_own_pushes(local: Ps) -> None:
    workers, w = [local.worker(i) for i in range(3)], vector()
    workers[0].create(w)
    for _ in range(4):
        for worker in workers:
            assert not worker.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(workers[1].value(w), 12)


def test_a_new_generation_of_a_worker_counts_anew_and_fences_the_old_one_at_once(ps: Ps) -> None:
    old, w = ps.worker(0, generation=1), vector()
    old.create(w)
    new = ps.worker(0, generation=2)
    with pytest.raises(FencedError, match="superseded by generation 2"):
        old.push(put(w, ADD, [5, 5, 5]))
    assert not new.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(new.value(w), 1)


def test_an_old_generation_cannot_open_a_session(ps: Ps) -> None:
    ps.worker(0, generation=2)
    with pytest.raises(FencedError, match="superseded by generation 2"):
        ps.worker(0, generation=1)


def test_pulls_are_not_pushes(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    for _ in range(3):
        assert not worker.result.duplicate
        worker.pull(get(w))
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (1, 0)


# -- refusals ----------------------------------------------------------------------------------


Build = Callable[[Worker, VariableDefinition, VariableDefinition], StepRequest]


def unknown_push(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1), put(vector("nowhere"), ADD, [1, 1, 1])])


def unknown_pull(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1)], [get(vector("nowhere"))])


def unknown_part(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    other = replace(ShardDefinition(w), part=4, num_parts=5)
    return worker.request([put(x, ADD, 1), Put(other, ADD, np.ones(3, F32))])


def without_rule(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1), put(x, APPLY, [1, 1, 1])])


def too_short(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, 1), put(x, ADD, 1)])
    short = GatherBuffer([np.ones(2, np.float32)], F32, 8)
    return replace(request, values=[request.values[0], short])


def too_long(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, 1), put(x, ADD, 1)])
    return replace(request, values=[*request.values, request.values[0]])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (unknown_push, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_pull, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_part, UnknownVariableError, "no part 4 of a variable 'w'"),
        (without_rule, RefusedError, "'x' has no update rule"),
        (too_short, ShapeMismatchError, "of 3[26]"),
        (too_long, ShapeMismatchError, "of 3[26]"),
    ],
    ids=["unknown-push", "unknown-pull", "unknown-part", "no-rule", "too-short", "too-long"],
)
def test_a_refused_step_applies_nothing_and_the_session_goes_on(
    ps: Ps, build: Build, error: type[RefusedError], message: str
) -> None:
    worker, w, x = ps.worker(), vector("w"), vector("x", dtype=np.dtype(np.float64))
    worker.create(w, x)
    for attempt in range(2):
        request = build(worker, w, x)
        worker.peer.prepare(request)
        worker.peer.send()
        with pytest.raises(error, match=message):
            worker.peer.receive([])
        assert ps.store.counters().refused == attempt + 1
        assert worker.value(w).sum() == worker.value(x).sum() == 0
    # The number of the refused push was not used up.
    assert not worker.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(worker.value(w), 1)


def test_a_step_over_the_limit_names_both_numbers_and_is_not_sent(ps: Ps) -> None:
    limit = ps.settings.max_step_bytes
    worker, w = ps.worker(), vector("w", limit + 1, dtype=np.dtype(np.uint8))
    small = vector("small")
    worker.create(small)
    worker.define(w)
    with pytest.raises(LimitExceededError) as caught:
        worker.push(put(w, ASSIGN, np.ones(limit + 1)))
    assert str(limit + 1) in caught.value.message
    assert f"max_step_bytes={limit}" in caught.value.message
    assert caught.value.fields["limit"] == "max_step_bytes"
    assert not worker.push(put(small, ADD, [1, 1, 1])).duplicate
    np.testing.assert_array_equal(worker.value(small), 1)


# -- the global step ---------------------------------------------------------------------------


def test_the_global_step_counts_what_pushes_say_and_staleness_what_came_between(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.create(w)
    add = put(w, ADD, 1)
    assert first.push(add, step_increment=1) == PushResult(1, 0, duplicate=False)
    for expected in (2, 3):
        result = second.push(add, step_increment=1, global_step=1)
        assert result == PushResult(expected, expected - 2, duplicate=False)
    assert first.push(add, step_increment=1, global_step=1) == PushResult(4, 2, duplicate=False)
    assert first.push(add, global_step=4) == PushResult(4, 0, duplicate=False)
    second.pull(get(w))
    assert second.result.global_step == 4


def test_a_step_of_nothing_asks_for_the_global_step(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(put(w, ASSIGN, 0), step_increment=5)
    worker.peer.prepare(StepRequest())
    worker.peer.send()
    assert worker.peer.receive([]).global_step == 5


def test_a_push_of_nothing_may_count_a_step(ps: Ps) -> None:
    """The ps of the global step hears of every step, also of those that touch others alone."""
    worker = ps.worker()
    worker.peer.prepare(StepRequest(sequence=1, step_increment=1))
    worker.peer.send()
    assert worker.peer.receive([]) == PushResult(1, 0, duplicate=False)
    worker.peer.prepare(StepRequest(sequence=1, step_increment=1))
    worker.peer.send()
    again = worker.peer.receive([])
    assert (again.global_step, again.duplicate) == (1, True)


# -- the end -----------------------------------------------------------------------------------


def test_after_abort_every_call_raises_its_error(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    error = PeerLostError("the job failed")
    worker.peer.abort(error)
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: worker.push(put(w, ADD, 1)),
        "define": lambda: worker.define(w),
        "bind": lambda: worker.peer.bind(["w"], SGD()),
        "connect": lambda: worker.peer.connect(1.0),
    }
    for name, call in calls.items():
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value is error, name
    assert ps.worker(1).value(w).sum() == 0


def test_an_abort_between_send_and_receive_is_heard(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    error = PeerLostError("the job failed")
    worker.peer.prepare(worker.request([put(w, ADD, 1)]))
    worker.peer.send()
    worker.peer.abort(error)
    with pytest.raises(PeerLostError) as caught:
        worker.peer.receive([])
    assert caught.value is error


def test_receive_without_send_is_a_mistake_of_the_caller(ps: Ps) -> None:
    worker = ps.worker()
    with pytest.raises(RuntimeError, match="receive without send"):
        worker.peer.receive([])


def test_closing_twice_is_fine(ps: Ps) -> None:
    worker = ps.worker()
    worker.peer.close()
    worker.peer.close()
