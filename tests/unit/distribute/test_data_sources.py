"""Where datasets begin: what as_dataset takes, arrays, slices, ranges, files, generators."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.core.arrays.dtypes import Array
from ropewalk.distribute.data import (
    UNKNOWN_CARDINALITY,
    ArraySpec,
    Dataset,
    as_dataset,
    from_arrays,
    from_files,
)

X = np.arange(6)
INT, FLOAT = np.dtype(np.int64), np.dtype(np.float32)


def lists(elements: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


class Loader:
    """As a PyTorch DataLoader: lists of batches, and a length."""

    batch_size = 4

    def __init__(self, *arrays: Array) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[Array]]:
        for start in (0, 4):
            yield [array[start : start + 4] for array in self._arrays]


class Streaming(Loader):
    """As a DataLoader of a dataset that has no length."""

    def __len__(self) -> int:
        raise TypeError("object of type 'Stream' has no len()")


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


# -- as_dataset ----------------------------------------------------------------------------------


def test_arrays_in_another_byte_order_are_converted() -> None:
    """PyTorch takes no others, and TensorFlow's datasets convert them as well."""
    foreign = np.array([1, 2, 3], ">i4")
    sources = (
        as_dataset(foreign),
        Dataset.from_tensor_slices(foreign),
        Dataset.from_tensors(foreign),
    )
    for dataset in (*sources, from_arrays(foreign, 3, shuffle=False)):
        found = [np.asarray(each) for each in dataset]
        assert (found[0].dtype.str, np.hstack(found).tolist()) == ("<i4", [1, 2, 3])


@pytest.mark.parametrize(
    ("source", "elements", "size"),
    [
        (X.reshape(3, 2), [[0, 1], [2, 3], [4, 5]], 3),
        (X, [0, 1, 2, 3, 4, 5], 6),
        ([X[:4], X[4:]], [[0, 1, 2, 3], [4, 5]], 2),
        (lambda: iter([X[:4], X[4:]]), [[0, 1, 2, 3], [4, 5]], UNKNOWN_CARDINALITY),
        (lambda: [X], [[0, 1, 2, 3, 4, 5]], UNKNOWN_CARDINALITY),
        (lambda: from_arrays(X, 4, shuffle=False), [[0, 1, 2, 3], [4, 5]], UNKNOWN_CARDINALITY),
        (range(3), [0, 1, 2], 3),
        (TfData(), [[0, 1], [2, 3]], UNKNOWN_CARDINALITY),
        (Loader(X, X), [[[0, 1, 2, 3]] * 2, [[4, 5]] * 2], 2),
        (Streaming(X), [[[0, 1, 2, 3]], [[4, 5]]], UNKNOWN_CARDINALITY),
    ],
    ids=[
        "array-of-batches", "array-of-examples", "list", "generator-function", "function",
        "function-of-a-dataset", "iterable", "tf.data", "loader", "loader-without-length",
    ],
)  # fmt: skip
def test_what_programs_have_becomes_a_dataset_that_starts_anew_each_time(
    source: Any, elements: list[Any], size: int
) -> None:
    data = as_dataset(source)
    assert lists(data) == lists(data) == elements
    assert data.cardinality() == size
    assert lists(data.repeat(2).skip(len(elements))) == elements


def test_a_hugging_face_dataset_gives_examples_as_arrays_to_be_batched() -> None:
    data = as_dataset(HuggingFace(X.reshape(3, 2)))
    assert all(isinstance(example["x"], np.ndarray) for example in data)
    assert [batch["x"].tolist() for batch in data.batch(2)] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_a_generator_can_be_gone_through_once() -> None:
    data = as_dataset(i for i in range(3))
    assert lists(data) == [0, 1, 2]
    assert lists(data) == []


@pytest.mark.parametrize("source", [3, None, 2.5], ids=repr)
def test_what_is_no_dataset_is_a_type_error_that_names_its_type(source: Any) -> None:
    with pytest.raises(TypeError, match=f"got {type(source).__name__}"):
        as_dataset(source)


# -- from_arrays ---------------------------------------------------------------------------------


def test_epochs_none_goes_on_for_ever() -> None:
    batches = lists(islice(from_arrays(X, 6, epochs=None), 25))
    assert [sorted(batch) for batch in batches] == [X.tolist()] * 25
    assert list(from_arrays(X, 6, epochs=0)) == []


def test_nested_arrays_stay_together() -> None:
    for batch in from_arrays({"x": X, "more": (X * 10, [X * 2])}, 4, seed=3):
        np.testing.assert_array_equal(batch["more"][0], batch["x"] * 10)
        np.testing.assert_array_equal(batch["more"][1][0], batch["x"] * 2)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X, X[:5]), r"the same first axis.*\(6,\).*\(5,\)"),
        ((X, 3.0), "the same first axis"),
        ((), "the same first axis"),
    ],
    ids=["lengths", "scalar", "nothing"],
)
@pytest.mark.parametrize(
    "make",
    [as_dataset, Dataset.from_tensor_slices, lambda arrays: from_arrays(arrays, 2)],
    ids=["as_dataset", "slices", "from_arrays"],
)
def test_arrays_without_a_common_first_axis_are_refused(
    make: Callable[[Any], Dataset], arrays: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make(arrays)


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("make", [Dataset.range(3).batch, lambda size: from_arrays(X, size)])
def test_a_batch_has_one_example_at_least(make: Callable[[int], Dataset], size: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
        make(size)


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


# -- as tf.data.Dataset begins -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [((3,), [0, 1, 2]), ((10, 12), [10, 11]), ((10, 2, -3), [10, 7, 4]), ((0,), [])],
    ids=["stop", "start-stop", "step", "none"],
)
def test_a_range_is_of_numbers(arguments: tuple[int, ...], numbers: list[int]) -> None:
    data = Dataset.range(*arguments)
    assert lists(data) == numbers
    assert len(data) == len(numbers)
    assert data.element_spec == ArraySpec((), INT)
    typed = Dataset.range(*arguments, output_type=np.float32)
    assert typed.element_spec == ArraySpec((), FLOAT)
    assert all(type(number) is np.float32 for number in typed)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4), (0, 3, 0)], ids=["none", "four", "step-0"])
def test_a_range_that_is_none_is_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"one to three numbers|must not be zero"):
        Dataset.range(*arguments)


def test_slices_are_of_structures_and_lists_are_arrays() -> None:
    data = Dataset.from_tensor_slices({"x": X.reshape(3, 2), "y": ([7, 8, 9], np.ones((3, 1)))})
    first, *_ = data
    assert first["x"].tolist() == [0, 1]
    assert (first["y"][0], first["y"][1].tolist()) == (7, [1.0])
    assert data.element_spec == {
        "x": ArraySpec((2,), INT),
        "y": (ArraySpec((), INT), ArraySpec((1,), np.dtype(np.float64))),
    }
    assert lists(Dataset.from_tensor_slices([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert Dataset.from_tensor_slices([0.5]).element_spec == ArraySpec((), FLOAT)


def test_tensors_are_one_element() -> None:
    data = Dataset.from_tensors((X, {"n": 1}))
    [(x, more)] = data
    assert (x.tolist(), more["n"], len(data)) == (X.tolist(), 1, 1)
    assert data.element_spec == (ArraySpec((6,), INT), {"n": ArraySpec((), INT)})


def test_a_generator_function_is_called_for_each_pass() -> None:
    def numbers(stop: int) -> Iterator[Any]:
        yield from ((i, [i, i + 1]) for i in range(stop))

    data = Dataset.from_generator(numbers, args=(2,))
    assert list(data) == list(data) == [(0, [0, 1]), (1, [1, 2])]
    signature = (ArraySpec((), FLOAT), [ArraySpec((), INT), ArraySpec((), FLOAT)])
    typed = Dataset.from_generator(numbers, args=(2,), output_signature=signature)
    assert [(x.dtype, [y.dtype for y in more]) for x, more in typed] == [(FLOAT, [INT, FLOAT])] * 2
    with pytest.raises(TypeError, match="`generator` must be a function, got generator"):
        Dataset.from_generator(numbers(2))  # type: ignore[arg-type]


# -- files ---------------------------------------------------------------------------------------


def test_files_are_read_in_order_one_by_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ba"]
    for number, path in enumerate(paths):
        path.write_text(f"{number}0 {number}1")
    opened: list[str] = []

    def read(path: str) -> Iterator[int]:
        opened.append(path)
        yield from map(int, Path(path).read_text().split())

    elements = iter(from_files([str(path) for path in paths], read))
    assert next(elements) == 0
    assert opened == [str(paths[0])]
    assert list(elements) == [1, 10, 11]


def test_a_dataset_of_files_can_be_made_one_of_some_of_them_whatever_was_done_to_it() -> None:
    data = from_files("abc", lambda name: [name + "0", name + "1"])
    derived = data.map(str.upper).filter(lambda e: e[-1] == "1").enumerate().cache().repeat(2)
    assert derived.node.files == ("a", "b", "c")
    assert list(derived) == [(0, "A1"), (1, "B1"), (2, "C1")] * 2
    some = Dataset(derived.node.of_files(["b"]))
    assert list(some) == [(0, "B1")] * 2
    assert some.node.files == ("b",)
    assert data.node.files == derived.node.files == ("a", "b", "c")


# -- what is known -------------------------------------------------------------------------------


def test_the_spec_of_arrays_leaves_the_batch_open_unless_all_are_full() -> None:
    arrays = {"x": np.ones((6, 3), np.float32), "y": X}
    assert from_arrays(arrays, 4).element_spec == {
        "x": ArraySpec((None, 3), FLOAT),
        "y": ArraySpec((None,), INT),
    }
    assert from_arrays(X, 4, drop_remainder=True).element_spec == ArraySpec((4,), INT)


def test_the_spec_of_an_iterable_is_of_its_first_element() -> None:
    data = as_dataset(lambda: iter([(np.ones((4, 2), np.float16), 3)]))
    assert data.element_spec == (
        ArraySpec((None, 2), np.dtype(np.float16)),
        ArraySpec((), INT),
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
