"""Reducing, gathering and broadcasting values of replicas on the strategies of one machine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import per_replica, several
from helpers.replicas import MEAN, SUM, replica
from ropewalk.distribute import (
    DistributedVariable,
    Mirrored,
    PerReplica,
    ReduceOp,
    Strategy,
)
from ropewalk.distribute.strategies.default import the_default_strategy

Array = np.ndarray[Any, np.dtype[Any]]


pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("four_devices")]


# -- reduce and gather -------------------------------------------------------------------------


def test_reduce_of_variables_in_cross_replica_context(strategy: Strategy, replicas: int) -> None:
    with strategy.scope():
        weight = rw.Variable([2.0], name="weight", aggregation=MEAN)
    assert strategy.reduce("MEAN", weight) == [2.0]
    assert strategy.extended.read_var(weight) == [2.0]
    assert strategy.reduce("SUM", strategy.run(lambda: weight * 1.0)) == [2.0 * replicas]


def test_gather_puts_uneven_values_together(strategy: Strategy, replicas: int) -> None:
    def step() -> dict[str, Array]:
        mine = np.full((replica() + 1, 2), replica())
        return {"rows": mine, "columns": mine.T}

    value = strategy.run(step)
    wanted = np.concatenate([np.full((i + 1, 2), i) for i in range(replicas)])
    np.testing.assert_array_equal(strategy.gather({"x": value["rows"]}, axis=0)["x"], wanted)
    np.testing.assert_array_equal(strategy.gather(value["columns"], axis=1), wanted.T)
    np.testing.assert_array_equal(strategy.gather(value["columns"], axis=-1), wanted.T)


def test_what_every_replica_has_is_gathered_from_each(strategy: Strategy, replicas: int) -> None:
    np.testing.assert_array_equal(strategy.gather(np.array([7]), 0), [7] * replicas)


# -- extended: reducing ------------------------------------------------------------------------


@several
def test_reduce_to_puts_the_result_where_the_destination_is(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    extended = strategy.extended
    value = strategy.run(lambda: np.array([replica(), 1.0]))
    with strategy.scope():
        variable = rw.Variable(np.zeros(2), name="v", aggregation=SUM)
    on_variable = extended.reduce_to("SUM", value, variable)
    if isinstance(variable, DistributedVariable):
        assert isinstance(on_variable, Mirrored)
        np.testing.assert_array_equal(on_variable.values, [[6, 4]] * 4)
    else:
        np.testing.assert_array_equal(on_variable, [6, 4])
    on_value = extended.reduce_to(ReduceOp.MEAN, value, value)
    assert isinstance(on_value, Mirrored)
    np.testing.assert_array_equal(on_value.values, [[1.5, 1]] * 4)
    np.testing.assert_array_equal(extended.reduce_to("SUM", value, "cpu:2"), [6, 4])


@several
def test_reduce_to_of_what_every_replica_has(kind: Callable[[], Strategy]) -> None:
    extended = kind().extended
    array = np.array([1.0, 2.0])
    np.testing.assert_array_equal(extended.reduce_to("MEAN", array, "cpu:0"), array)
    mirrored = Mirrored([array] * 4)
    assert isinstance(extended.reduce_to("MEAN", mirrored, mirrored), Mirrored)
    np.testing.assert_array_equal(extended.reduce_to("SUM", np.zeros(2), "cpu:0"), [0, 0])
    for value in (array, mirrored):
        with pytest.raises(ValueError, match="ambiguous"):
            extended.reduce_to("SUM", value, "cpu:0")


def test_reduce_to_wants_one_destination_and_an_op(strategy: Strategy) -> None:
    value = per_replica(strategy, lambda i: 1.0)
    for many in (["cpu:0", "cpu:1"], ("cpu:0",)):
        with pytest.raises(AssertionError, match="destinations must not be a list"):
            strategy.extended.reduce_to("SUM", value, many)
    with pytest.raises(ValueError, match="SUM or MEAN"):
        strategy.extended.reduce_to("MAX", value, "cpu:0")


def test_batch_reduce_to_keeps_the_order_of_its_pairs(strategy: Strategy, replicas: int) -> None:
    values = [strategy.run(lambda i=i: np.full(i + 1, 1.0 + i + replica())) for i in range(5)]
    pairs = [(value, "cpu:0") for value in values]
    for constants in ([], [(np.full(2, 9.0), "cpu:0")]):
        results = strategy.extended.batch_reduce_to("MEAN", [*pairs, *constants])
        assert len(results) == 5 + len(constants)
        for i, result in enumerate(results[:5]):
            np.testing.assert_array_equal(result, np.full(i + 1, 1.0 + i + (replicas - 1) / 2))
        if constants:
            np.testing.assert_array_equal(results[5], [9, 9])


@several
def test_broadcast_to_is_a_copy_everywhere(kind: Callable[[], Strategy]) -> None:
    extended = kind().extended
    array = np.arange(3.0)
    for where_to in (None, PerReplica([0] * 4)):
        everywhere = extended.broadcast_to(array, where_to)
        assert isinstance(everywhere, Mirrored)
        np.testing.assert_array_equal(everywhere.values, [array] * 4)
    np.testing.assert_array_equal(extended.broadcast_to(array, "cpu:1"), array)
    assert extended.broadcast_to(3, None) == 3
    assert extended.broadcast_to(2.5, "cpu:1") == 2.5


def test_the_default_strategy_broadcasts_nowhere() -> None:
    extended = the_default_strategy().extended
    array = np.ones(2)
    assert extended.broadcast_to(array, None) is array
    with pytest.raises(NotImplementedError, match="no devices"):
        extended.broadcast_to(array, "cpu:0")
