"""What must not be done is the same built-in error as in TensorFlow."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.parity import (
    TWO,
    Both,
    Program,
    Ropewalk,
    Same,
    Side,
    alike,
    differ,
    distributed,
    replica,
)

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


def in_replica(side: Side, function: Callable[[Any], Any]) -> None:
    """Call ``function(strategy)`` on the replicas."""
    strategy = side.strategy("Mirrored", 2)
    strategy.run(lambda: function(strategy))


MISUSE: dict[str, dict[str, Program]] = {
    "RuntimeError": {
        "own_scope_in_run": lambda side: in_replica(
            side, lambda strategy: strategy.scope().__enter__()
        ),
        "run_in_run": lambda side: in_replica(side, lambda strategy: strategy.run(lambda: 1)),
        "reduce_in_replica": lambda side: in_replica(
            side, lambda strategy: strategy.reduce("SUM", side.array([1.0]), axis=None)
        ),
        "gather_in_replica": lambda side: in_replica(
            side, lambda strategy: strategy.gather(side.array([1.0]), axis=0)
        ),
        "set_strategy_in_run": lambda side: in_replica(
            side, side.distribute.experimental_set_strategy
        ),
        "copy_of_a_strategy": lambda side: copy.copy(side.strategy("Mirrored", 2)),
        "copy_of_the_default_strategy": lambda side: copy.copy(side.strategy("default")),
        "worker_devices_of_the_default_strategy": lambda side: (
            side.strategy("default").extended.worker_devices
        ),
        "parameter_devices_of_the_default_strategy": lambda side: (
            side.strategy("default").extended.parameter_devices
        ),
    },
    "AssertionError": {
        "a_device_twice": lambda side: side.distribute.MirroredStrategy(["/cpu:0", "/cpu:0"]),
    },
    "ValueError": {
        "negative_packs": lambda side: side.distribute.NcclAllReduce(-1),
        "negative_packs_of_copies": lambda side: side.distribute.HierarchicalCopyAllReduce(-1),
        "negative_bytes_per_pack": lambda side: side.distribute.experimental.CommunicationOptions(
            bytes_per_pack=-1
        ),
        "an_unknown_implementation": lambda side: side.distribute.experimental.CommunicationOptions(
            implementation="carrier pigeon"
        ),
    },
    "TypeError": {
        "length_of_per_replica": lambda side: len(
            distributed(side, side.strategy("Mirrored", 2), [1.0], [2.0])
        ),
        "element_of_per_replica": lambda side: distributed(
            side, side.strategy("Mirrored", 2), [1.0], [2.0]
        )[0],
        "per_replica_plus_one": lambda side: (
            distributed(side, side.strategy("Mirrored", 2), [1.0], [2.0]) + 1
        ),
        "a_union_of_what_is_no_resolver": lambda side: (
            side.distribute.cluster_resolver.UnionResolver(side.cluster_spec(TWO))
        ),
    },
}


def misuse(expected: str) -> Callable[[Program], Program]:
    """Add a program to the table of those that must fail, with the kind of error."""

    def register(program: Program) -> Program:
        MISUSE.setdefault(expected, {})[program.__name__] = program
        return program

    return register


@misuse("RuntimeError")
def scope_of_another_strategy(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope(), side.strategy("OneDevice").scope():
        pass


@misuse("RuntimeError")
def scope_of_the_default_strategy_in_another(side: Side) -> None:
    default = side.strategy("default")
    with side.strategy("Mirrored", 2).scope(), default.scope():
        pass


@misuse("RuntimeError")
def run_in_run_of_one_device(side: Side) -> None:
    strategy = side.strategy("OneDevice")
    strategy.run(lambda: strategy.run(lambda: 1))


@misuse("RuntimeError")
def run_in_run_of_the_default_strategy(side: Side) -> None:
    strategy = side.strategy("default")
    strategy.run(lambda: strategy.run(lambda: 1))


@misuse("RuntimeError")
def reduce_to_in_replica(side: Side) -> None:
    op = side.distribute.ReduceOp.SUM
    in_replica(side, lambda s: s.extended.reduce_to(op, side.array([1.0]), "/cpu:0"))


@misuse("RuntimeError")
def batch_reduce_to_in_replica(side: Side) -> None:
    op = side.distribute.ReduceOp.SUM
    in_replica(side, lambda s: s.extended.batch_reduce_to(op, [(side.array([1.0]), "/cpu:0")]))


@misuse("RuntimeError")
def set_strategy_in_scope(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        side.distribute.experimental_set_strategy(strategy)


@misuse("RuntimeError")
def merge_call_of_a_stale_context(side: Side) -> None:
    kept: list[Any] = []
    in_replica(side, lambda _: kept.append(side.distribute.get_replica_context()))
    kept[0].merge_call(lambda _: None)


@misuse("RuntimeError")
def all_reduce_of_a_stale_context(side: Side) -> None:
    kept: list[Any] = []
    in_replica(side, lambda _: kept.append(side.distribute.get_replica_context()))
    kept[0].all_reduce("SUM", side.array([1.0]))


@misuse("RuntimeError")
def merge_call_on_one_replica_alone(side: Side) -> None:
    def step(_: Any) -> None:
        if replica(side) == 0:
            side.distribute.get_replica_context().merge_call(lambda _: None)

    in_replica(side, step)


@misuse("RuntimeError")
def merge_call_once_more_on_one_replica(side: Side) -> None:
    def step(_: Any) -> None:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _: None)
        if replica(side) == 1:
            context.merge_call(lambda _: None)

    in_replica(side, step)


@misuse("KeyError")
def error_of_one_replica(side: Side) -> None:
    def step(_: Any) -> None:
        if replica(side) == 1:
            raise KeyError("mine")

    in_replica(side, step)


@misuse("KeyError")
def error_in_merge_call(side: Side) -> None:
    def merge(_: Any) -> None:
        raise KeyError("mine")

    in_replica(side, lambda _: side.distribute.get_replica_context().merge_call(merge))


@misuse("ValueError")
def colocation_with_a_variable_of_another_strategy(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        v = side.variable([1.0])
    other = side.strategy("Mirrored", 2)
    with other.scope(), other.extended.colocate_vars_with(v):
        side.variable([1.0])


@misuse("ValueError")
def synchronization_none(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        side.variable([1.0], synchronization="NONE")


@misuse("ValueError")
def aggregation_mean_of_integers(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        side.variable(np.array([1]), aggregation="MEAN")


@misuse("NotImplementedError")
def a_pipeline_per_replica_of_one_dataset(side: Side) -> None:
    mode = side.distribute.InputReplicationMode.PER_REPLICA
    options = side.distribute.InputOptions(experimental_replication_mode=mode)
    side.strategy("Mirrored", 2).experimental_distribute_dataset(side.numbers(4, 2), options)


@misuse("ValueError")
def next_in_run(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    iterator = iter(strategy.experimental_distribute_dataset(side.numbers(8, 4)))
    strategy.run(lambda: next(iterator))


@misuse("ValueError")
def shapes_that_differ(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    strategy.reduce("SUM", distributed(side, strategy, [1.0], [2.0, 3.0]), axis=None)


@misuse("AssertionError")
def reduce_to_a_list(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    strategy.extended.reduce_to(side.distribute.ReduceOp.SUM, value, ["/cpu:0"])


@pytest.mark.parametrize(
    ("expected", "name"), [(error, name) for error, names in MISUSE.items() for name in names]
)
def test_misuse_is_the_same_kind_of_error(same: Same, expected: str, name: str) -> None:
    assert same(MISUSE[expected][name]) == expected


@pytest.mark.parametrize("args", [1, "x", None, {}], ids=repr)
@alike(gives="ValueError")
def test_positional_arguments_are_a_list_or_tuple(side: Side, args: Any) -> Any:
    return side.strategy("Mirrored", 2).run(lambda: None, args=args)


@pytest.mark.parametrize("name", ["scope", "run"])
@alike(gives=None)
def test_inside_the_default_strategys_run_another_strategy_may_be_used(
    side: Side, name: str
) -> Any:
    strategy, default = side.strategy("Mirrored", 2), side.strategy("default")

    def use() -> None:
        if name == "run":
            strategy.run(lambda: None)
        else:
            with strategy.scope():
                pass

    return default.run(use)


def test_a_strategy_cannot_be_deep_copied_and_the_default_one_stays_itself(both: Both) -> None:
    """TensorFlow 2.21 copies a strategy, for some tests of Keras, and fails on the default one."""

    def of(kind: str) -> Program:
        def program(side: Side) -> Any:
            strategy = side.strategy(kind, 2)
            return copy.deepcopy(strategy) is strategy

        return program

    theirs, ours = both(of("Mirrored"))
    assert (theirs.get("value"), ours.get("error")) == (False, "RuntimeError")
    theirs, ours = both(of("default"))
    assert (theirs.get("error"), ours.get("value")) == ("RuntimeError", True)


@differ(theirs="value", ours="RuntimeError")
def test_values_per_replica_are_made_in_cross_replica_context(side: Side) -> None:
    """TensorFlow makes them on a replica too, one structure of all replicas' values on each."""
    make = "experimental_distribute_values_from_function"
    in_replica(side, lambda strategy: getattr(strategy, make)(lambda _: side.array([1.0])))


@differ(theirs="AssertionError", ours="ValueError")
def test_replicas_results_of_different_structure_are_a_value_error(side: Side) -> Any:
    """TensorFlow fails an assertion."""
    return side.strategy("Mirrored", 2).run(lambda: [1] * (1 + replica(side)))


@pytest.mark.parametrize("op", [None, 1], ids=repr)
@differ(theirs="AssertionError", ours="ValueError")
def test_what_is_no_op_at_all_is_a_value_error(side: Side, op: Any) -> Any:
    """TensorFlow fails an assertion; in all_reduce it takes whatever is not MEAN for SUM."""
    strategy = side.strategy("Mirrored", 2)
    return strategy.reduce(op, distributed(side, strategy, [1.0], [2.0]), axis=None)


@differ(theirs="value", ours="ValueError")
def test_a_device_that_is_not_here_is_refused_at_once(side: Side) -> Any:
    """TensorFlow makes the strategy, and fails when it is first used."""
    return side.distribute.MirroredStrategy(["/cpu:77"]) and None


@differ(theirs="value", ours="ValueError")
def test_variables_of_another_strategy_are_not_updated(side: Side) -> Any:
    """TensorFlow calls the function if the variable belongs to another MirroredStrategy."""
    own, other = side.strategy("Mirrored", 2), side.strategy("Mirrored", 2)
    with own.scope():
        v = side.variable([1.0])
    return other.extended.update(v, lambda _: None)


@pytest.mark.parametrize(
    "asked",
    [{"aggregation": "MEAN"}, {"synchronization": "NONE"}],
    ids=["mean-of-integers", "synchronization-none"],
)
@differ(theirs="value", ours="ValueError")
def test_what_no_strategy_allows_is_refused_by_the_default_one_too(
    side: Side, asked: dict[str, str]
) -> Any:
    """TensorFlow notices it only when the program is run under a strategy of several devices."""
    return side.variable(np.array([1]), **asked)


@differ(theirs="IndexError", ours="ValueError", words="Call the `batch` method")
def test_a_dataset_of_single_examples_says_to_batch(side: Side) -> Any:
    """TensorFlow promises the same, and an IndexError gets out of it (since 2.15 at least)."""
    data = (
        rw.data.as_dataset(lambda: iter(np.arange(4)))
        if isinstance(side, Ropewalk)
        else side.root.data.Dataset.range(4)
    )
    return list(side.strategy("Mirrored", 2).experimental_distribute_dataset(data))
