"""Input of one worker: batches of arrays and iterables, and how its replicas share them."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import DistributedDataset, DistributedIterator, PerReplica
from windlass.distribute.data import from_arrays

Array = np.ndarray[Any, np.dtype[Any]]
X = np.arange(10)


def lists(batches: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in batches]


def distributed(dataset: Any, replicas: int) -> DistributedDataset:
    """A dataset under a strategy with that many replicas, on logical CPU devices."""
    wl.config.set_logical_cpu_devices(replicas)
    return wl.distribute.ParameterServerStrategy().experimental_distribute_dataset(dataset)


# -- from_arrays -------------------------------------------------------------------------------


def test_without_shuffle_batches_come_in_order_the_last_one_short() -> None:
    data = from_arrays(X, 4, shuffle=False)
    assert lists(data) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_drop_remainder_leaves_the_short_batch_out() -> None:
    assert lists(from_arrays(X, 4, shuffle=False, drop_remainder=True)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert len(list(from_arrays(X, 5, drop_remainder=True))) == 2


def test_shuffled_epochs_each_see_everything_once_in_a_new_order() -> None:
    batches = lists(from_arrays(X, 5, seed=1, epochs=3))
    epochs = [batches[i] + batches[i + 1] for i in (0, 2, 4)]
    assert [sorted(epoch) for epoch in epochs] == [X.tolist()] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_same_seed_gives_the_same_orders_and_another_seed_others() -> None:
    assert lists(from_arrays(X, 3, seed=1)) == lists(from_arrays(X, 3, seed=1))
    assert lists(from_arrays(X, 3, seed=1)) != lists(from_arrays(X, 3, seed=2))


def test_every_iteration_starts_anew() -> None:
    data = from_arrays(X, 3, seed=1, epochs=2)
    assert lists(data) == lists(data)


def test_epochs_none_goes_on_for_ever() -> None:
    batches = lists(islice(from_arrays(X, 10, epochs=None), 25))
    assert [sorted(batch) for batch in batches] == [X.tolist()] * 25
    assert list(from_arrays(X, 10, epochs=0)) == []


def test_nested_arrays_stay_together() -> None:
    data = from_arrays({"x": X, "more": (X * 10, [X * 2])}, 4, seed=3)
    for batch in data:
        np.testing.assert_array_equal(batch["more"][0], batch["x"] * 10)
        np.testing.assert_array_equal(batch["more"][1][0], batch["x"] * 2)


@pytest.mark.parametrize(
    ("arrays", "batch_size", "message"),
    [
        ((X, X[:5]), 2, r"the same first axis.*\(10,\).*\(5,\)"),
        ((X, 3.0), 2, "the same first axis"),
        ((), 2, "the same first axis"),
        (X, 0, "batch_size must be at least 1, got 0"),
    ],
    ids=["lengths", "scalar", "nothing", "batch-size"],
)
def test_what_is_no_dataset_is_refused_when_it_is_made(
    arrays: Any, batch_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_arrays(arrays, batch_size)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("arrays", "drop"), [(X[:0], False), (X, True)], ids=["no-examples", "no-full-batch"]
)
def test_an_endless_dataset_without_a_batch_is_refused_rather_than_spun_on(
    arrays: Array, drop: bool
) -> None:
    with pytest.raises(ValueError, match="batch"):
        next(iter(from_arrays(arrays, 16, epochs=None, drop_remainder=drop)))


def test_an_epoch_without_a_full_batch_is_empty() -> None:
    assert list(from_arrays(X, 16, epochs=2, drop_remainder=True)) == []
    assert list(from_arrays(X[:0], 16, epochs=2)) == []


# -- distributing ------------------------------------------------------------------------------


def test_with_one_replica_batches_pass_through_as_they_are() -> None:
    odd = object()
    first, (array, nothing), number = distributed([odd, (np.ones(2), None), 3], 1)
    assert first is odd
    np.testing.assert_array_equal(array, [1, 1])
    assert (nothing, number) == (None, 3)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (6, [[0, 1], [2, 3], [4, 5]]),
        (7, [[0, 1, 2], [3, 4, 5], [6]]),
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, [[0, 1], [2, 3], []]),
        (2, [[0], [1], []]),
        (1, [[0], [], []]),
        (0, [[], [], []]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_batches_of_unknown_size_are_cut_in_parts_rounded_up(
    size: int, parts: list[list[int]]
) -> None:
    """And every replica runs, also without an example."""
    wl.config.set_logical_cpu_devices(3)
    strategy = wl.distribute.ParameterServerStrategy()
    [batch] = strategy.experimental_distribute_dataset([X[:size]])
    assert isinstance(batch, PerReplica)
    assert lists(batch.values) == parts
    seen = strategy.run(lambda part: part * 1, args=(batch,))
    assert lists(strategy.experimental_local_results(seen)) == parts
    assert {part.dtype for part in batch.values} == {X.dtype}


def test_mean_over_split_batches_is_the_mean_of_the_batch() -> None:
    """Whatever the split: uneven and empty parts weigh by their size."""
    wl.config.set_logical_cpu_devices(3)
    strategy = wl.distribute.ParameterServerStrategy()
    data = from_arrays(X.astype(np.float64), 4, seed=0)
    for split, whole in zip(strategy.experimental_distribute_dataset(data), data, strict=True):
        squares = strategy.run(lambda part: part**2, args=(split,))
        assert strategy.reduce("MEAN", squares, axis=0) == pytest.approx((whole**2).mean())


def test_an_iterator_can_be_asked_for_the_next_batch() -> None:
    iterator = iter(distributed([1], 1))
    assert isinstance(iterator, DistributedIterator)
    assert iter(iterator) is iterator
    assert iterator.get_next() == 1
    with pytest.raises(StopIteration):
        iterator.get_next()
