"""Values and rows that every connection with a ps carries."""

import numpy as np
import pytest

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    Ps,
    Put,
    get,
    put,
    vector,
)
from ropewalk.core.arrays.dtypes import DTYPES
from ropewalk.core.errors import (
    ShapeMismatchError,
)
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import VariableDefinition, cut
from ropewalk.core.wire.steps import PushResult

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
