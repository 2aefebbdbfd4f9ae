"""Small whole programs: a strategy, its values, input and contexts, one line of each."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.parity import Program, Same, Side, differ, distributed, outcomes, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


def mirrored(side: Side, replicas: int = 2) -> Any:
    return side.strategy("Mirrored", replicas)


def results(strategy: Any, value: Any) -> list[Any]:
    return list(strategy.experimental_local_results(value))


def numbers(side: Side, strategy: Any, count: int = 8, batch: int = 4) -> Any:
    return strategy.experimental_distribute_dataset(side.numbers(count, batch))


def of_values(function: Callable[[Any], Any]) -> Program:
    """What a function makes of a distributed value."""
    return lambda side: function(distributed(side, mirrored(side), 1.0, 2.0))


def of_variable(function: Callable[[Any], Any], value: Any = 1.0, **more: Any) -> Program:
    """What a function makes of a mirrored variable."""

    def program(side: Side) -> Any:
        with mirrored(side).scope():
            variable = side.variable(value, **more)
        return function(variable)

    return program


def in_replicas(function: Callable[[Side, Any], Any]) -> Program:
    """What a function, given the replica's context, returns on each."""

    def program(side: Side) -> Any:
        strategy = mirrored(side)
        context = side.distribute.get_replica_context
        return results(strategy, strategy.run(lambda: function(side, context())))

    return program


def of_input(function: Callable[[Side, Any, Any], Any]) -> Program:
    """What a function makes of a strategy and its dataset of eight numbers in two batches."""

    def program(side: Side) -> Any:
        strategy = mirrored(side)
        return function(side, strategy, numbers(side, strategy))

    return program


def in_scope_of_another(function: Callable[[Side, Any, Any], Any]) -> Program:
    """What a function makes of a strategy and its variable, in the scope of another strategy."""

    def program(side: Side) -> Any:
        strategy, other = mirrored(side), mirrored(side)
        with strategy.scope():
            variable = side.variable(1.0)
        with other.scope():
            return function(side, strategy, variable)

    return program


def of_functions(function: Callable[[Side, Any], Any]) -> Program:
    """Batches of a dataset made by a function, which is given what it is told."""

    def program(side: Side) -> Any:
        strategy = mirrored(side)
        data = strategy.distribute_datasets_from_function(lambda context: function(side, context))
        return [results(strategy, each) for each in data]

    return program


def told(context: Any) -> list[int]:
    return [context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync]


def steps(strategy: Any, data: Any) -> list[Any]:
    return [results(strategy, each) for each in data]


def reduced_by_name(side: Side) -> Any:
    value = distributed(side, mirrored(side), 1.0, 2.0)
    ops = side.distribute.ReductionToOneDevice()
    return outcomes(
        side,
        lambda: ops.reduce("SUM", value, value),
        lambda: ops.reduce("mean", value, value),
        lambda: ops.batch_reduce("SUM", [(value, value)]),
        lambda: side.distribute.HierarchicalCopyAllReduce().reduce("SUM", value, value),
    )


def merged(side: Side, context: Any) -> Any:
    mine = side.array(float(replica(side)))
    return context.merge_call(
        lambda strategy, x, more=0: strategy.reduce("SUM", x, axis=None) + more,
        args=(mine,),
        kwargs={"more": 10},
    )


def next_after_the_end(side: Side, strategy: Any, data: Any) -> Any:
    iterator = iter(data)
    list(iterator)
    optional = iterator.get_next_as_optional()
    return outcomes(side, lambda: next(iterator), lambda: next(iterator), optional.get_value)


def per_replica(side: Side, make: Callable[[int], Any]) -> Any:
    strategy = mirrored(side)
    value = strategy.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group)
    )
    return results(strategy, value)


PROGRAMS: dict[str, Program] = {
    # Values.
    "ops-take-no-names": reduced_by_name,
    "values-deepcopy": of_values(copy.deepcopy),
    "values-equal": of_values(lambda x: [x == x, hash(x) == hash(x)]),
    "values-len": of_values(len),
    "values-iterate": of_values(list),
    "values-index": of_values(lambda x: x[0]),
    "values-add": of_values(lambda x: x + 1),
    "values-float": of_values(float),
    "values-bool": of_values(bool),
    "values-tuple": of_values(lambda x: type(x.values).__name__),
    "values-kind": of_values(lambda x: type(x).__name__),
    "values-none": lambda side: per_replica(side, lambda _: None),
    "values-dict": lambda side: per_replica(side, lambda i: {"a": side.array(float(i))}),
    "values-ragged": lambda side: per_replica(side, lambda i: side.array([1.0] * (i + 1))),
    "values-mixed": lambda side: per_replica(
        side, lambda i: side.array(1, "int32" if i else "float32")
    ),
    "values-no-function": lambda side: mirrored(side).experimental_distribute_values_from_function(
        3
    ),
    "local-results-tuple": lambda side: (
        type(mirrored(side).experimental_local_results(side.array(1.0))).__name__
    ),
    "contexts-equal": lambda side: [
        side.distribute.InputContext(2, 1, 2) == side.distribute.InputContext(2, 1, 2),
        side.distribute.experimental.ValueContext(0, 2)
        == side.distribute.experimental.ValueContext(0, 2),
    ],
    "context-set": lambda side: setattr(side.distribute.InputContext(), "num_input_pipelines", 3),
    "context-copies": lambda side: [
        told(copy.deepcopy(side.distribute.InputContext(2, 1, 2))),
        told(pickle.loads(pickle.dumps(side.distribute.InputContext(3, 1, 2)))),  # noqa: S301 - ours
    ],
    "batch-size-negative": lambda side: side.distribute.InputContext(
        1, 0, 2
    ).get_per_replica_batch_size(-8),
    "batch-size-word": lambda side: side.distribute.InputContext(
        1, 0, 2
    ).get_per_replica_batch_size("8"),
    "batch-size-of-none": lambda side: side.distribute.InputContext(
        1, 0, 0
    ).get_per_replica_batch_size(8),
    "options-equal": lambda side: [
        side.distribute.InputOptions() == side.distribute.InputOptions(),
        side.distribute.RunOptions() == side.distribute.RunOptions(),
        len(tuple(side.distribute.RunOptions())),
    ],
    "options-of-run": lambda side: results(
        strategy := mirrored(side),
        strategy.run(lambda: replica(side), options=side.distribute.RunOptions()),
    ),
    # Variables.
    "variable-arithmetic": of_variable(lambda v: [v + 1, 2 * v, -v, v**2, v // 2, v % 2, abs(v)]),
    "variable-compare": of_variable(lambda v: [v > 0, v < 0, v >= 1]),
    "variable-index": of_variable(lambda v: [v[0], v[1:]], [1.0, 2.0, 3.0]),
    "variable-iterate": of_variable(list, [1.0, 2.0]),
    "variable-trainable": of_variable(lambda v: v.trainable),
    "variable-on-read": of_variable(
        lambda v: v.trainable, synchronization="ON_READ", aggregation="SUM"
    ),
    "variable-of-nothing": of_variable(lambda v: v, None),
    "variable-other-shape": of_variable(lambda v: v.assign([1.0]), [1.0, 2.0]),
    # Contexts.
    "merge": in_replicas(merged),
    "merge-of-no-function": in_replicas(lambda _, context: context.merge_call(3)),
    "merge-without-result": in_replicas(lambda _, context: context.merge_call(lambda _: None)),
    "all-reduce-of-a-dict": in_replicas(
        lambda side, context: context.all_reduce("MEAN", {"a": side.array(float(replica(side)))})
    ),
    "all-reduce-of-another-op": in_replicas(
        lambda side, context: context.all_reduce("MAX", side.array(1.0))
    ),
    "all-gather-of-other-lengths": in_replicas(
        lambda side, context: context.all_gather(side.array([1.0] * (replica(side) + 1)), axis=0)
    ),
    "all-gather-of-scalars": in_replicas(
        lambda side, context: context.all_gather(side.array(1.0), axis=0)
    ),
    "run-of-nothing": lambda side: mirrored(side).run(None),
    "run-gives-mixed": in_replicas(
        lambda side, _: (side.array(1.0), None, {"k": side.array(float(replica(side)))})
    ),
    # Another strategy's scope.
    "another-run": in_scope_of_another(lambda _, strategy, __: strategy.run(lambda: 1)),
    "another-next": in_scope_of_another(
        lambda side, strategy, _: next(iter(numbers(side, strategy)))
    ),
    "another-optional": in_scope_of_another(
        lambda side, strategy, _: bool(
            iter(numbers(side, strategy)).get_next_as_optional().has_value()
        )
    ),
    "another-values": in_scope_of_another(
        lambda side, strategy, _: results(strategy, distributed(side, strategy, 1.0, 2.0))
    ),
    "another-assign": in_scope_of_another(lambda _, __, variable: variable.assign(2.0)),
    "another-update": in_scope_of_another(
        lambda _, strategy, variable: strategy.extended.update(variable, lambda c: c.assign(2.0))
    ),
    "default-run": in_scope_of_another(lambda side, _, __: side.strategy("default").run(list)),
    # Input.
    "input-twice": of_input(lambda _, s, data: [steps(s, data), steps(s, data)]),
    "input-len": of_input(lambda _, __, data: len(data)),
    "input-true": of_input(lambda _, __, data: bool(data)),
    "input-iterator": of_input(lambda _, __, data: iter(it := iter(data)) is it),
    "input-after-its-end": of_input(next_after_the_end),
    "input-reduce": of_input(
        lambda side, s, data: data.reduce(
            side.array(0, "int64"), lambda state, x: state + s.reduce("SUM", x, axis=0)
        )
    ),
    "input-in-a-replica": of_input(lambda _, s, data: s.run(lambda: next(iter(data)))),
    "input-of-functions": of_functions(lambda side, _: side.numbers(8, 2)),
    "input-of-odd-batches": of_functions(lambda side, _: side.numbers(6, 2)),
    "input-that-is-told": of_functions(
        lambda side, context: side.root.data.Dataset.from_tensors(
            side.array(told(context), "int32")
        ).repeat(2)
    ),
    "input-of-no-function": lambda side: list(mirrored(side).distribute_datasets_from_function(3)),
    "input-of-a-dataset": lambda side: list(
        mirrored(side).distribute_datasets_from_function(side.numbers(4, 2))
    ),
    "input-that-fails": of_functions(lambda _, context: told(context)[9]),
    "reduce-over-axes": lambda side: (strategy := mirrored(side)).reduce(
        "MEAN", distributed(side, strategy, [[1.0, 2.0]], [[3.0, 4.0]]), axis=(0, 1)
    ),
    "reduce-over-a-list": lambda side: (strategy := mirrored(side)).reduce(
        "SUM", distributed(side, strategy, [1.0], [3.0]), axis=[0]
    ),
    "gather-over-another-axis": lambda side: (strategy := mirrored(side)).gather(
        distributed(side, strategy, [1.0], [2.0]), axis=3
    ),
    "communication-options": lambda side: side.distribute.experimental.CommunicationOptions(
        bytes_per_pack=-1
    ),
    "no-devices": lambda side: side.distribute.MirroredStrategy([]).num_replicas_in_sync > 0,
    "devices-twice": lambda side: side.distribute.MirroredStrategy(["/cpu:0", "/cpu:0"]),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_programs_give_the_same(program: Program, same: Same) -> None:
    same(program)


@differ(theirs="value", ours="RuntimeError", words="Must not copy a strategy")
def test_a_strategy_is_not_copied(side: Side) -> Any:
    """TensorFlow makes a second one, which has none of the first one's variables."""
    return type(copy.deepcopy(mirrored(side))).__name__


@differ(theirs="RuntimeError", ours=1.0)
def test_a_variable_can_be_read_under_another_strategy(side: Side) -> Any:
    """It changes nothing."""
    read: Callable[[Side, Any, Any], Any] = lambda _, __, variable: np.asarray(  # noqa: E731
        variable.read_value()
    )
    return in_scope_of_another(read)(side)
