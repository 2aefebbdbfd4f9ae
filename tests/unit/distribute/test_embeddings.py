"""Lookups of rows under every kind of variable, and the gradients that go back."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rows import row
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy, ShardedVariable
from ropewalk.distribute.experimental import partitioners

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2) + 1
BAGS = [[3, 1], [], [7], [2, 2, 9]]
WEIGHTS = [[1.0, 3.0], [], [0.5], [1.0, 2.0, -1.0]]


@pytest.fixture(autouse=True)
def two_devices(plain_process: None) -> None:
    rw.config.set_logical_cpu_devices(2)


def _under(strategy: Any, **options: Any) -> rw.Variable:
    with strategy.scope():
        made: rw.Variable = rw.Variable(TABLE, name="table", **options)
    return made


def _on_ps(parts: int) -> rw.Variable:
    rw.config.set_logical_cpu_devices(1)
    cut = partitioners.FixedShardsPartitioner(parts)
    return _under(ParameterServerStrategy(variable_partitioner=cut))


TABLES: dict[str, Callable[[], Any]] = {
    "array": lambda: TABLE,
    "plain": lambda: rw.Variable(TABLE),
    "mirrored": lambda: _under(MirroredStrategy()),
    "on read": lambda: _under(
        MirroredStrategy(),
        synchronization=rw.VariableSynchronization.ON_READ,
        aggregation=rw.VariableAggregation.MEAN,
    ),
    "sharded": lambda: ShardedVariable([rw.Variable(TABLE[:4]), rw.Variable(TABLE[4:])]),
    "list of shards": lambda: [rw.Variable(TABLE[:4]), rw.Variable(TABLE[4:])],
    "one ps": lambda: _on_ps(1),
    "cut on ps": lambda: _on_ps(3),
}


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> Any:
    return TABLES[request.param]()


def test_rows_come_in_the_shape_of_the_ids(table: Any) -> None:
    for ids in [3, [], [9, 0, 9], [[1, 2, 3], [4, 5, 5]], np.zeros((2, 0, 3), int)]:
        with row(ids):
            where = np.asarray(ids, np.int64)
            found = rw.nn.embedding_lookup(table, ids)
            assert found.shape == (*where.shape, 2)
            np.testing.assert_array_equal(found, TABLE[where])


def test_an_id_out_of_range_is_an_error(table: Any) -> None:
    for bad in [10, -1]:
        with (
            row(bad),
            pytest.raises(ShapeMismatchError, match=f"row {bad} .* out of range: it has 10 rows"),
        ):
            rw.nn.embedding_lookup(table, [[0, bad]])


def test_long_rows_are_scaled_down() -> None:
    found = rw.nn.embedding_lookup(rw.Variable([[3.0, 4.0], [0.3, 0.4]]), [[0, 1]], max_norm=1.0)
    np.testing.assert_allclose(found, [[[0.6, 0.8], [0.3, 0.4]]], rtol=1e-6)


def _expected(combiner: str, weights: Any) -> Any:
    rows = []
    for ids, factors in zip(BAGS, weights or [[1.0] * len(ids) for ids in BAGS], strict=True):
        w = np.array(factors)
        norm = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        total = (TABLE[ids] * w[:, None]).sum(0) if ids else np.zeros(2)
        rows.append(total / norm if ids else total)
    return np.array(rows)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_rows_of_an_example_are_combined(combiner: str, weights: Any) -> None:
    found = rw.nn.embedding_lookup_sparse(rw.Variable(TABLE), BAGS, weights, combiner)
    np.testing.assert_allclose(found, _expected(combiner, weights), rtol=1e-6)
    sparse = SimpleNamespace(
        indices=[(0, 0), (0, 1), (2, 0), (3, 0), (3, 1), (3, 2)],
        values=[3, 1, 7, 2, 2, 9],
        dense_shape=(4, 3),
    )
    again = rw.nn.embedding_lookup_sparse(TABLE, sparse, weights, combiner)
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_the_gradient_of_combined_rows_is_that_of_differences(combiner: str) -> None:
    gradient = np.random.default_rng(0).normal(size=(4, 2))
    given = rw.nn.embedding_lookup_sparse_gradient(gradient, BAGS, WEIGHTS, combiner)

    def loss(table: Any) -> float:
        rows = rw.nn.embedding_lookup_sparse(table, BAGS, WEIGHTS, combiner)
        return float((rows * gradient).sum())

    # The loss is linear in the table: a difference of 1 has no error but rounding.
    wide = TABLE.astype(np.float64)
    dense = np.zeros_like(wide)
    for place in np.ndindex(wide.shape):
        moved = wide.copy()
        moved[place] += 1.0
        dense[place] = loss(moved) - loss(wide)
    whole = rw.IndexedSlices(given.values, given.indices, TABLE.shape).to_dense()
    np.testing.assert_allclose(whole, dense, atol=1e-12)


@pytest.mark.parametrize("name", ["plain", "mirrored", "one ps", "cut on ps"])
def test_slices_of_any_shape_of_ids_train_as_flat_ones(name: str) -> None:
    table = TABLES[name]()
    ids = np.array([[1, 2, 3], [4, 1, 1]])
    gradient = np.ones((2, 3, 2), np.float32)
    rw.optimizers.SGD(1.0).apply_gradients([(rw.IndexedSlices(gradient, ids), table)])
    expected = TABLE.copy()
    np.subtract.at(expected, ids.reshape(-1), gradient.reshape(-1, 2))
    np.testing.assert_array_equal(table.numpy(), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.nn.embedding_lookup_sparse(TABLE, BAGS, combiner="max"), "one of mean, sqrtn"),
        (lambda: rw.nn.embedding_lookup_sparse(TABLE, BAGS, [[1.0]] * 4), "one weight for every"),
        (
            lambda: rw.nn.embedding_lookup_sparse_gradient(np.ones((3, 2)), BAGS),
            "there are 4 examples",
        ),
    ],
    ids=["combiner", "weights", "gradient"],
)
def test_what_does_not_fit_is_a_value_error(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
