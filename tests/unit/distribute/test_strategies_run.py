"""`run` on the strategies of one machine: what a step sees and gives, what replicas do together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import HERE, parts, per_replica, where
from helpers.replicas import SUM, context, replica
from ropewalk.distribute import (
    MirroredStrategy,
    PerReplica,
    ReduceOp,
    RunOptions,
    Strategy,
    ValueContext,
)
from ropewalk.distribute.base.contexts import update_component
from ropewalk.distribute.strategies.default import the_default_strategy

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("four_devices")]


# -- contexts: the matrix of section 1 ---------------------------------------------------------


def test_where_we_are_in_scope_run_merge_and_update(strategy: Strategy, replicas: int) -> None:
    cross = (strategy, None, True)
    with strategy.scope():
        if strategy is the_default_strategy():
            assert where() == (strategy, 0, False), "its scope changes nothing"
        else:
            assert where() == cross
        variable = rw.Variable([0.0], name="v", aggregation=SUM)

    def step() -> list[Any]:
        merged = context().merge_call(lambda _: (where(), update_component()))
        updated = strategy.extended.update(variable, lambda _: (where(), update_component()))
        # A result of one component is everybody's, of one per component this replica's.
        return [where()[0] is strategy, where()[1], where()[2], merged, updated]

    for i, result in enumerate(parts(strategy, strategy.run(step))):
        assert result[:3] == [True, i, False]
        assert result[3] == (cross, None)
        component = i if isinstance(strategy, MirroredStrategy) else 0
        assert result[4] == (cross, component)
    outside = strategy.extended.update(variable, lambda _: where(), group=False)
    assert all(one == cross for one in outside)
    assert where() == (the_default_strategy(), 0, False)


CROSS_REPLICA: dict[str, Callable[[Strategy], Any]] = {
    "reduce": lambda s: s.reduce("SUM", 1.0),
    "gather": lambda s: s.gather(np.ones(1), 0),
    "experimental_distribute_values_from_function": lambda s: (
        s.experimental_distribute_values_from_function(lambda _: 0)
    ),
    "reduce_to": lambda s: s.extended.reduce_to("SUM", 1.0, "CPU:0"),
    "batch_reduce_to": lambda s: s.extended.batch_reduce_to("SUM", [(1.0, "CPU:0")]),
    "broadcast_to": lambda s: s.extended.broadcast_to(np.ones(1), "CPU:0"),
    "update_non_slot": lambda s: s.extended.update_non_slot(["CPU:0"], lambda: None),
}


@pytest.mark.parametrize("name", list(CROSS_REPLICA))
def test_cross_replica_methods_inside_run_say_to_use_merge_call(
    strategy: Strategy, name: str
) -> None:
    message = rf"{name} requires .*merge_call\(\)"
    if strategy is the_default_strategy() and name == "broadcast_to":
        message = "no devices to broadcast to"  # in any context

    def step() -> None:
        # NotImplementedError is a RuntimeError.
        with pytest.raises(RuntimeError, match=message):
            CROSS_REPLICA[name](strategy)

    strategy.run(step)


# -- run ---------------------------------------------------------------------------------------


def test_run_calls_once_per_replica_and_regroups(strategy: Strategy, replicas: int) -> None:
    shared = np.ones(2)
    value = per_replica(strategy, lambda i: 10.0 * i)

    def step(x: float, table: dict[str, Any], *, flag: bool) -> dict[str, Any]:
        assert flag
        return {"mine": x + 1, "nested": (table["x"], None), "shared": shared}

    result = strategy.run(step, args=[value, {"x": value}], kwargs={"flag": True})
    assert parts(strategy, result["mine"]) == [10.0 * i + 1 for i in range(replicas)]
    assert parts(strategy, result["nested"][0]) == [10.0 * i for i in range(replicas)]
    assert result["nested"][1] is None
    assert result["shared"] is shared, "the very same object of all is not distributed"
    assert isinstance(result["mine"], PerReplica) == (replicas > 1)


def test_run_takes_options_and_needs_no_scope(strategy: Strategy) -> None:
    options = RunOptions(experimental_enable_dynamic_batch_size=False)
    assert parts(strategy, strategy.run(replica, options=options))[0] == 0
    with strategy.scope():
        assert parts(strategy, strategy.run(replica))[0] == 0


@pytest.mark.parametrize(
    "args", [np.ones(2), {"a": 1}, "xy", 3], ids=["array", "dict", "str", "int"]
)
def test_positional_arguments_are_a_list_or_tuple(strategy: Strategy, args: Any) -> None:
    with pytest.raises(ValueError, match="positional args must be a list or tuple") as caught:
        strategy.run(lambda *_: None, args=args)
    assert caught.type is ValueError  # as TensorFlow's; that of ``schedule`` is a TypeError, too


@pytest.mark.parametrize("kwargs", [[], 3, "x"], ids=repr)
def test_keyword_arguments_are_a_mapping(strategy: Strategy, kwargs: Any) -> None:
    with pytest.raises(TypeError, match="kwargs must map names to values, got"):
        strategy.run(lambda: None, kwargs=kwargs)


def test_call_for_each_replica_is_run(strategy: Strategy, replicas: int) -> None:
    value = per_replica(strategy, lambda i: i)
    result = strategy.extended.call_for_each_replica(lambda x, y: x + y, (value,), {"y": 1})
    assert parts(strategy, result) == [i + 1 for i in range(replicas)]


def test_a_captured_per_replica_value_is_this_replicas_part(
    strategy: Strategy, replicas: int
) -> None:
    value = per_replica(strategy, lambda i: np.array([i, i]))
    sums = strategy.run(lambda: int(np.asarray(value).sum()))
    assert parts(strategy, sums) == [2 * i for i in range(replicas)]
    if replicas > 1:
        with strategy.scope(), pytest.raises(ValueError, match="is no array"):
            np.asarray(value)


# -- values ------------------------------------------------------------------------------------


def test_values_from_a_function_are_one_per_replica(strategy: Strategy, replicas: int) -> None:
    asked: list[ValueContext] = []

    def value_fn(given: ValueContext) -> Any:
        asked.append(given)
        return {"id": given.replica_id_in_sync_group, "same": "x"}

    value = strategy.experimental_distribute_values_from_function(value_fn)
    told = [(each.replica_id_in_sync_group, each.num_replicas_in_sync) for each in asked]
    assert told == [(i, replicas) for i in range(replicas)]
    assert parts(strategy, value) == [{"id": i, "same": "x"} for i in range(replicas)]
    if replicas > 1:
        assert isinstance(value["same"], PerReplica), "distributed, though it is the same"
    else:
        assert value == {"id": 0, "same": "x"}


def test_local_results_are_one_per_replica(strategy: Strategy, replicas: int) -> None:
    value = per_replica(strategy, lambda i: i)
    assert strategy.experimental_local_results(value) == tuple(range(replicas))
    assert strategy.unwrap(value) == tuple(range(replicas))
    assert strategy.experimental_local_results(7) == (7,)
    assert strategy.experimental_local_results(None) == (None,)
    nested = {"a": value, "b": [None]}
    assert strategy.experimental_local_results(nested) == tuple(
        {"a": i, "b": [None]} for i in range(replicas)
    )


def test_group_waits_for_nothing(strategy: Strategy) -> None:
    assert strategy.group(strategy.run(replica), name="step") is None  # type: ignore[func-returns-value]


# -- in a replica: all_reduce, all_gather, merge_call ------------------------------------------


@pytest.mark.parametrize("op", ["SUM", ReduceOp.MEAN], ids=["sum", "mean"])
def test_all_reduce_gives_every_replica_the_same_nested_result(
    strategy: Strategy, replicas: int, op: str | ReduceOp
) -> None:
    scale = 1 if op == "SUM" else replicas

    def step() -> Any:
        mine = np.array([1.0, replica()], np.float32)
        rows = rw.IndexedSlices(mine.reshape(1, 2), np.array([replica()]), (replicas, 2))
        return context().all_reduce(op, {"a": [mine, (rows,)], "b": 2.0})

    wanted = np.array([replicas, sum(range(replicas))])
    for result in parts(strategy, strategy.run(step)):
        np.testing.assert_allclose(result["a"][0], wanted / scale)
        assert result["b"] == 2.0 * replicas / scale
        rows = result["a"][1][0]
        assert isinstance(rows, rw.IndexedSlices)
        assert sorted(rows.indices.tolist()) == list(range(replicas))
        expected = np.stack([np.ones(replicas), np.arange(replicas)], axis=1) / scale
        np.testing.assert_allclose(rows.to_dense(), expected)


def test_all_gather_gives_every_replica_all_rows_in_order(
    strategy: Strategy, replicas: int
) -> None:
    def step() -> Any:
        mine = np.full((replica(), 1), replica())
        return context().all_gather({"x": (mine, mine.T)}, axis=0 if replicas == 1 else -2)

    def uneven() -> Any:
        return context().all_gather([np.full((replica() + 1, 2), replica())], axis=0)

    wanted = np.concatenate([np.full((i + 1, 2), i) for i in range(replicas)])
    for result in parts(strategy, strategy.run(uneven)):
        np.testing.assert_array_equal(result[0], wanted)
    if replicas > 1:
        with pytest.raises(ValueError, match="differ in more than axis"):
            strategy.run(step)
    with pytest.raises(ValueError, match="scalar"):
        strategy.run(lambda: context().all_gather(np.float32(1), axis=0))


def test_what_all_replicas_share_is_gathered_from_each(strategy: Strategy, replicas: int) -> None:
    shared = np.array([7, 8])
    for result in parts(strategy, strategy.run(lambda: context().all_gather(shared, 0))):
        np.testing.assert_array_equal(result, [7, 8] * replicas)


def test_a_replica_knows_itself(strategy: Strategy, replicas: int) -> None:
    def step() -> tuple[int, int, str, bool]:
        me = context()
        return (
            me.replica_id_in_sync_group,
            me.num_replicas_in_sync,
            me.devices[0],
            me.strategy is strategy,
        )

    devices = [f"{HERE}{device}" for device in strategy.extended.replica_devices]
    result = parts(strategy, strategy.run(step))
    assert result == [(i, replicas, devices[i], True) for i in range(replicas)]
