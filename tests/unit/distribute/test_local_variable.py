"""A variable in this process's memory: what is handed out never changes, rows, dtypes, rules,
threads.
"""

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rows import row
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, FLOATS, INTEGERS, DType
from ropewalk.core.errors import DefinitionMismatchError, RefusedError, ShapeMismatchError
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy, Strategy
from ropewalk.distribute.variables.local import LocalVariable
from ropewalk.distribute.variables.scatter import Scatter

Array = np.ndarray[Any, np.dtype[Any]]
NUMBERS = [dtype for dtype in DTYPES if dtype != np.bool_]


def variable(value: Any, **kwargs: Any) -> LocalVariable:
    v = rw.Variable(value, **{"name": "v", **kwargs})
    assert isinstance(v, LocalVariable)
    return v


def slices(values: Any, indices: Any, dtype: Any = np.float32) -> rw.IndexedSlices:
    return rw.IndexedSlices(np.array(values, dtype), np.array(indices, np.int64))


# -- what is handed out --------------------------------------------------------------------------

CHANGES: dict[str, Callable[[LocalVariable], object]] = {
    "assign": lambda v: v.assign(np.full((3, 2), 9)),
    "assign_add": lambda v: v.assign_add(np.ones((3, 2))),
    "assign_sub": lambda v: v.assign_sub(np.ones((3, 2))),
    "scatter_add": lambda v: v.scatter_add(slices([[1, 1]] * 3, [0, 1, 2])),
    "scatter_update": lambda v: v.scatter_update(slices([[9, 9]] * 3, [0, 1, 2])),
    "apply": lambda v: v.apply(np.ones((3, 2), np.float32), SGD(learning_rate=1.0)),
    "apply-rows": lambda v: v.apply(slices([[1, 1]] * 3, [0, 1, 2]), SGD(learning_rate=1.0)),
}
READS: dict[str, Callable[[LocalVariable], Any]] = {
    "read_value": lambda v: v.read_value(),
    "value": lambda v: v.value(),
    "asarray": np.asarray,
    "numpy": lambda v: v.numpy(),
    "getitem": lambda v: v[1],
    "sparse_read": lambda v: v.sparse_read([1, 2]),
    "sparse_read-one": lambda v: v.sparse_read(1),
    "sparse_read-none": lambda v: v.sparse_read([]),
    "gather_nd": lambda v: v.gather_nd([[1, 1], [0, 1]]),
}


@pytest.mark.parametrize("read", READS)
def test_what_was_read_stays_as_it_was(read: str) -> None:
    for name, change in CHANGES.items():
        with row(name):
            v = variable(np.arange(6, dtype=np.float32).reshape(3, 2))
            found = READS[read](v)
            before = np.array(found)
            change(v)
            np.testing.assert_array_equal(found, before)
            if before.size:
                assert not np.array_equal(READS[read](v), before), "the next read sees the change"


@pytest.mark.parametrize("read", READS)
def test_nothing_that_is_read_is_a_way_into_the_variable(read: str) -> None:
    v = variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    found = READS[read](v)
    if found.flags.writeable:
        found[...] = -1
    np.testing.assert_array_equal(v.read_value(), [[0, 1], [2, 3], [4, 5]])


KINDS: dict[str, Callable[[], Any]] = {
    "local": nullcontext,
    "mirrored": lambda: rw.distribute.MirroredStrategy().scope(),
    "central": lambda: rw.distribute.CentralStorageStrategy().scope(),
}


@pytest.mark.parametrize("scope", KINDS.values(), ids=list(KINDS))
def test_the_first_value_is_not_kept_beside_the_variable(scope: Callable[[], Any]) -> None:
    rw.config.set_logical_cpu_devices(2)
    tracemalloc.start()
    try:
        given = np.ones(1_000_000, np.float32)
        with scope():
            v = rw.Variable(given, name="v")
        before = tracemalloc.get_traced_memory()[0]
        del given
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    copies = len(v.values) if isinstance(v, rw.distribute.DistributedVariable) else 1
    assert before - kept > 3_900_000, "what the program gave up is free"
    assert kept < copies * 4_000_000 + 2_000_000, "and nobody has another copy of it"


def test_a_first_value_is_given_up_once_the_servers_have_it() -> None:
    with rw.distribute.ParameterServerStrategy().scope():
        v: Any = rw.Variable(np.ones(10), name="v")
        holder = weakref.ref(v.first_value)
        assert holder() is not None
        assert v.numpy().tolist() == [1.0] * 10
        assert holder() is None


@pytest.mark.parametrize(
    "scope", [KINDS["mirrored"], KINDS["central"]], ids=["mirrored", "central"]
)
def test_the_memory_of_a_variable_is_free_when_it_is_dropped(scope: Callable[[], Any]) -> None:
    rw.config.set_logical_cpu_devices(2)
    with scope():
        v: Any = rw.Variable(np.zeros(10), name="v")
    holder = weakref.ref(v.values[0] if hasattr(v, "values") else v.component())
    gc.disable()
    try:
        del v
        assert holder() is None, "without the garbage collector"
    finally:
        gc.enable()


def test_reading_twice_copies_once() -> None:
    v = variable(np.ones(3, np.float32))
    assert v.read_value() is v.read_value()
    v.assign_add([0, 0, 0])
    first = v.read_value()
    assert first is v.value()


@pytest.mark.parametrize(
    "ids", [4, [4], [[0, 1], [5, 0]], []], ids=["scalar", "one", "2-d", "none"]
)
@pytest.mark.parametrize("width", [(), (2,), (2, 3)], ids=["vector", "matrix", "cube"])
def test_rows_come_in_the_shape_of_their_numbers(ids: Any, width: tuple[int, ...]) -> None:
    table = np.arange(6 * int(np.prod(width)), dtype=np.float32).reshape(6, *width)
    found = variable(table).sparse_read(ids)
    expected = table[np.asarray(ids, np.int64)]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_a_scalar_has_no_rows() -> None:
    with pytest.raises(ShapeMismatchError, match="row 0 of 'v' is out of range: it has 0 rows"):
        variable(1.0).sparse_read([0])


# -- changing rows -------------------------------------------------------------------------------


ONE_ROW: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "mul": lambda old, value: old * value,
    "div": lambda old, value: old / value,
    "min": np.minimum,
    "max": np.maximum,
    "update": lambda old, value: value,
}


def one_by_one(kind: str, table: Array, rows: Any, values: Array) -> Array:
    """The reference: a Python loop in the table's dtype."""
    result = table.copy()
    for at, value in zip(rows, values, strict=True):
        result[at] = ONE_ROW[kind](result[at], value).astype(table.dtype)
    return result


@pytest.mark.parametrize("kind", list(Scatter), ids=str)
def test_scatter_is_row_by_row_and_repeated_rows_count_each(kind: Scatter) -> None:
    for dtype in NUMBERS:
        with row(dtype):
            table = np.array([[12, 24], [36, 48], [60, 72], [96, 120]], dtype)
            rows = [2, 0, 2, 2, 3]
            values = np.array([[1, 2], [3, 4], [2, 3], [1, 2], [4, 5]], dtype)
            v = variable(table)
            same = getattr(v, f"scatter_{kind}")(rw.IndexedSlices(values, np.array(rows)))
            assert same is v
            np.testing.assert_array_equal(
                v.read_value(), one_by_one(kind.value, table, rows, values)
            )
            assert v.read_value().dtype == dtype


@pytest.mark.parametrize("kind", list(Scatter), ids=str)
def test_scatter_changes_nothing_for_no_rows_and_takes_slices_of_any_rank(kind: Scatter) -> None:
    rng = np.random.default_rng(0)
    for width in ((), (3,), (2, 2)):
        table = rng.uniform(1, 2, (5, *width)).astype(np.float32)
        v = variable(table)
        v.scatter(kind, rw.IndexedSlices(np.empty((0, *width), np.float32), np.empty(0, np.int64)))
        np.testing.assert_array_equal(v.read_value(), table)
        values = rng.uniform(1, 2, (4, *width)).astype(np.float32)
        v.scatter(kind, rw.IndexedSlices(values, np.array([4, 1, 4, 0])))
        expected = one_by_one(kind.value, table, [4, 1, 4, 0], values)
        np.testing.assert_array_equal(v.read_value(), expected)


@pytest.mark.parametrize("kind", list(Scatter), ids=str)
@pytest.mark.parametrize(
    ("delta", "error", "message"),
    [
        (slices([[1, 1]], [3]), ShapeMismatchError, "row 3 of 'v' is out of range: it has 3 rows"),
        (slices([[1, 1]], [-1]), ShapeMismatchError, "row -1 of 'v' is out of range"),
        (slices([[1, 1, 1]], [0]), ValueError, r"rows of 'v' have shape \(2,\), .* \(3,\)"),
        (slices([1], [0]), ValueError, r"rows of 'v' have shape \(2,\), .* \(\)"),
        (np.ones((1, 2)), TypeError, "takes IndexedSlices, got ndarray"),
    ],
    ids=["past-the-end", "negative", "long-rows", "no-rows", "array"],
)
def test_rows_that_do_not_fit_change_nothing(
    kind: Scatter, delta: Any, error: type[Exception], message: str
) -> None:
    v = variable(np.ones((3, 2), np.float32))
    with pytest.raises(error, match=message):
        v.scatter(kind, delta)
    np.testing.assert_array_equal(v.read_value(), 1)


# -- dtypes --------------------------------------------------------------------------------------


def test_assign_add_and_sub_keep_the_dtype() -> None:
    for dtype in NUMBERS:
        with row(dtype):
            v = variable(np.array([5, 6], dtype))
            v.assign_add(np.array([1, 2], dtype)).assign_sub(np.array([3, 1], dtype))
            np.testing.assert_array_equal(v.read_value(), np.array([3, 7], dtype))
            assert v.read_value().dtype == v.dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_wider_floats_are_rounded_to_the_variables(dtype: DType) -> None:
    v = variable(np.zeros(2, dtype))
    v.assign(np.array([1 / 3, 2 / 3]))
    np.testing.assert_array_equal(v.read_value(), np.array([1 / 3, 2 / 3]).astype(dtype))


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub", "scatter_add"])
def test_floats_do_not_become_integers_unasked(method: str) -> None:
    floats: list[DType] = [np.dtype(np.float32), np.dtype(np.float64), BFLOAT16]
    for dtype, given in product(map(np.dtype, (np.int8, np.uint64, np.bool_)), floats):
        with row(dtype, given):
            v = variable(np.array([1, 0], dtype))
            value: Any = np.array([0.5, 1.5]).astype(given)
            if method == "scatter_add":
                value = rw.IndexedSlices(value, np.array([0, 1]))
            message = rf"'v' is {given.name}, the variable is {dtype.name}; convert"
            with pytest.raises(ShapeMismatchError, match=message):
                getattr(v, method)(value)
            np.testing.assert_array_equal(v.read_value(), [1, 0])


@pytest.mark.parametrize("kind", [None, MirroredStrategy, ParameterServerStrategy])
def test_unsigned_numbers_are_subtracted(kind: Callable[[], Strategy] | None) -> None:
    for dtype in NUMBERS:
        with row(dtype):
            with kind().scope() if kind is not None else nullcontext():
                v: Any = rw.Variable(np.array([10, 20], dtype), name="v")
            assert v.assign_sub(np.array([5, 0], np.uint8)).numpy().tolist() == [5, 20]
            v.scatter_sub(slices([5], [1], np.uint8))
            assert v.numpy().tolist() == [5, 15]


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_integers_the_dtype_does_not_hold_are_refused(method: str) -> None:
    for given in [300, -1, np.int64(300), np.array(-1)]:
        with row(given):
            v = variable(np.array(7, np.uint8))
            with pytest.raises(
                ShapeMismatchError, match=r"'v' has (300|-1), the variable is uint8, .* 0 to 255"
            ):
                getattr(v, method)(given)
            assert v.numpy() == 7


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_an_integer_variable_takes_no_gradients(dtype: DType) -> None:
    v = variable(np.array([1, 2], dtype))
    with pytest.raises(RefusedError, match=f"'v' is {dtype.name}; update rules need a float dtype"):
        v.apply(np.ones(2, np.float32), SGD())
    np.testing.assert_array_equal(v.read_value(), [1, 2])


# -- update rules --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_gradients_are_applied_in_every_float_dtype(dtype: DType) -> None:
    v = variable(np.ones((3, 2), dtype))
    v.apply(np.full((3, 2), 0.5, dtype), SGD(learning_rate=0.5))
    v.apply(slices([[1, 1], [1, 1]], [2, 2], dtype), SGD(learning_rate=0.5), gradient_scale=0.25)
    np.testing.assert_array_equal(v.read_value().astype(np.float32), [[0.75] * 2] * 2 + [[0.5] * 2])


def test_another_rule_is_refused_and_the_first_one_stays() -> None:
    v = variable(np.ones(2, np.float32))
    v.apply(np.ones(2, np.float32), SGD(learning_rate=0.5))
    with pytest.raises(DefinitionMismatchError, match=r"'v' is updated by SGD.*Adam.* as well"):
        v.apply(np.ones(2, np.float32), Adam())
    with pytest.raises(DefinitionMismatchError, match=r"'v' is updated by"):
        v.apply(np.ones(2, np.float32), SGD(learning_rate=0.25))
    v.apply(np.ones(2, np.float32), SGD(learning_rate=0.5))  # an equal rule is the same rule
    np.testing.assert_array_equal(v.read_value(), 0)


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (np.ones((2, 2), np.float32), r"'v' has shape \(3, 2\), the gradient has \(2, 2\)"),
        (np.float32(1), r"'v' has shape \(3, 2\), the gradient has \(\)"),
        (slices([[1]], [0]), r"rows of 'v' have shape \(2,\), the given ones \(1,\)"),
        (slices([1.0], [0]), r"rows of 'v' have shape \(2,\), the given ones \(\)"),
        (slices([[1, 1]], [3]), "row 3 of 'v' is out of range"),
        (slices([[1, 1]], [-1]), "row -1 of 'v' is out of range"),
    ],
    ids=["shape", "scalar", "short-rows", "no-rows", "past-the-end", "negative"],
)
def test_a_gradient_that_does_not_fit_leaves_nothing_behind(gradient: Any, message: str) -> None:
    """Not its rule either; and rows too short must not reach a kernel, which would read beyond
    them.
    """
    v = variable(np.ones((3, 2), np.float32))
    with pytest.raises(ValueError, match=message):
        v.apply(gradient, Adam())
    assert v.slots() == ({}, 0, None)
    v.apply(np.ones((3, 2), np.float32), SGD(learning_rate=1.0))
    np.testing.assert_array_equal(v.read_value(), 0)


def test_slots_are_copies_with_the_number_of_updates_and_the_rule() -> None:
    v = variable(np.ones(2, np.float32))
    rule = SGD(learning_rate=0.5, momentum=0.5)
    v.apply(np.ones(2, np.float32), rule)
    slots, updates, fields = v.slots()
    v.apply(np.ones(2, np.float32), rule)
    assert list(slots) == ["momentum"]
    np.testing.assert_array_equal(slots["momentum"], -0.5)
    assert updates == 1
    assert fields == rule.model_dump(mode="json")


def test_a_schedule_that_begins_at_zero_goes_on_for_ftrl() -> None:
    """FTRL leaves out a step whose rate is zero; the step still counts."""
    rate = rw.optimizers.CosineDecay(
        initial_learning_rate=0.0, decay_steps=10, warmup_target=0.5, warmup_steps=2
    )
    v = variable([1.0])
    optimizer = rw.optimizers.Ftrl(rate)
    values = []
    for _ in range(3):
        optimizer.apply_gradients([([1.0], v)])
        values.append(float(v[0]))
    assert values[0] == 1
    assert values[1] != 1
    assert values[2] < values[1]


# -- threads -------------------------------------------------------------------------------------


def test_threads_lose_no_update_and_never_see_half_of_one() -> None:
    v = variable(np.zeros(10_000, np.float32))
    one = np.ones(10_000, np.float32)
    rows = rw.IndexedSlices(np.ones((1, 1), np.float32).reshape(1), np.array([0]))
    torn: list[Array] = []
    begin = threading.Barrier(4)

    def add() -> None:
        begin.wait(5)
        for _ in range(100):
            v.assign_add(one)
            v.scatter_add(rows).scatter_sub(rows)

    def update() -> None:
        begin.wait(5)
        for _ in range(100):
            v.apply(-one, SGD(learning_rate=1.0))

    def look() -> None:
        begin.wait(5)
        for _ in range(200):
            seen = v.read_value()[1:]
            if seen.min() != seen.max():
                torn.append(seen)

    threads = [threading.Thread(target=work) for work in (add, add, update, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not torn
    np.testing.assert_array_equal(v.read_value(), 300)
