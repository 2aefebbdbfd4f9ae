"""How global batches become parts: sizes, cutting, filling, cutting anew, dealing. Plain data in
and out.

Expected sizes are TensorFlow's, from tf.distribute's documentation of rebatching; the rest is
checked against what must hold for any input: nothing lost, nothing twice, order kept.
"""

import math
from itertools import chain, cycle, islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.arrays import BFLOAT16, Array
from windlass.distribute.data.sharding import (
    as_arrays,
    batch_sizes,
    common_length,
    cut,
    deal,
    empty_like,
    fill,
    recut,
)

sizes = st.integers(0, 40)
few = st.integers(1, 6)
lengths = st.lists(st.integers(0, 9), max_size=8)


def numbers(count: int) -> Array:
    return np.arange(count)


def lists(parts: Any) -> list[list[int]]:
    return [np.asarray(part).tolist() for part in parts]


def batches_of(counts: list[int]) -> list[Array]:
    """Batches of these lengths, counting on from one to the next."""
    ends = np.cumsum([0, *counts])
    return [np.arange(start, end) for start, end in pairwise(ends)]


def joined(parts: Any) -> list[int]:
    return list(chain.from_iterable(lists(parts)))


# -- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "workers", "replicas", "expected"),
    [
        (8, 1, 2, [[4, 4]]),
        (7, 1, 2, [[4, 3]]),
        (7, 1, 3, [[3, 2, 2]]),
        (8, 2, 2, [[2, 2, 2, 2], [2, 2, 2, 2]]),
        (7, 2, 2, [[2, 2, 2, 1], [2, 1, 2, 2]]),
        (4, 3, 1, [[2, 1, 1], [1, 1, 2], [1, 2, 1]]),
        (3, 2, 2, [[1, 1, 1, 0], [1, 0, 1, 1]]),
        (1, 2, 2, [[1, 0, 0, 0], [0, 0, 1, 0]]),
        (0, 2, 1, [[0, 0], [0, 0]]),
    ],
    ids=[
        "even", "uneven", "three-replicas", "two-workers", "rotated", "three-workers",
        "one-slot-empty", "one-example", "nothing",
    ],
)  # fmt: skip
def test_each_worker_uses_the_same_sizes_from_another_place_on(
    batch: int, workers: int, replicas: int, expected: list[list[int]]
) -> None:
    assert [batch_sizes(batch, workers, replicas, i) for i in range(workers)] == expected


@given(batch=sizes, workers=few, replicas=few, step=sizes)
def test_the_sizes_of_one_step_add_up_to_the_global_batch_and_differ_by_one_at_most(
    batch: int, workers: int, replicas: int, step: int
) -> None:
    used = [
        size
        for worker in range(workers)
        for size in islice(
            cycle(batch_sizes(batch, workers, replicas, worker)),
            step * replicas,
            (step + 1) * replicas,
        )
    ]
    assert len(used) == workers * replicas
    assert sum(used) == batch
    assert max(used) - min(used) <= 1


@given(batch=sizes, workers=few, replicas=few)
def test_over_a_round_of_steps_every_worker_sees_as_much(
    batch: int, workers: int, replicas: int
) -> None:
    totals = {sum(batch_sizes(batch, workers, replicas, i)) for i in range(workers)}
    assert totals == {batch}


# -- cut: the size is not known ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "parts", "expected"),
    [
        (4, 3, [[0, 1], [2, 3], []]),
        (7, 3, [[0, 1, 2], [3, 4, 5], [6]]),
        (4, 2, [[0, 1], [2, 3]]),
        (1, 3, [[0], [], []]),
        (0, 2, [[], []]),
        (3, 1, [[0, 1, 2]]),
    ],
    ids=["last-empty", "last-short", "even", "one", "nothing", "one-part"],
)
def test_a_cut_rounds_up_and_leaves_the_last_parts_short_or_empty(
    length: int, parts: int, expected: list[list[int]]
) -> None:
    assert lists(cut(numbers(length), parts)) == expected


def test_tensorflows_example_of_batches_of_4_on_3_replicas() -> None:
    """range(8).batch(4) with 3 replicas: [0,1],[2,3],[],[4,5],[6,7],[]."""
    parts = chain.from_iterable(cut(batch, 3) for batch in batches_of([4, 4]))
    assert lists(parts) == [[0, 1], [2, 3], [], [4, 5], [6, 7], []]


@given(length=sizes, parts=few)
def test_a_cut_loses_nothing_repeats_nothing_and_keeps_the_order(length: int, parts: int) -> None:
    found = cut(numbers(length), parts)
    assert len(found) == parts
    assert joined(found) == list(range(length))
    assert all(len(part) <= math.ceil(length / parts) for part in found)


# -- fill: the size is known -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "wanted", "expected"),
    [
        (7, [4, 3], [[0, 1, 2, 3], [4, 5, 6]]),
        (5, [4, 3], [[0, 1, 2, 3], [4]]),
        (4, [4, 3], [[0, 1, 2, 3], []]),
        (2, [4, 3], [[0, 1], []]),
        (0, [4, 3], [[], []]),
        (1, [1, 0, 0], [[0], [], []]),
        (8, [4, 3], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (7, None, [[0, 1, 2, 3], [4, 5, 6]]),
        (1, None, [[0], []]),
    ],
    ids=[
        "full", "short", "first-alone", "first-short", "nothing", "zeros", "longer-than-said",
        "size-unknown", "size-unknown-short",
    ],
)  # fmt: skip
def test_parts_are_filled_in_order(
    length: int, wanted: list[int] | None, expected: list[list[int]]
) -> None:
    parts = len(wanted) if wanted is not None else 2
    assert lists(fill(numbers(length), wanted, parts)) == expected


@given(length=sizes, batch=sizes, replicas=few)
def test_filling_loses_nothing_whatever_was_said_of_the_size(
    length: int, batch: int, replicas: int
) -> None:
    wanted = batch_sizes(batch, 1, replicas, 0)
    found = fill(numbers(length), wanted, replicas)
    assert len(found) == replicas
    assert joined(found) == list(range(length))
    if length <= batch:
        assert all(len(part) <= size for part, size in zip(found, wanted, strict=True))


# -- recut: batches put end to end -------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "wanted", "expected"),
    [
        ([4, 4], [2, 2], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([7, 7], [2, 2, 2, 1], [[0, 1], [2, 3], [4, 5], [6], [7, 8], [9, 10], [11, 12], [13]]),
        ([3, 3], [2], [[0, 1], [2, 3], [4, 5]]),
        ([3, 2], [2], [[0, 1], [2, 3], [4]]),
        ([2, 2], [3], [[0, 1, 2], [3]]),
        ([2], [1, 0], [[0], [], [1]]),
        ([1, 1], [0, 1], [[], [0], [], [1]]),
        ([1, 0, 0, 1], [2], [[0, 1]]),
        ([1, 0, 0, 1], [1, 0], [[0], [], [1]]),
        ([0, 0], [2], []),
        ([], [2], []),
        ([], [0, 1], []),
    ],
    ids=[
        "even", "rotating", "across-batches", "last-short", "sizes-grow", "zero-after",
        "zero-before", "empty-batches", "empty-batches-and-zero", "nothing-in-them", "no-batch",
        "no-batch-and-zero",
    ],
)  # fmt: skip
def test_batches_are_cut_anew_over_their_ends(
    counts: list[int], wanted: list[int], expected: list[list[int]]
) -> None:
    assert lists(recut(batches_of(counts), wanted)) == expected


@given(counts=lengths, batch=st.integers(1, 12), workers=few, replicas=few, data=st.data())
def test_cutting_anew_loses_nothing_repeats_nothing_and_keeps_to_the_sizes(
    counts: list[int], batch: int, workers: int, replicas: int, data: st.DataObject
) -> None:
    worker = data.draw(st.integers(0, workers - 1))
    wanted = batch_sizes(batch, workers, replicas, worker)
    found = list(recut(batches_of(counts), wanted))
    assert joined(found) == list(range(sum(counts)))
    got = [len(part) for part in found]
    asked = list(islice(cycle(wanted), len(got)))
    assert got[:-1] == asked[:-1]
    assert not got or got[-1] <= asked[-1]


def test_cutting_anew_reads_no_batch_before_it_is_needed() -> None:
    read: list[int] = []

    def source() -> Any:
        for number in range(3):
            read.append(number)
            yield np.array([number, number])

    parts = recut(source(), [1])
    assert not read
    next(parts), next(parts)
    assert read == [0]


# -- deal --------------------------------------------------------------------------------------


@given(count=sizes, workers=few)
def test_elements_are_dealt_in_turn_each_to_one_worker(count: int, workers: int) -> None:
    hands = [list(deal(range(count), workers, worker)) for worker in range(workers)]
    assert all(k % workers == worker for worker, hand in enumerate(hands) for k in hand)
    assert sorted(chain.from_iterable(hands)) == list(range(count))
    assert all(hand == sorted(hand) for hand in hands)


# -- structures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "split",
    [
        lambda batch: cut(batch, 3),
        lambda batch: fill(batch, [2, 2, 1], 3),
        lambda batch: list(recut([batch], [2])),
    ],
    ids=["cut", "fill", "recut"],
)
def test_leaves_of_a_structure_are_split_alike_and_keep_axes_and_dtypes(split: Any) -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for part in split({"x": x, "y": (np.arange(5), [x.astype(BFLOAT16)])}):
        assert part["x"].shape[1:] == (2,)
        assert part["x"].dtype == np.float32
        assert part["y"][1][0].dtype == BFLOAT16
        np.testing.assert_array_equal(part["x"][:, 0], part["y"][0] * 2)
        np.testing.assert_array_equal(part["x"], part["y"][1][0].astype(np.float32))


def test_joined_over_their_ends_structures_stay_structures() -> None:
    halves = [{"x": np.array([[1, 2]]), "y": [np.array([1])]}] * 2
    [whole] = recut(halves, [4])
    np.testing.assert_array_equal(whole["x"], [[1, 2], [1, 2]])
    np.testing.assert_array_equal(whole["y"][0], [1, 1])


def test_an_empty_batch_is_of_the_same_kind() -> None:
    empty = empty_like({"x": np.ones((3, 2), np.float16), "y": [np.arange(5)]})
    assert empty["x"].shape == (0, 2)
    assert empty["x"].dtype == np.float16
    assert empty["y"][0].shape == (0,)


def test_parts_share_the_batchs_memory() -> None:
    """Splitting copies nothing."""
    batch = np.arange(6)
    assert all(np.shares_memory(part, batch) for part in cut(batch, 2))
    assert all(np.shares_memory(part, batch) for part in fill(batch, [3, 3], 2))


class Tensor:
    """Of another framework: speaks DLPack, and nothing else."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)


def test_tensors_of_other_frameworks_become_arrays_of_the_same_memory() -> None:
    array = np.arange(4.0)
    [part, _] = cut(Tensor(array), 2)
    assert isinstance(part, np.ndarray)
    assert np.shares_memory(part, array)


NO_BATCH = "Call the `batch` method on the input Dataset.*"


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [
        (3.0, r"\(\)"),
        ((np.ones(3), 2.0), r"\(3,\).*\(\)"),
        ((np.ones(3), np.ones((2, 2))), r"\(3,\).*\(2, 2\)"),
    ],
    ids=["scalar", "mixed", "lengths"],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda batch: cut(batch, 2),
        lambda batch: fill(batch, [1, 1], 2),
        lambda batch: list(recut([batch], [1])),
        lambda batch: common_length(as_arrays(batch)),
    ],
    ids=["cut", "fill", "recut", "common_length"],
)
def test_what_has_no_common_first_axis_is_refused_with_its_shapes_and_the_way_out(
    use: Any, batch: Any, shapes: str
) -> None:
    with pytest.raises(ValueError, match=NO_BATCH + shapes):
        use(batch)


@pytest.mark.parametrize("batch", [3.0, (np.ones(3), 2.0)], ids=["scalar", "mixed"])
def test_nothing_is_like_a_single_example(batch: Any) -> None:
    with pytest.raises(ValueError, match=NO_BATCH):
        empty_like(batch)
