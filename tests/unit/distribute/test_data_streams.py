"""The methods of a dataset that give other elements than one for each, and its iterator.

Expected values are those of TensorFlow 2.21.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.errors import OutOfRangeError
from ropewalk.distribute.data import ArraySpec, AutoShardPolicy, Dataset, Options

Range = Dataset.range


def plain(dataset: Any) -> list[Any]:
    return [np.asarray(each).tolist() for each in dataset.as_numpy_iterator()]


def growing() -> Dataset:
    return Range(1, 5).map(lambda n: np.full(n, n, np.int32))


def test_flat_map_gives_the_elements_of_one_dataset_after_another() -> None:
    rows = Dataset.from_tensor_slices(np.array([[1, 2], [3, 4]]))
    assert plain(rows.flat_map(Dataset.from_tensor_slices)) == [1, 2, 3, 4]
    assert plain(Range(3).flat_map(lambda n: Dataset.from_tensors(n).repeat(2))) == [
        *(0, 0, 1, 1, 2, 2)
    ]


def test_a_function_that_makes_no_dataset_is_named() -> None:
    with pytest.raises(TypeError, match="`map_func` must return a Dataset, got int64"):
        list(Range(2).flat_map(lambda n: n))
    with pytest.raises(TypeError, match="`reduce_func` must return a Dataset, got int64"):
        list(Range(2).group_by_window(lambda n: 0, lambda key, group: key, 2))


def test_interleave_takes_blocks_in_turn() -> None:
    five = Range(1, 6).interleave(
        lambda n: Dataset.from_tensors(n).repeat(6), cycle_length=2, block_length=4
    )
    assert plain(five) == [
        *(1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4),
        *(5, 5, 5, 5, 5, 5),
    ]
    assert plain(Range(3).interleave(Dataset.from_tensors, num_parallel_calls=-1)) == [0, 1, 2]
    exact = Range(4).interleave(lambda n: Dataset.from_tensors(n).repeat(2), 2, 2)
    assert plain(exact) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3,), [[0, 1, 2], [3, 4, 5], [6]]),
        ((3, 1, 2, True), [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        ((2, 3), [[0, 1], [3, 4], [6]]),
        ((2, 4, 1, True), [[0, 1], [4, 5]]),
        ((3, 5), [[0, 1, 2], [5, 6]]),
    ],
    ids=["apart", "sliding with a stride", "with gaps", "whole ones alone", "gaps at the end"],
)
def test_windows_are_datasets(arguments: tuple[Any, ...], expected: list[list[int]]) -> None:
    windows = Range(7).window(*arguments)
    assert [plain(window) for window in windows] == expected
    assert windows.cardinality() == len(expected)


def test_windows_of_pairs_are_pairs_of_windows() -> None:
    pairs = Dataset.zip((Range(4), Range(10, 14)))
    joined = pairs.window(2).flat_map(lambda a, b: Dataset.zip((a.batch(2), b.batch(2))))
    assert [(a.tolist(), b.tolist()) for a, b in joined] == [
        ([0, 1], [10, 11]),
        ([2, 3], [12, 13]),
    ]


def test_padded_batches_have_the_largest_extents_or_those_that_are_given() -> None:
    assert plain(growing().padded_batch(2)) == [
        [[1, 0], [2, 2]],
        [[3, 3, 3, 0], [4, 4, 4, 4]],
    ]
    assert plain(growing().padded_batch(3, padded_shapes=5, padding_values=-1)) == [
        [[1, -1, -1, -1, -1], [2, 2, -1, -1, -1], [3, 3, 3, -1, -1]],
        [[4, 4, 4, 4, -1]],
    ]
    assert len(growing().padded_batch(3, [None], drop_remainder=True)) == 1
    assert plain(Range(3).padded_batch(2)) == [[0, 1], [2]]


def test_shapes_and_values_of_padding_follow_the_structure_of_elements() -> None:
    both = Dataset.zip((growing(), growing())).padded_batch(
        2, padded_shapes=([4], [None]), padding_values=(-1, 100)
    )
    first, second = next(iter(both))
    assert first.tolist() == [[1, -1, -1, -1], [2, 2, -1, -1]]
    assert second.tolist() == [[1, 100], [2, 2]]
    named = growing().map(lambda row: {"b": row, "a": row[0]}).padded_batch(2, {"a": [], "b": [3]})
    assert next(iter(named))["b"].tolist() == [[1, 0, 0], [2, 2, 0]]


def test_an_element_larger_than_its_padded_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Attempted to pad to a smaller size .*\(2,\)"):
        list(growing().padded_batch(4, [2]))
    with pytest.raises(ValueError, match=r"rank \[1\] are padded to the shape \(2, 2\)"):
        list(growing().padded_batch(4, [2, 2]))


def test_batches_by_length_and_groups_by_key() -> None:
    texts = [[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [13, 14, 15, 16, 19, 20], [21, 22]]
    spec = ArraySpec((None,), np.dtype(np.int64))
    data = Dataset.from_generator(lambda: iter(texts), output_signature=spec)
    assert plain(data.bucket_by_sequence_length(len, [3, 5], [2, 2, 2])) == [
        [[1, 2, 3, 4], [5, 6, 7, 0]],
        [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]],
        [[0, 0], [21, 22]],
    ]
    assert plain(Range(10).group_by_window(lambda n: n % 2, lambda _, g: g.batch(5), 5)) == [
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7, 9],
    ]
    left_over = Dataset.from_tensor_slices([5, -1, 3]).group_by_window(abs, lambda _, g: g, 9)
    assert plain(left_over) == [-1, 3, 5], "by their keys"
    with pytest.raises(ValueError, match="2 bucket_boundaries make 3 buckets"):
        data.bucket_by_sequence_length(len, [3, 5], [2, 2])


def test_batches_are_cut_anew() -> None:
    assert plain(Range(7).batch(2).rebatch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert plain(Range(7).batch(4).rebatch([1, 2], True)) == [[0], [1, 2], [3], [4, 5], [6]]


def test_what_goes_on_from_element_to_element() -> None:
    assert plain(Range(5).scan(0, lambda state, n: (state + n, state + n))) == [0, 1, 3, 6, 10]
    assert plain(Range(10).take_while(lambda n: n < 4)) == [0, 1, 2, 3]
    assert plain(Dataset.from_tensor_slices(np.array([1, 2, 2, 1])).unique()) == [1, 2]
    assert plain(Dataset.counter(2, 3).take(3)) == [2, 5, 8]
    assert plain(Dataset.random(4).take(3)) == plain(Dataset.random(4).take(3))


def test_the_single_element() -> None:
    assert Range(1).get_single_element() == 0
    with pytest.raises(ValueError, match="empty"):
        Range(0).get_single_element()
    with pytest.raises(ValueError, match="more than one"):
        Range(2).get_single_element()


def test_elements_of_several_datasets_by_choice_and_by_chance() -> None:
    foo, bar = (Dataset.from_tensors(text).repeat() for text in ("foo", "bar"))
    chosen = Dataset.choose_from_datasets([foo, bar], Range(2).repeat(2))
    assert plain(chosen) == ["foo", "bar", "foo", "bar"]
    with pytest.raises(ValueError, match="a choice of 2 among 2 datasets"):
        list(Dataset.choose_from_datasets([foo, bar], Range(2, 3)))
    drawn = Dataset.sample_from_datasets([Range(3), Range(10, 12)], [0.5, 0.5], seed=1)
    assert sorted(plain(drawn)) == [0, 1, 2, 10, 11]
    first = Dataset.sample_from_datasets([Range(3), Range(3)], [1.0, 0.0], None, True)
    assert plain(first) == [0, 1, 2]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def test_files_that_match_a_pattern(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    files = Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
    assert [Path(name).name for name in plain(files)] == ["a.txt", "b.txt"]
    assert files.node.files is not None  # workers divide them as files
    lines = files.interleave(lambda path: rw.data.from_files([path], _lines))
    assert plain(lines) == ["a1", "b1", "a2", "b2"]
    assert sorted(plain(Dataset.list_files(str(tmp_path / "*")))) == sorted(plain(files))
    with pytest.raises(ValueError, match=r"No files matched pattern: .*csv"):
        Dataset.list_files(str(tmp_path / "*.csv"))


def test_an_order_of_each_nested_dataset_and_each_pass() -> None:
    nested = Range(2).flat_map(lambda _: Range(50).shuffle(50))
    first, second = plain(nested), plain(nested)
    assert first[:50] != first[50:]
    assert first != second


def _twice(number: Any) -> Dataset:
    return Dataset.from_tensors(number).repeat(2)


def test_they_can_be_pickled() -> None:
    made = Range(4).flat_map(_twice).padded_batch(2).rebatch(3).unique()
    assert plain(pickle.loads(pickle.dumps(made))) == plain(made)  # noqa: S301


def test_a_name_that_is_not_offered_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"Dataset has no 'load': `rw\.data\.from_files"):
        Dataset.load("saved")
    with pytest.raises(AttributeError, match=r"has no 'TextLineDataset': .*from_files"):
        rw.data.TextLineDataset  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(Range(3), "ragged_batch")


def _one_buffer() -> Any:
    buffer = np.zeros(1, np.int64)
    for number in range(4):
        buffer[:] = number
        yield buffer


def test_a_generator_may_use_one_buffer_for_all_elements() -> None:
    data = Dataset.from_generator(_one_buffer)
    assert [plain(window) for window in data.window(2)] == [[[0], [1]], [[2], [3]]]
    assert plain(data.padded_batch(4)) == [[[0], [1], [2], [3]]]
    assert plain(data.rebatch(3)) == [[0, 1, 2], [3]]
    together = data.group_by_window(lambda row: 0, lambda _, group: group, 4)
    assert plain(together) == [[0], [1], [2], [3]]


def test_the_iterator_has_the_methods_of_tensorflows() -> None:
    iterator = iter(Range(2))
    assert iterator.get_next() == 0
    assert iterator.get_next_as_optional().get_value() == 1
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(OutOfRangeError):
        iterator.get_next()


def test_a_generators_types_and_shapes_in_the_older_form() -> None:
    pairs = Dataset.from_generator(
        lambda: iter([(1, [2, 3])]), (np.int32, np.float32), ((), (None,))
    )
    number, row = next(iter(pairs))
    assert (number.dtype, row.dtype, row.shape) == (np.int32, np.float32, (2,))
    wrong = Dataset.from_generator(lambda: iter([[1, 2]]), np.int32, ())
    with pytest.raises(ValueError, match=r"of shape \(2,\) where an element of shape \(\) was"):
        list(wrong)
    with pytest.raises(TypeError, match="output_signature"):
        Dataset.from_generator(list, np.int32, output_signature=ArraySpec((), np.dtype(np.int32)))


def test_options_know_their_names_and_kinds() -> None:
    options = Options()
    options.threading.private_threadpool_size = 4
    options.deterministic = False
    with pytest.raises(AttributeError, match="experimental_distrbute on Options; did you mean"):
        options.experimental_distrbute = 1
    with pytest.raises(AttributeError, match="autoshard_policy on DistributeOptions"):
        options.experimental_distribute.autoshard_policy = 1
    with pytest.raises(TypeError, match=r"auto_shard_policy.*got: 'OFF'"):
        options.experimental_distribute.auto_shard_policy = "OFF"  # type: ignore[assignment]


def test_options_that_say_nothing_of_the_policy_leave_it() -> None:
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    later = Options()
    later.deterministic = True
    kept = Range(2).with_options(options).with_options(later).options()
    assert kept.experimental_distribute.auto_shard_policy is AutoShardPolicy.OFF


def test_nothing_and_what_is_no_dataset_are_refused() -> None:
    with pytest.raises(TypeError, match="at least one dataset"):
        Dataset.zip()
    with pytest.raises(TypeError, match="`transformation_func` must return a Dataset, got int"):
        Range(2).apply(lambda _: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"must be rw\.data\.Options"):
        Range(2).with_options(None)  # type: ignore[arg-type]
