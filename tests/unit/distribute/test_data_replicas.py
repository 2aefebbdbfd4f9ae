"""What the replicas of one worker get of a dataset, and of which types.

Expected parts are TensorFlow's under its default policy.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.input_workers import batches, examples_of, listed, lists, mirrored, steps_of
from helpers.rows import row
from ropewalk.core.arrays.dtypes import Array
from ropewalk.distribute import DistributedIterator, PerReplica
from ropewalk.distribute.data import ArraySpec, Dataset, as_dataset, from_arrays

pytestmark = pytest.mark.usefixtures("plain_process")
X = np.arange(10)
Range = Dataset.range

STRATEGIES: dict[str, Callable[[], rw.distribute.Strategy]] = {
    "mirrored": rw.distribute.MirroredStrategy,
    "ps": rw.distribute.ParameterServerStrategy,
    "central": rw.distribute.CentralStorageStrategy,
}


def distributed(dataset: Any, replicas: int, strategy: str = "ps") -> Any:
    """A dataset under a strategy with that many replicas, on logical CPU devices."""
    rw.config.set_logical_cpu_devices(replicas)
    return STRATEGIES[strategy]().experimental_distribute_dataset(dataset)


# -- where batches are cut -----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "make",
    [batches, listed, lambda n, size: Range(n).batch(size),
     lambda n, size: Dataset.from_tensor_slices(np.arange(n)).batch(size)],
    ids=["arrays", "list", "range", "slices"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("examples", "size", "replicas", "expected"),
    [
        (8, 4, 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (7, 4, 2, [[[0, 1], [2, 3]], [[4, 5], [6]]]),
        (6, 4, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
        (5, 4, 2, [[[0, 1], [2, 3]], [[4], []]]),
        (6, 3, 2, [[[0, 1], [2]], [[3, 4], [5]]]),
        (8, 4, 3, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
        (9, 7, 3, [[[0, 1, 2], [3, 4, 5], [6]], [[7], [8], []]]),
        (5, 7, 3, [[[0, 1], [2, 3], [4]]]),
        (0, 4, 2, []),
    ],
    ids=["even", "last-uneven", "last-half", "last-leaves-one-empty", "odd", "three", "nine",
         "one-short", "nothing"],
)  # fmt: skip
def test_every_batch_is_cut_alike_whatever_the_strategy_and_the_dataset(
    strategy: str,
    make: Callable[[int, int], Dataset],
    examples: int,
    size: int,
    replicas: int,
    expected: Any,
) -> None:
    assert steps_of(distributed(make(examples, size), replicas, strategy)) == expected


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Range(5).batch(4, drop_remainder=True), [[[0, 1], [2, 3]]]),
        (from_arrays(X[:5], 4, shuffle=False, drop_remainder=True), [[[0, 1], [2, 3]]]),
        (batches(5, 4).repeat(2), [[[0, 1], [2, 3]], [[4], []]] * 2),
        (Range(5).repeat(2).batch(4), [[[0, 1], [2, 3]], [[4, 0], [1, 2]], [[3], [4]]]),
    ],
    ids=["batched-drop-remainder", "drop-remainder", "epochs", "batches-over-epochs"],
)
def test_a_step_has_examples_of_one_global_batch(dataset: Dataset, expected: Any) -> None:
    assert steps_of(distributed(dataset, 2)) == expected


def test_every_replica_runs_also_on_an_empty_batch_of_the_right_kind() -> None:
    strategy = mirrored(3)
    data = from_arrays({"x": np.ones((4, 2), np.float32)}, 3, shuffle=False)
    seen: list[tuple[int, tuple[int, ...], str]] = []

    def step(batch: Any) -> Any:
        context = rw.distribute.get_replica_context()
        assert context is not None
        seen.append((context.replica_id_in_sync_group, batch["x"].shape, str(batch["x"].dtype)))
        return batch["x"].sum()

    totals = [
        strategy.reduce("SUM", strategy.run(step, args=(batch,)))
        for batch in strategy.experimental_distribute_dataset(data)
    ]
    assert totals == [6.0, 2.0]
    assert sorted(seen[3:]) == [
        (0, (1, 2), "float32"),
        (1, (0, 2), "float32"),
        (2, (0, 2), "float32"),
    ]


@pytest.mark.parametrize("dataset", [from_arrays(X.astype(float), 4), [X * 1.0]], ids=["4", "10"])
def test_mean_over_split_batches_is_the_mean_of_the_batch(dataset: Any) -> None:
    """Whatever the split: uneven and empty parts weigh by their size."""
    strategy = mirrored(3)
    split_batches = strategy.experimental_distribute_dataset(dataset)
    for split, whole in zip(split_batches, dataset, strict=True):
        squares = strategy.run(lambda part: part**2, args=(split,))
        assert strategy.reduce("MEAN", squares, axis=0) == pytest.approx((whole**2).mean())


def test_nested_batches_are_cut_leaf_by_leaf_and_alike() -> None:
    [batch] = distributed([{"x": X, "y": (X * 10, [np.ones((10, 4, 2), np.float32)])}], 3)
    for x, y, z in zip(
        batch["x"].values, batch["y"][0].values, batch["y"][1][0].values, strict=True
    ):
        np.testing.assert_array_equal(y, x * 10)
        assert z.shape == (len(x), 4, 2)


@pytest.mark.parametrize(
    "batch", [3.0, (X, 2.0), (X, X[:3]), np.int64(1)], ids=["scalar", "mixed", "uneven", "number"]
)
def test_single_examples_cannot_be_cut_and_the_error_says_to_batch(batch: Any) -> None:
    with pytest.raises(ValueError, match="Call the `batch` method on the input Dataset"):
        next(iter(distributed([batch], 2)))


# -- what is given, and of which types -----------------------------------------------------------


def test_with_one_replica_batches_pass_through_as_they_are() -> None:
    odd = object()
    first, (array, nothing), number = distributed([odd, (np.ones(2), None), 3], 1)
    assert first is odd
    np.testing.assert_array_equal(array, [1, 1])
    assert (nothing, number) == (None, 3)


class Tensor:
    """As a tensor of PyTorch: no array, but sliced and asked for its shape like one."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype

    def __getitem__(self, rows: slice) -> "Tensor":
        return Tensor(self.array[rows])

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        return self.array.__array__(*args, **kwargs)


class Loader:
    """As a PyTorch DataLoader: gives a list of tensors per batch."""

    batch_size = 4

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[Tensor]]:
        for start in (0, 4):
            yield [Tensor(X[start : start + 4]), Tensor(X[start : start + 4] * 10)]


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loader_gives_its_own_types_under_every_strategy(strategy: str, replicas: int) -> None:
    rw.config.set_logical_cpu_devices(replicas)
    current = STRATEGIES[strategy]()
    seen: list[tuple[type, type]] = []
    for batch in current.experimental_distribute_dataset(Loader()):
        for x, y in current.experimental_local_results(batch):
            seen.append((type(x), type(y)))
            np.testing.assert_array_equal(y.array, x.array * 10)
    assert seen == [(Tensor, Tensor)] * replicas * 2


@pytest.mark.parametrize("loads", ["DataLoader", "from_numpy"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_and_pytorch_go_together(loads: str, replicas: int) -> None:
    """No warning of arrays that are not writable: they are the step's own."""
    torch = pytest.importorskip("torch")
    strategy = mirrored(replicas)
    x = torch.arange(8)
    source: Any = as_dataset(x.numpy().reshape(2, 4))
    if loads == "DataLoader":
        source = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4)
    for element in strategy.experimental_distribute_dataset(source):
        for part in strategy.experimental_local_results(element):
            tensor = part[0] if loads == "DataLoader" else torch.from_numpy(part)
            assert isinstance(tensor, torch.Tensor)
            tensor += 1


@pytest.mark.parametrize(
    "make",
    [
        as_dataset,
        Dataset.from_tensor_slices,
        Dataset.from_tensors,
        lambda x: from_arrays(x, 2, shuffle=False),
        lambda x: Dataset.from_tensor_slices(x).unbatch().batch(2),
        lambda x: Dataset.from_tensor_slices(x).shuffle(2).repeat(2),
    ],
    ids=["as_dataset", "slices", "tensors", "from_arrays", "unbatched", "shuffled"],
)
def test_a_step_may_write_to_its_batch_and_changes_nothing_else(
    make: Callable[[Array], Dataset],
) -> None:
    """Also what torch.from_numpy needs, to share the memory without a warning."""
    for replicas, buffer in product([1, 2], [0, 1]):
        with row(replicas, buffer):
            source = np.zeros((2, 4), np.float32)
            source.flags.writeable = False  # as an array of JAX, or of a file
            options = rw.distribute.InputOptions(experimental_per_replica_buffer_size=buffer)
            strategy = mirrored(replicas)
            for element in strategy.experimental_distribute_dataset(make(source), options):
                for part in strategy.experimental_local_results(element):
                    assert part.flags.writeable
                    part[...] = 1
            assert not source.any()


def test_iterators_and_lists_are_gone_through_as_python_does() -> None:
    assert list(distributed((i for i in range(3)), 1)) == [0, 1, 2]
    data = distributed([X[:2], X[2:6]], 2)
    assert [len(list(data)), len(list(data))] == [2, 2]


@pytest.mark.parametrize("dataset", [3, None], ids=repr)
def test_what_cannot_be_iterated_is_a_type_error(dataset: Any) -> None:
    with pytest.raises(TypeError, match="a dataset must be an iterable of batches or nested array"):
        distributed(dataset, 1)


# -- the distributed dataset and its iterator ----------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_reduce_folds_over_all_elements(replicas: int) -> None:
    data = distributed(batches(7, 4), replicas)
    sums = data.reduce(0, lambda state, element: state + sum(map(sum, lists(element))))
    assert sums == sum(range(7))


def test_the_spec_is_one_per_replica() -> None:
    spec = ArraySpec((None, 3), np.dtype(np.float32))
    dataset = from_arrays({"x": np.ones((6, 3), np.float32)}, 4)
    data = mirrored(2).experimental_distribute_dataset(dataset)
    for owner in (data, iter(data)):
        assert isinstance(owner.element_spec["x"], PerReplica)
        assert owner.element_spec["x"].values == (spec, spec)
    assert mirrored(1).experimental_distribute_dataset(dataset).element_spec == {"x": spec}


def test_after_the_last_element_an_optional_is_empty_and_stays_so() -> None:
    iterator = iter(distributed(batches(4, 4), 2))
    there = iterator.get_next_as_optional()
    assert there.has_value()
    assert lists(there.get_value()) == [[0, 1], [2, 3]]
    for _ in range(2):
        gone = iterator.get_next_as_optional()
        assert not gone.has_value()
        with pytest.raises(ValueError, match="no value"):
            gone.get_value()
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_iterator_can_be_asked_for_the_next_batch() -> None:
    iterator = iter(distributed([1], 1))
    assert isinstance(iterator, DistributedIterator)
    assert iter(iterator) is iterator
    assert iterator.get_next() == 1
    with pytest.raises(StopIteration):
        iterator.get_next()


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_the_next_element_is_not_asked_for_inside_a_replica_function(replicas: int) -> None:
    strategy = mirrored(replicas)
    iterator = iter(strategy.experimental_distribute_dataset(batches(8, 4)))
    for ask in (iterator.get_next, iterator.get_next_as_optional, iterator.__next__):
        with pytest.raises(ValueError, match=r"pass the element to strategy\.run"):
            strategy.run(ask)
    with strategy.scope():
        assert examples_of([lists(next(iterator))]) == [0, 1, 2, 3]
