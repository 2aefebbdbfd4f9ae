"""How variables are made: by creators in scope, by parts, and not in every step."""

import gc
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute import (
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
)
from ropewalk.distribute.experimental import partitioners


@pytest.fixture(params=["one device", "mirrored", "ps", "ps with replicas"])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    if request.param in ("mirrored", "ps with replicas"):
        rw.config.set_logical_cpu_devices(2)
    if request.param.startswith("ps"):
        return ParameterServerStrategy()
    return MirroredStrategy() if request.param == "mirrored" else OneDeviceStrategy("cpu:0")


# -- in run ------------------------------------------------------------------------------------


def test_a_variable_made_in_every_step_is_an_error_that_says_where(strategy: Strategy) -> None:
    def step() -> float:
        w = rw.Variable(1.0, name="w")
        return float(w)

    strategy.run(step)
    gc.collect()
    line = step.__code__.co_firstlineno + 1
    with pytest.raises(
        ValueError, match=rf"{__file__}:{line} creates variable 'w' in every .*scope"
    ):
        strategy.run(step)


def test_a_layer_that_is_built_when_first_called_keeps_its_variable(strategy: Strategy) -> None:
    made: dict[str, Any] = {}

    def step() -> None:
        if "w" not in made:
            made["w"] = rw.Variable(
                1.0, name="w", aggregation=rw.VariableAggregation.ONLY_FIRST_REPLICA
            )
        made["w"].assign_add(1.0)

    for _ in range(3):
        strategy.run(step)
    assert float(made["w"].numpy()) == 4.0
    made.clear()  # a second model, by the same lines
    strategy.run(step)
    assert made["w"].name == "w_1"


# -- creators ----------------------------------------------------------------------------------


def test_creators_see_all_arguments_the_last_one_first(strategy: Strategy) -> None:
    seen: list[tuple[str, Any]] = []

    def creator(label: str) -> Any:
        def create(next_creator: Any, **kwargs: Any) -> Any:
            seen.append((label, kwargs["name"]))
            return next_creator(**{**kwargs, "name": f"{label}_{kwargs['name']}"})

        return create

    with strategy.scope(), rw.variable_creator_scope(creator("outer")):
        with rw.variable_creator_scope(creator("inner")):
            v = rw.Variable([1.0, 2.0], False, "v")
        only_outer = rw.Variable(1.0, name="u")
    after = rw.Variable(1.0, name="w")
    assert seen == [("inner", "v"), ("outer", "inner_v"), ("outer", "u")]
    assert (v.name, v.trainable, v.strategy) == ("outer_inner_v", False, strategy)
    assert (only_outer.name, after.name) == ("outer_u", "w")


def test_a_creator_may_return_what_it_likes() -> None:
    shared = rw.Variable(1.0)
    with rw.variable_creator_scope(lambda next_creator, **kwargs: shared):
        assert rw.Variable(2.0) is shared


# -- initial values by parts -------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_an_initial_value_is_made_part_by_part(parts: int) -> None:
    asked: list[tuple[Any, Any]] = []

    def rows(partition_shape: Any, partition_offset: Any) -> Any:
        asked.append((partition_shape, partition_offset))
        return np.arange(partition_offset[0], partition_offset[0] + partition_shape[0])[:, None]

    strategy = ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(parts)
    )
    with strategy.scope():
        v = rw.Variable(rows, shape=(7, 1), dtype=np.float32, name="v")
    np.testing.assert_array_equal(v.numpy()[:, 0], np.arange(7))
    whole = [((7, 1), (0, 0))]
    assert asked == (
        whole if parts == 1 else [((3, 1), (0, 0)), ((2, 1), (3, 0)), ((2, 1), (5, 0))]
    )


def test_a_function_that_ignores_its_part_gives_the_whole() -> None:
    def everything(**kwargs: Any) -> Any:
        return np.arange(4.0)

    strategy = ParameterServerStrategy(variable_partitioner=partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        v = rw.Variable(everything, shape=(4,), dtype=np.float32)
    np.testing.assert_array_equal(v.numpy(), [0, 1, 2, 3])


def test_every_strategy_calls_it(strategy: Strategy) -> None:
    with strategy.scope():
        v = rw.Variable(
            lambda partition_shape, partition_offset: np.full(partition_shape, 5.0),
            shape=(2, 2),
            dtype=np.float32,
        )
        scalar = rw.Variable(lambda **part: 3.0, shape=(), dtype=np.float32)
    np.testing.assert_array_equal(v.numpy(), np.full((2, 2), 5.0))
    assert float(scalar.numpy()) == 3.0


def test_a_part_of_another_shape_is_an_error_with_both() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\); asked for were partition_shape=\(2,\)"):
        rw.Variable(lambda partition_shape, partition_offset: np.zeros(3), shape=(2,))


def test_an_initializer_may_be_given_by_its_name(strategy: Strategy) -> None:
    with strategy.scope():
        v = rw.Variable(initializer="ones", shape=(2, 2), name="v")
    np.testing.assert_array_equal(v.numpy(), np.ones((2, 2)))


@pytest.mark.parametrize("given", [lambda: np.zeros(3), np.zeros(3)], ids=["function", "array"])
def test_another_kind_of_initializer_is_an_error_that_says_where_it_goes(given: Any) -> None:
    with pytest.raises(TypeError, match=r"of 'v': .* a function or an array is an initial_value"):
        rw.Variable(initializer=given, shape=(3,), name="v")
