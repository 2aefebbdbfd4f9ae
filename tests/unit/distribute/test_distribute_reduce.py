"""One value out of one per replica: SUM and MEAN, over replicas and over axes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rows import row
from ropewalk.distribute import (
    CentralStorageStrategy,
    HierarchicalCopyAllReduce,
    Mirrored,
    MirroredStrategy,
    NcclAllReduce,
    ParameterServerStrategy,
    PerReplica,
    ReduceOp,
    Strategy,
)

KINDS: dict[str, Callable[[], Strategy]] = {
    "ParameterServer": ParameterServerStrategy,
    "CentralStorage": CentralStorageStrategy,
    "Mirrored": MirroredStrategy,
    "MirroredCopy": lambda: MirroredStrategy(cross_device_ops=HierarchicalCopyAllReduce()),
    "MirroredNccl": lambda: MirroredStrategy(cross_device_ops=NcclAllReduce()),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def strategy(request: pytest.FixtureRequest) -> Strategy:
    """Two replicas."""
    rw.config.set_logical_cpu_devices(2)
    made: Strategy = request.param()
    return made


def per(*values: Any) -> PerReplica:
    return PerReplica([np.asarray(value) for value in values])


def floats(*numbers: float) -> np.ndarray[Any, np.dtype[Any]]:
    return np.array(numbers, np.float32)


def test_an_op_is_named_in_any_case(strategy: Strategy) -> None:
    names: list[Any] = ["sum", "SUM", "Sum", ReduceOp.SUM]
    for op in names:
        with row(op):
            assert strategy.reduce(op, per(1.0, 2.0), axis=None) == 3.0


def test_another_op_is_refused_by_name(strategy: Strategy) -> None:
    names: list[Any] = ["max", "", None, 3]
    for op in names:
        with row(op), pytest.raises(ValueError, match="reduce_op must be SUM or MEAN"):
            strategy.reduce(op, per(1.0, 2.0), axis=None)


def test_axis_none_is_element_wise_over_replicas(strategy: Strategy) -> None:
    value = per(floats(1, 2), floats(3, 6))
    total, mean = strategy.reduce("SUM", value), strategy.reduce("MEAN", value)
    np.testing.assert_array_equal(total, floats(4, 8))
    np.testing.assert_array_equal(mean, floats(2, 4))
    assert total.dtype == mean.dtype == np.float32


def test_mean_over_an_axis_is_the_total_sum_over_the_total_count(strategy: Strategy) -> None:
    """Uneven replicas weigh by their size: (1+2+3+10)/4, not the mean of the means."""
    value = per(floats(1, 2, 3), floats(10))
    assert strategy.reduce("MEAN", value, axis=0) == 4.0
    assert strategy.reduce("SUM", value, axis=0) == 16.0
    assert strategy.reduce("MEAN", value, axis=0).dtype == np.float32


def test_an_empty_replica_counts_for_nothing(strategy: Strategy) -> None:
    assert strategy.reduce("MEAN", per(floats(1, 3), floats()), axis=0) == 2.0


def test_negative_and_tuple_axes(strategy: Strategy) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3.0).reshape(1, 3)
    np.testing.assert_allclose(
        strategy.reduce("MEAN", per(a, b), axis=0), np.concatenate([a, b]).mean(0)
    )
    assert strategy.reduce("MEAN", per(a, b), axis=(0, 1)) == np.concatenate([a, b]).mean()
    assert strategy.reduce("SUM", per(a, b), axis=(0, -1)) == a.sum() + b.sum()
    with pytest.raises(ValueError, match="differ in shape"):
        strategy.reduce("SUM", per(a, b), axis=-1)


def test_an_axis_is_an_integer_or_a_tuple_of_them(strategy: Strategy) -> None:
    for axis in [[0], 0.0, "0", True, (0, 1.0)]:
        with row(axis), pytest.raises(TypeError, match="axis must be an integer or a tuple of int"):
            strategy.reduce("SUM", per(np.ones((2, 2)), np.ones((2, 2))), axis=axis)


@pytest.mark.parametrize("axis", [1, -2, (0, 1)], ids=repr)
def test_an_axis_past_the_rank_is_refused(strategy: Strategy, axis: Any) -> None:
    with pytest.raises(ValueError, match=r"axis -?\d is out of range for a value of shape \(2,\)"):
        strategy.reduce("SUM", per(np.ones(2), np.ones(2)), axis=axis)


@pytest.mark.parametrize("axis", [None, 0], ids=["replicas", "axis"])
def test_the_mean_of_integers_is_a_float(strategy: Strategy, axis: int | None) -> None:
    mean = strategy.reduce("MEAN", per([1, 1], [2, 2]), axis=axis)
    assert mean.dtype == np.float64
    np.testing.assert_array_equal(mean, 1.5)


@pytest.mark.parametrize("axis", [None, 0], ids=["replicas", "axis"])
def test_the_mean_of_small_integers_does_not_wrap(strategy: Strategy, axis: int | None) -> None:
    value = per(np.array([200, 200], np.uint8), np.array([100, 100], np.uint8))
    np.testing.assert_array_equal(strategy.reduce("MEAN", value, axis=axis), 150.0)


def test_the_mean_of_booleans_is_the_fraction_that_is_true(strategy: Strategy) -> None:
    """``reduce("MEAN", predicted == label, axis=0)`` is the accuracy."""
    value = per(np.array([True, True, True]), np.array([False]))
    assert strategy.reduce("MEAN", value, axis=0) == 0.75


def test_the_mean_of_a_large_half_precision_batch_is_finite(strategy: Strategy) -> None:
    """Its sum is beyond float16, and so is its count."""
    value = per(np.full(40_000, 2, np.float16), np.full(40_000, 4, np.float16))
    mean = strategy.reduce("MEAN", value, axis=0)
    assert mean == 3.0
    assert mean.dtype == np.float16


def test_reducing_a_structure_reduces_its_leaves(strategy: Strategy) -> None:
    value = {"loss": per(1.0, 3.0), "more": (per(2, 2),)}
    assert strategy.reduce("SUM", value) == {"loss": 4.0, "more": (4,)}


def test_the_mean_of_what_is_not_distributed_is_itself(strategy: Strategy) -> None:
    value = object()
    assert strategy.reduce("MEAN", value) is value
    assert strategy.reduce("MEAN", floats(1, 3), axis=0) == 2.0


def test_the_sum_of_what_is_not_distributed_is_ambiguous_with_several_replicas(
    strategy: Strategy,
) -> None:
    for axis in (None, 0):
        with pytest.raises(ValueError, match="not distributed over 2 replicas"):
            strategy.reduce("SUM", np.ones(3), axis=axis)
    assert Strategy().reduce("SUM", 1.0) == 1.0
    assert Strategy().reduce("SUM", np.ones(3), axis=0) == 3.0


def test_zeros_that_are_not_distributed_add_up_to_zeros(strategy: Strategy) -> None:
    for zero in (0, 0.0, np.zeros(2)):
        np.testing.assert_array_equal(strategy.reduce("SUM", zero), zero)


def test_a_mirrored_value_is_its_own_mean_and_has_no_sum(strategy: Strategy) -> None:
    value = Mirrored([floats(1, 2)] * 2)
    np.testing.assert_array_equal(strategy.reduce("MEAN", value), floats(1, 2))
    with pytest.raises(ValueError, match="ambiguous"):
        strategy.reduce("SUM", value)


@pytest.mark.parametrize("name", ["SUM", "MEAN"])
def test_an_aggregation_names_a_reduction(name: str) -> None:
    assert ReduceOp.from_variable_aggregation(rw.VariableAggregation[name]) is ReduceOp[name]


@pytest.mark.parametrize("name", ["NONE", "ONLY_FIRST_REPLICA"])
def test_an_aggregation_that_is_no_reduction_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} .* only SUM and MEAN are reductions"):
        ReduceOp.from_variable_aggregation(rw.VariableAggregation[name])
