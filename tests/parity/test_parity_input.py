"""Batches are dealt out to replicas as in TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.parity import Both, Same, Side, TensorFlow, alike

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

INPUT = [
    # elements, batch, replicas, drop_remainder
    (8, 4, 2, False), (7, 4, 2, False), (7, 4, 3, False), (7, 3, 2, True), (1, 4, 4, False),
    (5, 4, 4, False), (10, 4, 3, False), (3, 2, 3, False), (0, 2, 2, False), (9, 7, 4, False),
    (8, 4, 1, False), (6, 6, 4, True), (12, 5, 2, False), (4, 3, 4, False), (2, 1, 3, False),
    (4, 1, 2, False), (13, 6, 4, True), (3, 8, 3, False), (16, 8, 4, False), (11, 5, 3, True),
]  # fmt: skip


SPLITS = [(kind, *sizes) for kind in ("Mirrored", "CentralStorage") for sizes in INPUT]


@pytest.mark.parametrize(("kind", "count", "batch", "replicas", "drop"), SPLITS, ids=str)
@alike()
def test_batches_are_split_alike(
    side: Side, kind: str, count: int, batch: int, replicas: int, drop: bool
) -> Any:
    strategy = side.strategy(kind, replicas)
    data = strategy.experimental_distribute_dataset(side.numbers(count, batch, drop_remainder=drop))
    return [strategy.experimental_local_results(step) for step in data]


@pytest.mark.parametrize(("size", "replicas"), [(8, 2), (7, 2), (0, 3), (6, 3)], ids=str)
@alike()
def test_the_global_batch_is_divided_by_an_input_context_alike(
    side: Side, size: int, replicas: int
) -> Any:
    context = side.distribute.InputContext(2, 1, replicas)
    return [str(context), context.get_per_replica_batch_size(size)]


def test_structures_of_batches_are_split_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        data = strategy.experimental_distribute_dataset(side.pairs(5, 3))
        return [strategy.experimental_local_results(step) for step in data]

    assert len(same(program)) == 2


@pytest.mark.parametrize("repeated", ["batches", "elements"])
def test_epochs_are_cut_alike(same: Same, repeated: str) -> None:
    def program(side: Side) -> Any:
        numbers = side.root.data.Dataset.range(5)
        data = numbers.batch(4).repeat(2) if repeated == "batches" else numbers.repeat(2).batch(4)
        strategy = side.strategy("Mirrored", 2)
        return [
            strategy.experimental_local_results(step)
            for step in strategy.experimental_distribute_dataset(data)
        ]

    same(program)


def test_without_sharding_batches_are_cut_as_with_it(both: Both) -> None:
    """TensorFlow then puts batches of known size end to end, and fills replicas in order."""

    def program(side: Side) -> Any:
        options = side.root.data.Options()
        policies = (
            side.root.data.experimental.AutoShardPolicy
            if isinstance(side, TensorFlow)
            else (side.root.data.AutoShardPolicy)
        )
        options.experimental_distribute.auto_shard_policy = policies.OFF
        strategy = side.strategy("Mirrored", 2)
        data = side.numbers(6, 4).with_options(options)
        steps = strategy.experimental_distribute_dataset(data)
        return [[len(x) for x in strategy.experimental_local_results(step)] for step in steps]

    theirs, ours = both(program)
    assert theirs["value"] == [[2, 2], [2, 0]]
    assert ours["value"] == [[2, 2], [1, 1]]


DATASETS: dict[str, Callable[[Any], Any]] = {
    "range": lambda d: d.range(10, 2, -3),
    "slices": lambda d: d.from_tensor_slices({"x": np.ones((3, 2), "f4"), "y": (np.arange(3),)}),
    "slices-of-lists": lambda d: d.from_tensor_slices(([1.0, 2.0], [[3.0], [4.0]])),
    "tensors": lambda d: d.from_tensors((np.arange(3), np.ones(2))),
    "generator": lambda d: d.from_generator(
        lambda n: iter(range(int(n))), args=(3,), output_signature=d.range(1).element_spec
    ),
    "take": lambda d: d.range(5).take(3),
    "take-all": lambda d: d.range(5).take(-1),
    "skip": lambda d: d.range(5).skip(3),
    "skip-all": lambda d: d.range(5).skip(-1),
    "shard": lambda d: d.range(7).shard(3, 1),
    "repeat": lambda d: d.range(2).repeat(2),
    "repeat-forever": lambda d: d.range(3).repeat(),
    "repeat-minus-three": lambda d: d.range(3).repeat(-3),
    "repeat-never": lambda d: d.range(3).repeat(0),
    "batch": lambda d: d.range(5).batch(2),
    "batch-dropped": lambda d: d.range(5).batch(2, drop_remainder=True),
    "batch-of-rows": lambda d: d.from_tensor_slices(np.ones((5, 3), "f4")).batch(2, True),
    "batches-of-batches": lambda d: d.range(8).batch(2, True).batch(3),
    "unbatch": lambda d: d.range(5).batch(2).unbatch(),
    "map": lambda d: d.range(3).map(lambda x: (x, x * 2)).map(lambda x, y: {"s": x + y}),
    "map-parallel": lambda d: d.range(3).map(lambda x: x, num_parallel_calls=2, deterministic=True),
    "filter": lambda d: d.range(5).filter(lambda x: x % 2 == 0),
    "filter-repeat": lambda d: d.range(5).filter(lambda x: x % 2 == 0).repeat(),
    "filter-parts": lambda d: d.zip(d.range(3), d.range(3)).filter(lambda x, y: x + y > 1),
    "enumerate": lambda d: d.range(10, 12).enumerate(5),
    "enumerate-batches": lambda d: d.range(3).batch(2).enumerate(),
    "concatenate": lambda d: d.range(2).concatenate(d.range(5, 7)),
    "concatenate-endless": lambda d: d.range(2).concatenate(d.range(2).repeat()),
    "zip": lambda d: d.zip({"a": d.range(3), "b": (d.range(3), d.range(5))}),
    "zip-arguments": lambda d: d.zip(d.range(3), d.range(2)),
    "zip-endless": lambda d: d.zip((d.range(3).repeat(), d.range(2).repeat())),
    "cache": lambda d: d.range(3).cache(),
    "prefetch": lambda d: d.range(3).prefetch(-1),
    "apply": lambda d: d.range(3).apply(lambda data: data.batch(2)),
    "in-one-order": lambda d: d.range(3).shuffle(1, seed=2, reshuffle_each_iteration=False),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=list(DATASETS))
def test_datasets_have_the_same_elements_cardinality_and_spec(
    same: Same, make: Callable[[Any], Any]
) -> None:
    def program(side: Side) -> Any:
        data = make(side.root.data.Dataset)
        size = int(data.cardinality())
        specs = data.element_spec
        while isinstance(specs, dict | tuple) and not hasattr(specs, "dtype"):
            specs = next(iter(specs.values())) if isinstance(specs, dict) else specs[-1]
        spec = (
            f"{tuple(specs.shape)} {np.dtype(getattr(specs.dtype, 'as_numpy_dtype', specs.dtype))}"
        )
        return [
            list(data.take(9).as_numpy_iterator()),
            size,
            bool(data),
            len(data) if size >= 0 else -1,
            spec,
        ]

    same(program)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("buffer", [2, 9])
def test_what_is_shuffled_has_another_order_each_time_or_always_the_same(
    same: Same, buffer: int, seed: int | None
) -> None:
    """Other orders than TensorFlow's."""

    def program(side: Side) -> Any:
        plain = side.root.data.Dataset.range(40)
        anew, once = (plain.shuffle(buffer, seed, flag) for flag in (True, False))
        orders = [
            list(map(int, d.as_numpy_iterator())) for d in (anew, anew, once, once, anew.repeat(1))
        ]
        near = all(x < place + buffer for order in orders for place, x in enumerate(order))
        sets = [sorted(order) == list(range(40)) for order in orders]
        return [near, sets, orders[0] != orders[1], orders[2] == orders[3], orders[4] in orders[:2]]

    assert same(program)[2:] == [True, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.range(),
        lambda d: d.zip(3),
        lambda d: d.from_tensor_slices((np.ones(3), np.ones(2))),
        lambda d: d.from_tensor_slices(3),
        lambda d: len(d.range(3).repeat()),
        lambda d: len(d.range(3).filter(lambda x: x > 1)),
    ],
    ids=["range", "zip", "lengths", "scalar", "infinite", "unknown"],
)
def test_datasets_refuse_alike(both: Both, wrong: Callable[[Any], Any]) -> None:
    theirs, ours = both(lambda side: wrong(side.root.data.Dataset))
    assert theirs["error"] == ours["error"] in ("ValueError", "TypeError")


@pytest.mark.parametrize(
    ("count", "batch", "replicas"), [(8, 2, 2), (7, 2, 2), (5, 2, 3), (3, 1, 2)], ids=str
)
@alike()
def test_datasets_from_a_function_are_dealt_alike(
    side: Side, count: int, batch: int, replicas: int
) -> Any:
    strategy = side.strategy("Mirrored", replicas)
    seen: list[Any] = []

    def make(context: Any) -> Any:
        seen.append(
            [
                context.num_input_pipelines,
                context.input_pipeline_id,
                context.num_replicas_in_sync,
                str(context),
            ]
        )
        return side.numbers(count, batch)

    data = strategy.distribute_datasets_from_function(make)
    return [seen, [strategy.experimental_local_results(step) for step in data]]


@alike()
def test_a_number_beside_a_batch_is_zero_in_an_empty_one(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    data = strategy.distribute_datasets_from_function(
        lambda _: side.numbers(5, 2).enumerate(start=7)
    )
    return [[strategy.experimental_local_results(part) for part in step] for step in data]


@alike()
def test_groups_that_are_left_over_come_by_their_keys(side: Side) -> Any:
    numbers = side.root.data.Dataset.from_tensor_slices(np.array([5, -2, 3, 9, -2]))
    groups = numbers.group_by_window(lambda x: x, lambda _, group: group.batch(4), 4)
    return list(groups.as_numpy_iterator())


@pytest.mark.parametrize("batch", [None, 1, 2], ids=["single-examples", "of-1", "of-2"])
@pytest.mark.parametrize(
    ("kind", "per_replica"), [("Mirrored", False), ("Mirrored", True), ("CentralStorage", False)]
)
@alike()
def test_a_step_that_is_not_for_every_replica_is_dropped_with_the_remainder(
    side: Side, kind: str, batch: int | None, per_replica: bool
) -> Any:
    strategy = side.strategy(kind, 2)
    mode = side.distribute.InputReplicationMode["PER_REPLICA" if per_replica else "PER_WORKER"]

    def make(context: Any) -> Any:
        numbers = side.root.data.Dataset.range(7 + 2 * context.input_pipeline_id)
        return numbers if batch is None else numbers.batch(batch, drop_remainder=True)

    options = side.distribute.InputOptions(
        experimental_replication_mode=mode, experimental_fetch_to_device=False
    )
    data = strategy.distribute_datasets_from_function(make, options)
    return [strategy.experimental_local_results(step) for step in data]


@pytest.mark.parametrize(("count", "replicas"), [(8, 2), (5, 2), (3, 3), (0, 2)], ids=str)
@alike()
def test_get_next_as_optional_ends_alike(side: Side, count: int, replicas: int) -> Any:
    strategy = side.strategy("Mirrored", replicas)
    iterator = iter(strategy.experimental_distribute_dataset(side.numbers(count, 4)))
    steps = []
    while (step := iterator.get_next_as_optional()).has_value():
        steps.append(strategy.experimental_local_results(step.get_value()))
    return [steps, bool(iterator.get_next_as_optional().has_value())]


@pytest.mark.parametrize("how", ["next", "get_next", "get_value"])
def test_after_the_last_batch_there_is_none(same: Same, how: str) -> None:
    """TensorFlow's ``get_next`` raises OutOfRangeError where ours raises StopIteration."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        iterator = iter(strategy.experimental_distribute_dataset(side.numbers(2, 2)))
        next(iterator)
        if how == "get_value":
            return iterator.get_next_as_optional().get_value()
        return next(iterator) if how == "next" else iterator.get_next()

    assert same(program) == ("ValueError" if how == "get_value" else "StopIteration")


@alike(gives=15)
def test_a_distributed_dataset_is_reduced_alike(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    data = strategy.experimental_distribute_dataset(side.numbers(6, 4))
    return data.reduce(
        side.array(0, "int64"), lambda state, x: state + strategy.reduce("SUM", x, axis=0)
    )


SIZED: dict[str, Callable[[Side], Any]] = {
    "even": lambda side: side.numbers(8, 4),
    "with a rest": lambda side: side.numbers(10, 4),
    "without end": lambda side: side.numbers(8, 4).repeat(),
    "filtered": lambda side: side.numbers(8, 4).filter(lambda batch: True),
}


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("size", SIZED)
@alike()
def test_a_distributed_dataset_knows_its_cardinality(
    side: Side, size: str, by_function: bool
) -> Any:
    strategy = side.strategy("Mirrored", 2)
    if by_function:
        dataset = strategy.distribute_datasets_from_function(lambda _: SIZED[size](side))
    else:
        dataset = strategy.experimental_distribute_dataset(SIZED[size](side))
    return int(dataset.cardinality)


@pytest.mark.parametrize("elements", [8, 10, 9, 0], ids=str)
@alike()
def test_an_iterator_gives_optional_values_alike(side: Side, elements: int) -> Any:
    strategy = side.strategy("Mirrored", 2)
    iterator = iter(strategy.experimental_distribute_dataset(side.numbers(elements, 4)))
    found: list[Any] = []
    for _ in range(4):
        optional = iterator.get_next_as_optional()
        found.append(bool(optional.has_value()))
        if found[-1]:
            found.append(strategy.run(lambda batch: batch, args=(optional.get_value(),)))
    return [*found, optional.get_value()]
