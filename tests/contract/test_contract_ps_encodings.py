"""Values that travel narrower than they are, and single elements of gradients."""

import numpy as np
import pytest

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    F32,
    Ps,
    Put,
    get,
    put,
    vector,
)
from ropewalk.core.arrays.dtypes import BFLOAT16, FLOATS, INTEGERS, DType
from ropewalk.core.errors import (
    RefusedError,
    ShapeMismatchError,
)
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, cut
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.wire.steps import Operation

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
