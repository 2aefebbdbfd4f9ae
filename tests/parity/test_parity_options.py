"""Losses, options and operations between devices are those of TensorFlow."""

from collections.abc import Callable
from typing import Any

import pytest

import ropewalk as rw
from helpers.parity import Same, Side, TensorFlow, alike, differ, distributed, outcomes, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


@pytest.mark.parametrize("size", [None, 4, 0, -1, 2.5], ids=repr)
@pytest.mark.parametrize("weights", [None, 2.0, [1.0, 3.0], [[1.0], [3.0]]], ids=repr)
@pytest.mark.parametrize("losses", [[1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], 1.0], ids=repr)
@alike()
def test_average_losses_are_the_same(side: Side, losses: Any, weights: Any, size: Any) -> Any:
    strategy = side.strategy("Mirrored", 2)
    loss = side.array(losses)
    weight = None if weights is None else side.array(weights)

    def step() -> Any:
        return side.root.nn.compute_average_loss(loss, weight, size)

    return strategy.reduce("SUM", strategy.run(lambda: step() + replica(side)), axis=None)


@pytest.mark.parametrize("name", ["compute_average_loss", "scale_regularization_loss"])
def test_losses_are_of_replicas(same: Same, name: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        scale = getattr(side.root.nn, name)
        loss = side.array([1.0, 2.0, 4.0])

        def in_scope() -> Any:
            with strategy.scope():
                return scale(loss)

        on_replicas = strategy.run(lambda: scale(loss) + replica(side))
        return [on_replicas, scale(loss), *outcomes(side, in_scope)]

    assert same(program)[-1] == "RuntimeError"


@alike()
def test_enumerations_have_the_same_members(side: Side) -> Any:
    data = side.root.data.experimental if isinstance(side, TensorFlow) else rw.data
    numbers = [data.AutoShardPolicy, side.root.VariableAggregation]
    names = [
        side.distribute.ReduceOp, side.distribute.InputReplicationMode,
        side.root.VariableSynchronization,
        side.distribute.experimental.CommunicationImplementation,
    ]  # fmt: skip
    return [
        [{member.name: int(member.value) for member in kind} for kind in numbers],
        [sorted(member.name for member in kind) for kind in names],
        int(data.SHARD_HINT),
    ]


@alike()
def test_cross_device_ops_are_the_same(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    ops = side.distribute.ReductionToOneDevice()
    total = side.distribute.ReduceOp.SUM
    value = distributed(side, strategy, [1.0], [2.0])
    return outcomes(
        side,
        lambda: ops.reduce(total, value, value),
        lambda: ops.reduce(total, value, "/cpu:1"),
        lambda: ops.reduce(side.distribute.ReduceOp.MEAN, value, value),
        lambda: ops.batch_reduce(total, [(value, value), (value, "/cpu:0")]),
        lambda: ops.broadcast(side.array([1.0]), value),
        lambda: ops.batch_reduce(total, [value]),
        lambda: ops.batch_reduce(total, (value, value)),
    )


@differ(theirs=[[1], "IndexError"], ours=["ValueError", []])
def test_what_cross_device_ops_reduce_is_distributed(side: Side) -> Any:
    """TensorFlow takes anything else for the value of one replica, and fails on an empty list."""
    ops, total = side.distribute.ReductionToOneDevice(), side.distribute.ReduceOp.SUM
    one = side.array([1.0])
    return outcomes(
        side, lambda: ops.reduce(total, one, "/cpu:0"), lambda: ops.batch_reduce(total, [])
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"bytes_per_pack": 1},
        {"timeout_seconds": 2.5},
        {"implementation": "ring"},
        {"implementation": "Nccl"},
        {"implementation": 3},
        {"timeout_seconds": 0},
    ],
    ids=str,
)
@alike()
def test_communication_options_are_the_same(side: Side, arguments: dict[str, Any]) -> Any:
    options = side.distribute.experimental.CommunicationOptions(**arguments)
    told = options.implementation
    return [options.bytes_per_pack, options.timeout_seconds, getattr(told, "name", told)]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"experimental_place_dataset_on_device": True},
        {"experimental_fetch_to_device": False, "experimental_per_replica_buffer_size": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["PER_WORKER", "PER_REPLICA"])
@alike()
def test_input_options_are_taken_alike(side: Side, mode: str, arguments: dict[str, Any]) -> Any:
    strategy = side.strategy("Mirrored", 2)
    modes = side.distribute.InputReplicationMode
    options = side.distribute.InputOptions(experimental_replication_mode=modes[mode], **arguments)
    data = strategy.distribute_datasets_from_function(lambda _: side.numbers(4, 2), options)
    return [strategy.experimental_local_results(step) for step in data]


@differ(theirs="value", ours="ValueError")
def test_a_negative_buffer_size_is_refused(side: Side) -> None:
    """TensorFlow takes it, and prepares as much ahead as it sees fit."""
    side.distribute.InputOptions(experimental_per_replica_buffer_size=-1)


TUPLES: dict[str, Callable[[Any], Any]] = {
    "is a tuple": lambda given: isinstance(given, tuple),
    "fields": lambda given: list(given._fields),
    "values": lambda given: [value for value in given if not hasattr(value, "name")],
    "replaced": lambda given: given._replace(**{given._fields[0]: False})[0],
    "as a dictionary": lambda given: list(given._asdict()),
    "equal": lambda given: given == type(given)(),
    "changed": lambda given: setattr(given, given._fields[0], False),
}


@pytest.mark.parametrize("use", TUPLES)
@pytest.mark.parametrize("kind", ["RunOptions", "InputOptions"])
@alike()
def test_options_are_named_tuples(side: Side, kind: str, use: str) -> Any:
    return TUPLES[use](getattr(side.distribute, kind)())
