"""Reducing and gathering give the numbers of TensorFlow."""

from typing import Any

import numpy as np
import pytest

from helpers.parity import Same, Side, alike, differ, distributed, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

OPS = ["SUM", "MEAN"]
UNEVEN = [np.arange(6).reshape(3, 2), np.arange(2).reshape(1, 2), np.zeros((0, 2))]


@pytest.mark.parametrize("op", ["sum", "Mean", "MEAN", "max", ""])
@alike()
def test_ops_are_named_in_any_case(side: Side, op: str) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    return [
        strategy.reduce(op, value, axis=None),
        strategy.extended.reduce_to(op, value, "/cpu:0"),
        strategy.run(
            lambda x: side.distribute.get_replica_context().all_reduce(op, x), args=(value,)
        ),
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("axis", [None, 0], ids=["replicas", "axis-0"])
@pytest.mark.parametrize("op", OPS)
@alike()
def test_reduce_gives_the_same_numbers(side: Side, op: str, axis: int | None, dtype: str) -> Any:
    strategy = side.strategy("Mirrored", 3)
    value = distributed(side, strategy, [1, 5], [2, 6], [4, 9], dtype=dtype)
    return strategy.reduce(op, value, axis=axis)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@alike(gives=[1.5, "float64"])
def test_the_mean_of_integers_is_float64(side: Side, dtype: str) -> Any:
    strategy = side.strategy("Mirrored", 2)
    mean = strategy.reduce("MEAN", distributed(side, strategy, 1, 2, dtype=dtype), axis=None)
    return [mean, np.asarray(mean).dtype.name]


@pytest.mark.parametrize(
    "axis",
    [0, 1, -1, -2, 2, -3, (0,), (0, 1), (1, 0), (-1,), (0, 5), (), [0], 0.5, "x"],
    ids=repr,
)
@pytest.mark.parametrize("op", OPS)
@alike()
def test_reduce_of_uneven_batches_over_any_axis_is_the_same(side: Side, op: str, axis: Any) -> Any:
    strategy = side.strategy("Mirrored", 3)
    return strategy.reduce(op, distributed(side, strategy, *UNEVEN), axis=axis)


@pytest.mark.parametrize("axis", [None, 0, 1], ids=repr)
@pytest.mark.parametrize("kind", ["number", "array", "mirrored"])
@alike()
def test_the_mean_of_what_is_not_distributed_is_the_same(
    side: Side, kind: str, axis: int | None
) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value: Any = {"number": 2.5, "array": side.array([1.0, 2.0])}.get(kind)
    if kind == "mirrored":
        per_replica = distributed(side, strategy, [1.0], [2.0])
        value = strategy.extended.reduce_to("SUM", per_replica, per_replica)
    return strategy.reduce("MEAN", value, axis=axis)


@pytest.mark.parametrize("value", [1, 2.5, [1.0, 2.0]], ids=repr)
@alike(gives="ValueError")
def test_the_sum_of_what_is_not_distributed_is_a_value_error(side: Side, value: Any) -> Any:
    given = side.array(value) if isinstance(value, list) else value
    return side.strategy("Mirrored", 2).reduce("SUM", given, axis=None)


@differ(theirs=6, ours="ValueError")
def test_the_sum_of_what_is_not_distributed_is_ambiguous_over_an_axis_too(side: Side) -> Any:
    """TensorFlow then counts it once for each replica."""
    return side.strategy("Mirrored", 2).reduce("SUM", side.array([1.0, 2.0]), axis=0)


@pytest.mark.parametrize("zeros", [0, [0.0, 0.0]], ids=repr)
@differ(theirs=("AttributeError", "ValueError"), ours=True)
def test_zeros_add_up_to_zeros(side: Side, zeros: Any) -> Any:
    """TensorFlow means to allow it, and fails: on a number by an AttributeError."""
    given = side.array(zeros) if isinstance(zeros, list) else zeros
    total = side.strategy("Mirrored", 2).reduce("SUM", given, axis=None)
    return not np.any(total)


@differ(theirs="AssertionError", ours="ValueError")
def test_the_sum_of_what_is_mirrored_is_a_value_error(side: Side) -> Any:
    """TensorFlow fails an assertion without a word."""
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    mirrored = strategy.extended.reduce_to("SUM", value, value)
    return strategy.reduce("SUM", mirrored, axis=None)


@alike()
def test_structures_are_reduced_leaf_by_leaf(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    return strategy.reduce("SUM", {"a": value, "b": (value, [value])}, axis=None)


@pytest.mark.parametrize("op", OPS)
@alike()
def test_indexed_slices_are_concatenated(side: Side, op: str) -> Any:
    strategy = side.strategy("Mirrored", 2)
    rows = [side.slices([[1.0]], [0], 3), side.slices([[2.0], [4.0]], [1, 0], 3)]
    value = strategy.experimental_distribute_values_from_function(
        lambda context: rows[context.replica_id_in_sync_group]
    )
    context = side.distribute.get_replica_context
    return [
        strategy.reduce(op, value, axis=None),
        strategy.run(lambda: context().all_reduce(op, rows[replica(side)])),
    ]


GATHERED = [
    pytest.param([np.ones((2, 2)), np.zeros((2, 2))], id="even"),
    pytest.param([np.ones((2, 2)), np.zeros((1, 2))], id="rows-differ"),
    pytest.param([np.ones((2, 2)), np.zeros((2, 1))], id="columns-differ"),
    pytest.param([np.ones((2, 2)), np.zeros((0, 2))], id="one-is-empty"),
    pytest.param([np.ones((2, 2)), np.ones(2)], id="ranks-differ"),
    pytest.param([1.0, 2.0], id="scalars"),
]


@pytest.mark.parametrize("values", GATHERED)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("on_replicas", [False, True], ids=["gather", "all_gather"])
@alike()
def test_gather_and_all_gather_are_the_same(
    side: Side, on_replicas: bool, axis: int, values: list[Any]
) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, *values)
    if not on_replicas:
        return strategy.gather(value, axis=axis)
    context = side.distribute.get_replica_context
    return strategy.run(lambda x: context().all_gather(x, axis), args=(value,))


@differ(theirs=[1, 2], ours=[1, 2, 1, 2])
def test_gather_takes_what_is_not_distributed_once_for_each_replica(side: Side) -> Any:
    """TensorFlow gives it back as it is, as if there were one replica."""
    return side.strategy("Mirrored", 2).gather(side.array([1.0, 2.0]), axis=0)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_gives_every_replica_the_same(same: Same, op: str, dtype: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 3)
        context = side.distribute.get_replica_context
        value = distributed(side, strategy, [1], [2], [6], dtype=dtype)
        results = strategy.run(
            lambda x: context().all_reduce(op, {"a": x, "b": [x, x]}), args=(value,)
        )
        return [results, strategy.experimental_local_results(results)]

    assert len(same(program)[1]) == 3


@differ(
    theirs=[{"PerReplica": [[5], [5]]}, {"PerReplica": [[5], [5]]}],
    ours=[{"PerReplica": [[10], [10]]}, {"PerReplica": [[5, 5], [5, 5]]}],
)
def test_an_object_all_replicas_share_counts_once_for_each(side: Side) -> Any:
    """TensorFlow takes what is the very same object everywhere for one value, and does not add it
    up.
    """
    shared = side.array([5.0])
    context = side.distribute.get_replica_context
    strategy = side.strategy("Mirrored", 2)
    return [
        strategy.run(lambda: context().all_reduce("SUM", shared)),
        strategy.run(lambda: context().all_gather(shared, 0)),
    ]


@differ(theirs="ValueError", ours=[{"PerReplica": [2.0, 2.0]}, {"PerReplica": [4, 4]}])
def test_a_replica_reduces_integers_and_floats_together(side: Side) -> Any:
    """TensorFlow has the one on the host and the other on the device, and refuses both at once."""
    parts = {"loss": side.array(1.0), "examples": side.array(2, "int32")}
    context = side.distribute.get_replica_context
    reduced = side.strategy("Mirrored", 2).run(lambda: context().all_reduce("SUM", parts.copy()))
    return [reduced["loss"], reduced["examples"]]


@pytest.mark.parametrize("kind", ["default", "OneDevice"])
@alike()
def test_with_one_replica_everything_is_the_value(side: Side, kind: str) -> Any:
    strategy, x = side.strategy(kind), side.array([1.0, 2.0])
    context = side.distribute.get_replica_context
    return [
        strategy.run(lambda: x),
        strategy.reduce("SUM", x, axis=None),
        strategy.reduce("SUM", x, axis=0),
        strategy.reduce("MEAN", x, axis=0),
        strategy.gather(x, axis=0),
        strategy.experimental_local_results(x),
        strategy.experimental_distribute_values_from_function(lambda _: x),
        strategy.run(lambda: context().all_reduce("SUM", x)),
        strategy.run(lambda: context().all_gather(x, 0)),
        strategy.run(lambda: context().merge_call(lambda _, y: y * 2.0, args=(x,))),
    ]


@pytest.mark.parametrize("op", OPS)
@alike()
def test_reduce_to_and_batch_reduce_to_are_the_same(side: Side, op: str) -> Any:
    strategy = side.strategy("Mirrored", 2)
    extended, reduce_op = strategy.extended, side.distribute.ReduceOp[op]
    with strategy.scope():
        v = side.variable([1.0, 2.0])
    value = distributed(side, strategy, [1.0, 2.0], [3.0, 5.0])
    return [
        extended.reduce_to(reduce_op, value, v),
        extended.reduce_to(reduce_op, value, value),
        extended.reduce_to(reduce_op, value, "/cpu:1"),
        extended.batch_reduce_to(reduce_op, [(value, v), (value, "/cpu:0")]),
    ]
