"""An iterator's place can be kept, and found again in the same order: also in another process."""

import json
from itertools import islice

import numpy as np
import pytest

from helpers.input_workers import (
    DATA,
    HINT,
    OFF,
    batches,
    listed,
    lists,
    mirrored,
    of_files,
    shared,
    steps_of,
    with_policy,
)
from ropewalk.distribute import InputOptions
from ropewalk.distribute.data import Dataset, as_dataset, from_arrays

pytestmark = pytest.mark.usefixtures("plain_process")


def fixed_order() -> Dataset:
    """Batches of 2, on each worker in an order of its own, the same in every pass."""
    return Dataset.range(20).shuffle(20).batch(2).cache()


@pytest.mark.parametrize("replicas", [1, 2, 3], ids=["1-replica", "2-replicas", "3-replicas"])
@pytest.mark.parametrize(
    "dataset",
    [
        from_arrays(np.arange(10), 4, seed=3, epochs=2),
        from_arrays(np.arange(10), 4, seed=3, epochs=2).map(lambda x: x + 1),
        Dataset.range(10).shuffle(4, seed=1).batch(4).repeat(2),
        Dataset.from_tensor_slices(np.arange(10)).shuffle(10).repeat(2).batch(3),
        Dataset.range(9).shuffle(9).cache().batch(4).enumerate().map(lambda i, x: x + i),
        listed(22, 4),
        as_dataset(np.arange(10)).shard(2, 1).batch(2).repeat(2),
        of_files(4, 3).batch(5),
    ],
    ids=["arrays", "mapped", "shuffled", "slices", "cached", "list", "sharded", "files"],
)
def test_an_iterator_goes_on_exactly_where_another_was(dataset: Dataset, replicas: int) -> None:
    """Also in another process, and in another pass: the state is plain data."""
    strategy = mirrored(replicas)
    data = strategy.experimental_distribute_dataset(dataset)
    steps_of(data)  # so that it is not the first pass
    for taken in (0, 2, 5, 9):
        first = iter(data)
        start = json.loads(json.dumps(first.state_dict()))
        before = steps_of(islice(first, taken))
        state = json.loads(json.dumps(first.state_dict()))

        fresh = iter(strategy.experimental_distribute_dataset(dataset))
        fresh.load_state_dict(state)
        rest = steps_of(fresh)
        assert rest == steps_of(first)
        fresh.load_state_dict(start)
        assert before + rest == steps_of(fresh)


@pytest.mark.parametrize("workers", [2, 3], ids=["2-workers", "3-workers"])
@pytest.mark.parametrize("replicas", [1, 2], ids=["1-replica", "2-replicas"])
@pytest.mark.parametrize(
    ("dataset", "in_sync"),
    [
        (with_policy(batches(22, 7), DATA), True),
        (with_policy(batches(22, 7), OFF), True),
        (of_files(4, 3).batch(5), True),
        (with_policy(as_dataset(np.arange(22)).shard(-1, -1).batch(5), HINT), True),
        (with_policy(batches(22, 3), DATA), False),
        (batches(22, 3), False),
        (with_policy(fixed_order(), OFF), True),
        (fixed_order(), False),
    ],
    ids=["data", "off", "file", "hint", "ps-data", "ps", "cached", "ps-cached"],
)
def test_workers_go_on_exactly_where_they_were(
    dataset: Dataset, in_sync: bool, replicas: int, workers: int
) -> None:
    """Also those that had run out by then: they go on with empty batches."""
    everything = shared(dataset, workers, replicas, in_sync=in_sync)
    for start in (0, 1, 3, 5):
        rest = shared(dataset, workers, replicas, in_sync=in_sync, start=start)
        assert rest == [steps[start:] for steps in everything]


def test_what_is_prepared_ahead_does_not_count_as_taken() -> None:
    options = InputOptions(experimental_per_replica_buffer_size=3)
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(20, 2), options))
    next(iterator), next(iterator)
    assert iterator.state_dict() == {"steps": 2, "pass": 0}


def test_an_iterator_in_use_can_be_put_elsewhere() -> None:
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(6, 2)))
    everything = steps_of(iterator)
    iterator.load_state_dict({"steps": 1})
    assert steps_of(iterator) == everything[1:]
    iterator.load_state_dict({"steps": 0})
    next(iterator)
    iterator.load_state_dict({"steps": 0})
    assert steps_of(iterator) == everything


@pytest.mark.parametrize("buffer", [0, 2], ids=["unbuffered", "buffered"])
def test_what_can_be_gone_through_once_goes_on_from_where_it_is(buffer: int) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=buffer)
    source = (np.full(2, i) for i in range(6))
    iterator = iter(mirrored(2).experimental_distribute_dataset(source, options))
    next(iterator), next(iterator)
    iterator.load_state_dict(iterator.state_dict())
    assert lists(next(iterator)) == [[2], [2]], "nothing is left out twice"
    iterator.load_state_dict({"steps": 5})
    with pytest.raises(
        ValueError, match=r"at step 5 .* go back to step 4\. Make the dataset of a func"
    ):
        iterator.load_state_dict({"steps": 4})
    assert steps_of(iterator) == [[[5], [5]]]
