"""Datasets: what as_dataset takes, and what can be done with the result before a strategy divides
it.
"""

from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from windlass.core.arrays import Array
from windlass.distribute.data import (
    SHARD_HINT,
    ArraySpec,
    AutoShardPolicy,
    Dataset,
    Options,
    as_dataset,
    from_arrays,
    from_files,
)
from windlass.distribute.data.sources import FileDataset

X = np.arange(6)


def lists(elements: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


def numbers(stop: int) -> Dataset:
    """Single examples 0, 1, 2, ..."""
    return as_dataset(lambda: iter(range(stop)))


def with_policy(dataset: Dataset, policy: AutoShardPolicy) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


class Loader:
    """As a PyTorch DataLoader: lists of batches of tensors, and a batch_size."""

    def __init__(self, arrays: tuple[Array, ...], batch_size: int | None) -> None:
        self._arrays = arrays
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[Array]]:
        size = self.batch_size or 1
        for start in range(0, len(self._arrays[0]), size):
            yield [array[start : start + size] for array in self._arrays]


class HuggingFace:
    """As a Hugging Face dataset: rows of Python values, and of arrays after
    ``with_format("numpy")``.
    """

    features = ("x",)

    def __init__(self, rows: Array, kind: str | None = None) -> None:
        self._rows, self._kind = rows, kind

    def with_format(self, kind: str) -> "HuggingFace":
        return HuggingFace(self._rows, kind)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            yield {"x": row if self._kind == "numpy" else row.tolist()}


class TfData:
    """As a ``tf.data.Dataset``: what it gives itself are tensors, its NumPy iterator is
    asked for.
    """

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("tensors are not wanted")

    def as_numpy_iterator(self) -> Iterator[Array]:
        return iter([np.array([0, 1]), np.array([2, 3])])


# -- what is taken -----------------------------------------------------------------------------


def test_a_dataset_is_taken_as_it_is() -> None:
    data = from_arrays(X, 2)
    assert as_dataset(data) is data


@pytest.mark.parametrize(
    ("source", "elements", "batch_size"),
    [
        (X.reshape(3, 2), [[0, 1], [2, 3], [4, 5]], 2),
        (X, [0, 1, 2, 3, 4, 5], None),
        ([X[:4], X[4:]], [[0, 1, 2, 3], [4, 5]], None),
        (lambda: iter([X[:4], X[4:]]), [[0, 1, 2, 3], [4, 5]], None),
        (lambda: [X], [[0, 1, 2, 3, 4, 5]], None),
        (lambda: from_arrays(X, 4, shuffle=False), [[0, 1, 2, 3], [4, 5]], None),
        (range(3), [0, 1, 2], None),
        (TfData(), [[0, 1], [2, 3]], None),
    ],
    ids=[
        "array-of-batches", "array-of-examples", "list", "generator-function", "function",
        "function-of-a-dataset", "iterable", "tf.data",
    ],
)  # fmt: skip
def test_what_programs_have_becomes_a_dataset_that_starts_anew_each_time(
    source: Any, elements: list[Any], batch_size: int | None
) -> None:
    data = as_dataset(source)
    assert lists(data) == lists(data) == elements
    assert data.batch_size == batch_size
    assert data.files is None
    assert not data.infinite
    assert not data.once


def test_nested_arrays_are_taken_apart_along_their_first_axis() -> None:
    data = as_dataset({"x": X.reshape(3, 2), "y": [X.reshape(3, 2) * 10]})
    element = list(data)[1]
    np.testing.assert_array_equal(element["x"], [2, 3])
    np.testing.assert_array_equal(element["y"][0], [20, 30])
    assert data.batch_size == 2


@pytest.mark.parametrize("batch_size", [4, None], ids=["batches", "unbatched"])
def test_a_pytorch_dataloader_says_its_batch_size_itself(batch_size: int | None) -> None:
    data = as_dataset(Loader((X, X * 10), batch_size))
    assert data.batch_size == batch_size
    first = next(iter(data))
    assert isinstance(first, list)
    np.testing.assert_array_equal(first[1], first[0] * 10)


def test_a_hugging_face_dataset_gives_examples_as_arrays_to_be_batched() -> None:
    data = as_dataset(HuggingFace(X.reshape(3, 2)))
    assert data.batch_size is None
    assert all(isinstance(example["x"], np.ndarray) for example in data)
    batched = data.batch(2)
    assert [batch["x"].tolist() for batch in batched] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_a_generator_can_be_gone_through_once() -> None:
    data = as_dataset(i for i in range(3))
    assert data.once
    assert lists(data) == [0, 1, 2]
    assert lists(data) == []


@pytest.mark.parametrize("source", [3, None, 2.5], ids=repr)
def test_what_is_no_dataset_is_a_type_error_that_names_its_type(source: Any) -> None:
    with pytest.raises(TypeError, match=f"got {type(source).__name__}"):
        as_dataset(source)


@pytest.mark.parametrize(
    "arrays", [(X, X[:2]), (X, np.float32(1)), ()], ids=["lengths", "scalar", "nothing"]
)
def test_arrays_without_a_common_first_axis_are_refused(arrays: Any) -> None:
    with pytest.raises(ValueError, match="the same first axis"):
        as_dataset(arrays)


# -- files -------------------------------------------------------------------------------------


def test_files_are_read_in_order_one_by_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ba"]
    for number, path in enumerate(paths):
        path.write_text(f"{number}0 {number}1")
    opened: list[str] = []

    def read(path: str) -> Iterator[int]:
        opened.append(path)
        yield from map(int, Path(path).read_text().split())

    data = from_files([str(path) for path in paths], read)
    assert isinstance(data, FileDataset)
    assert data.files == tuple(map(str, paths))
    elements = iter(data)
    assert next(elements) == 0
    assert opened == [str(paths[0])]
    assert list(elements) == [1, 10, 11]


def test_a_dataset_of_files_can_be_made_one_of_some_of_them_whatever_was_done_to_it() -> None:
    data = from_files("abc", lambda name: [name + "0", name + "1"])
    derived = data.map(str.upper).repeat(2)
    assert derived.files == ("a", "b", "c")
    some = derived.of_files(["b"])
    assert list(some) == ["B0", "B1"] * 2
    assert some.files == ("b",)
    assert data.files == derived.files == ("a", "b", "c")


def test_what_reads_no_files_cannot_be_divided_by_files() -> None:
    with pytest.raises(ValueError, match="does not read files"):
        from_arrays(X, 2).of_files(["a"])


def test_the_size_of_batches_in_files_can_be_told() -> None:
    assert from_files("a", lambda _: [], batch_size=32).batch_size == 32
    assert from_files("a", lambda _: []).batch_size is None


# -- what can be done with them ----------------------------------------------------------------


def test_shard_takes_every_nth_element() -> None:
    assert [list(numbers(7).shard(3, i)) for i in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


@given(size=st.integers(0, 30), shards=st.integers(1, 5))
def test_shards_lose_nothing_and_share_nothing(size: int, shards: int) -> None:
    parts = [list(numbers(size).shard(shards, i)) for i in range(shards)]
    assert sorted(chain.from_iterable(parts)) == list(range(size))


@pytest.mark.parametrize(("shards", "index"), [(2, 2), (2, -1), (0, 0), (-1, 0), (3, -1)], ids=str)
def test_a_shard_past_the_last_is_refused(shards: int, index: int) -> None:
    with pytest.raises(ValueError, match=rf"index must be in .* got {index} of {shards}"):
        numbers(3).shard(shards, index)


def test_batch_stacks_along_a_new_first_axis_the_last_one_short() -> None:
    assert lists(numbers(5).batch(2)) == [[0, 1], [2, 3], [4]]
    assert lists(numbers(5).batch(2, drop_remainder=True)) == [[0, 1], [2, 3]]
    assert numbers(5).batch(2).batch_size == 2


def test_batch_stacks_structures_leaf_by_leaf() -> None:
    data = as_dataset([{"x": np.ones(3), "y": (i,)} for i in range(4)]).batch(4)
    [batch] = data
    assert batch["x"].shape == (4, 3)
    np.testing.assert_array_equal(batch["y"][0], [0, 1, 2, 3])


@pytest.mark.parametrize("size", [0, -1], ids=str)
def test_a_batch_has_one_example_at_least(size: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
        numbers(3).batch(size)


def test_examples_that_differ_in_shape_do_not_stack() -> None:
    with pytest.raises(ValueError, match="same shape"):
        list(as_dataset([np.ones(2), np.ones(3)]).batch(2))


def test_map_is_a_function_of_every_element_as_it_is_asked_for() -> None:
    called: list[int] = []

    def tenfold(x: int) -> int:
        called.append(x)
        return x * 10

    elements = iter(numbers(4).map(tenfold))
    assert not called
    assert next(elements) == 0
    assert called == [0]
    assert list(elements) == [10, 20, 30]


def test_repeat_goes_through_it_so_often() -> None:
    assert list(numbers(2).repeat(3)) == [0, 1] * 3
    assert list(numbers(2).repeat(0)) == []


@pytest.mark.parametrize("times", [None, -1], ids=["none", "minus-one"])
def test_repeat_without_a_count_goes_on_for_ever(times: int | None) -> None:
    data = numbers(2).repeat(times)
    assert list(islice(data, 5)) == [0, 1, 0, 1, 0]
    assert data.infinite


@pytest.mark.timeout(10)
def test_nothing_again_and_again_is_nothing() -> None:
    assert list(numbers(0).repeat()) == []


@pytest.mark.parametrize(
    ("make", "infinite"),
    [
        (lambda: from_arrays(X, 2, epochs=None), True),
        (lambda: from_arrays(X, 2, epochs=None).repeat(2), True),
        (lambda: from_arrays(X, 2, epochs=None).repeat(0), False),
        (lambda: from_arrays(X, 2).repeat().map(len).shard(2, 0).batch(3), True),
        (lambda: from_arrays(X, 2).repeat(5), False),
        (lambda: as_dataset(iter([1])).repeat(), False),
    ],
    ids=["epochs", "repeated", "repeated-never", "derived", "counted", "generator"],
)
def test_it_is_known_whether_it_ends(make: Callable[[], Dataset], infinite: bool) -> None:
    assert make().infinite is infinite


def test_the_batch_size_is_known_through_what_keeps_it() -> None:
    data = from_arrays(X, 2)
    derived = (data.shard(2, 0), data.map(len), data.repeat(), data.batch(3))
    assert [d.batch_size for d in derived] == [
        2, 2, 2, 3,
    ]  # fmt: skip


def test_steps_chain_in_the_order_they_are_written() -> None:
    data = numbers(10).shard(2, 1).map(lambda x: x * 10).batch(2).repeat(2)
    assert lists(data) == [[10, 30], [50, 70], [90]] * 2


def test_what_was_derived_from_is_not_changed() -> None:
    data = numbers(3)
    data.batch(2), data.repeat(), data.shard(2, 1), with_policy(data, AutoShardPolicy.OFF)
    assert list(data) == [0, 1, 2]
    assert data.auto_shard_policy is AutoShardPolicy.AUTO


# -- from somewhere on -------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 3, 4, 7, 50], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda: from_arrays(X, 2, shuffle=False),
        lambda: from_arrays(X, 4, seed=3, epochs=3),
        lambda: from_arrays(X, 4, seed=3, epochs=3, drop_remainder=True),
        lambda: from_arrays(X, 4, seed=3, epochs=3).map(lambda x: x + 1),
        lambda: numbers(20).shard(3, 1),
        lambda: numbers(20).batch(3),
        lambda: numbers(3).repeat(3),
        lambda: from_files("abc", lambda name: [name + "0", name + "1"]),
        lambda: as_dataset(X.reshape(3, 2)),
    ],
    ids=[
        "arrays", "shuffled", "drop-remainder", "mapped", "sharded", "batched", "repeated",
        "files", "as-dataset",
    ],
)  # fmt: skip
def test_it_can_be_gone_through_from_an_element_on(make: Callable[[], Dataset], start: int) -> None:
    assert lists(make().iterate(start)) == lists(make())[start:]


def test_an_endless_shuffled_dataset_is_the_same_from_an_element_on() -> None:
    data = from_arrays(X, 4, seed=1, epochs=None)
    assert lists(islice(data.iterate(101), 5)) == lists(islice(data, 101, 106))


def test_elements_before_the_start_are_not_computed() -> None:
    called: list[Any] = []
    data = from_arrays(X, 2, shuffle=False).map(called.append)
    assert len(list(data.iterate(2))) == len(called) == 1


# -- what is known of the elements -------------------------------------------------------------


def test_the_spec_of_arrays_leaves_the_batch_open() -> None:
    data = from_arrays({"x": np.ones((6, 3), np.float32), "y": X}, 4)
    assert data.element_spec == {
        "x": ArraySpec((None, 3), np.dtype(np.float32)),
        "y": ArraySpec((None,), np.dtype(np.int64)),
    }


def test_the_spec_of_an_iterable_is_of_its_first_element() -> None:
    data = as_dataset(lambda: iter([(np.ones((4, 2), np.float16), 3)]))
    assert data.element_spec == (
        ArraySpec((None, 2), np.dtype(np.float16)),
        ArraySpec((), np.dtype(np.int64)),
    )
    assert len(list(data)) == 1


def test_of_no_elements_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="no element"):
        _ = as_dataset([]).element_spec


def test_asking_for_the_spec_of_a_generator_does_not_lose_its_first_elements() -> None:
    data = as_dataset(i for i in range(4)).batch(2)
    with pytest.raises(ValueError, match="a function that returns the generator"):
        _ = data.element_spec
    assert lists(data) == [[0, 1], [2, 3]]


# -- options and hints -------------------------------------------------------------------------


def test_options_hold_for_what_is_derived_afterwards() -> None:
    data = with_policy(from_arrays(X, 2), AutoShardPolicy.FILE)
    derived = data.map(len).repeat().shard(2, 0).batch(2)
    assert derived.auto_shard_policy is data.auto_shard_policy is AutoShardPolicy.FILE
    assert with_policy(derived, AutoShardPolicy.OFF).auto_shard_policy is AutoShardPolicy.OFF


def test_policies_are_numbered_as_tensorflows() -> None:
    assert {policy.name: int(policy) for policy in AutoShardPolicy} == {
        "OFF": -1, "AUTO": 0, "FILE": 1, "DATA": 2, "HINT": 3,
    }  # fmt: skip


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="17"):
        with_policy(numbers(1), 17)  # type: ignore[arg-type]


def test_a_hint_is_resolved_where_it_stands() -> None:
    data = numbers(8).shard(SHARD_HINT, SHARD_HINT).map(lambda x: x * 10).batch(2)
    assert [lists(data.resolve_hint(2, worker)) for worker in range(2)] == [
        [[0, 20], [40, 60]],
        [[10, 30], [50, 70]],
    ]


def test_without_a_hint_resolving_changes_nothing_and_other_shards_stay() -> None:
    assert list(numbers(4).resolve_hint(2, 1)) == [0, 1, 2, 3]
    assert list(numbers(4).shard(2, 0).resolve_hint(2, 1)) == [0, 2]


def test_a_hint_that_nobody_resolves_is_an_error_that_names_the_policy() -> None:
    with pytest.raises(ValueError, match=r"AutoShardPolicy\.HINT.*with_options"):
        list(numbers(4).shard(SHARD_HINT, SHARD_HINT))


def test_own_datasets_are_subclasses_that_give_their_elements() -> None:
    class Squares(Dataset):
        infinite = True

        def _elements(self) -> Iterator[Any]:
            return (i * i for i in count())

    assert list(islice(Squares().map(str).iterate(2), 3)) == ["4", "9", "16"]
    with pytest.raises(TypeError, match="must define _elements"):
        list(Dataset())


def test_the_public_names_are_in_wl_data() -> None:
    assert sorted(wl.data.__all__) == [
        "ArraySpec", "AutoShardPolicy", "Dataset", "DistributeOptions", "Options", "SHARD_HINT",
        "as_dataset", "from_arrays", "from_files",
    ]  # fmt: skip


def test_what_is_made_of_an_array_is_no_way_into_it() -> None:
    source = np.zeros((2, 4), np.float32)
    for element in as_dataset(source):
        with pytest.raises(ValueError, match="read-only"):
            element[...] = 1
    assert not source.any()
    source += 1  # the program's own array stays as it was
