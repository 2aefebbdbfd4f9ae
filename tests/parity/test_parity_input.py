"""Batches are dealt out to replicas as in TensorFlow."""

from itertools import product
from typing import Any

import pytest

from helpers.parity import Same, Side, Windlass, alike, differ
from windlass.distribute.data.sharding import batch_sizes

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


def last_parts(count: int, batch: int, replicas: int, drop: bool) -> list[int]:
    """Sizes of the replicas' parts of the last step."""
    rest = batch if drop or not count % batch else count % batch
    sizes = [batch // replicas + (i < batch % replicas) for i in range(replicas)]
    return [max(0, min(size, rest - sum(sizes[:i]))) for i, size in enumerate(sizes)]


SPLITS = [
    *(("Mirrored", *sizes) for sizes in INPUT),
    # The others differ: the next test.
    *(("CentralStorage", *sizes) for sizes in INPUT if all(last_parts(*sizes))),
]


@pytest.mark.parametrize(("kind", "count", "batch", "replicas", "drop"), SPLITS, ids=str)
@alike()
def test_batches_are_split_alike(
    side: Side, kind: str, count: int, batch: int, replicas: int, drop: bool
) -> Any:
    strategy = side.strategy(kind, replicas)
    data = strategy.experimental_distribute_dataset(side.numbers(count, batch, drop_remainder=drop))
    return [strategy.experimental_local_results(step) for step in data]


@differ(theirs=[[2, 2]], ours=[[2, 2], [1, 0]])
def test_central_storage_gives_the_last_step_to_the_replicas_it_reaches(side: Side) -> Any:
    """TensorFlow leaves out, without a word, a last step in which a replica has nothing."""
    strategy = side.strategy("CentralStorage", 2)
    data = strategy.experimental_distribute_dataset(side.numbers(5, 4))
    return [[len(x) for x in strategy.experimental_local_results(step)] for step in data]


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_share_out_a_global_batch_alike(tf: Any, workers: int, replicas: int) -> None:
    """The sizes a worker cuts global batches into, over and over."""
    from tensorflow.python.data.experimental.ops.distribute import batch_sizes_for_worker

    for size, worker in product(range(1, 30), range(workers)):
        theirs = batch_sizes_for_worker(size, workers, replicas, worker)
        assert batch_sizes(size, workers, replicas, worker) == theirs.numpy().tolist()


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


@differ(theirs=[2, 2, 0], ours=[2, 1, 1])
def test_sizes_of_replicas_batches_differ_by_at_most_one(side: Side) -> Any:
    """TensorFlow promises it, but not under its default sharding: the parts are then rounded up."""
    data = (
        side.numbers(4, 4)
        if isinstance(side, Windlass)
        else side.root.data.Dataset.range(4).batch(4)
    )
    strategy = side.strategy("Mirrored", 3)
    (step,) = strategy.experimental_distribute_dataset(data)
    return [len(part) for part in strategy.experimental_local_results(step)]


@differ(
    theirs=[[[0, 1], [2, 3]], [[4, 0], [1, 2]], [[3, 4], []]],
    ours=[[[0, 1], [2, 3]], [[4], []], [[0, 1], [2, 3]], [[4], []]],
)
def test_batches_are_not_merged_across_the_short_last_one_of_an_epoch(side: Side) -> Any:
    """TensorFlow puts batches of known size end to end and cuts them anew: 4 and 0 1 2 are one
    step.
    """
    strategy = side.strategy("Mirrored", 2)
    data = strategy.experimental_distribute_dataset(side.numbers(5, 4).repeat(2))
    return [strategy.experimental_local_results(step) for step in data]


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
