"""How a global batch becomes parts. Plain data in and out; expected parts are TensorFlow's, under
its default policy.
"""

import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.arrays.dtypes import BFLOAT16, Array
from ropewalk.distribute.data.sharding import as_arrays, common_length, cut, empty_like


def lists(parts: Any) -> list[list[int]]:
    return [np.asarray(part).tolist() for part in parts]


@pytest.mark.parametrize(
    ("length", "parts", "expected"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (7, 3, [[0, 1, 2], [3, 4, 5], [6]]),
        (4, 3, [[0, 1], [2, 3], []]),
        (2, 3, [[0], [1], []]),
        (1, 3, [[0], [], []]),
        (0, 2, [[], []]),
        (3, 1, [[0, 1, 2]]),
    ],
    ids=["even", "odd", "short", "empty", "two", "one", "nothing", "one-part"],
)
def test_parts_are_of_one_length_rounded_up_and_the_last_ones_short_or_empty(
    length: int, parts: int, expected: list[list[int]]
) -> None:
    assert lists(cut(np.arange(length), parts)) == expected


@given(length=st.integers(0, 40), workers=st.integers(1, 4), replicas=st.integers(1, 4))
def test_a_cut_loses_nothing_repeats_nothing_and_keeps_the_order(
    length: int, workers: int, replicas: int
) -> None:
    parts = workers * replicas
    found = lists(cut(np.arange(length), parts))
    assert len(found) == parts
    assert list(chain.from_iterable(found)) == list(range(length))
    assert all(len(part) <= math.ceil(length / parts) for part in found)
    dealt = [lists(cut(np.arange(length), parts, slice(i, None, workers))) for i in range(workers)]
    assert dealt == [found[i::workers] for i in range(workers)]


def test_leaves_of_a_structure_are_cut_alike_and_keep_axes_and_dtypes() -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for part in cut({"x": x, "y": (np.arange(5), [x.astype(BFLOAT16)])}, 3):
        assert part["x"].shape[1:] == (2,)
        assert part["x"].dtype == np.float32
        assert part["y"][1][0].dtype == BFLOAT16
        np.testing.assert_array_equal(part["x"][:, 0], part["y"][0] * 2)
        np.testing.assert_array_equal(part["x"], part["y"][1][0].astype(np.float32))


def test_an_empty_batch_is_of_the_same_kind() -> None:
    empty = empty_like({"x": np.ones((3, 2), np.float16), "y": [np.arange(5)]})
    assert empty["x"].shape == (0, 2)
    assert empty["x"].dtype == np.float16
    assert empty["y"][0].shape == (0,)
    rows, number = empty_like((np.ones((2, 3)), np.float32(2.5)))
    assert (rows.shape, number, number.dtype) == ((0, 3), 0, np.float32)


def test_parts_share_the_batchs_memory() -> None:
    """Cutting copies nothing."""
    batch = np.arange(6)
    assert all(np.shares_memory(part, batch) for part in cut(batch, 2))


class OnlyDlpack:
    """Of another framework: speaks DLPack, and nothing else."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)


def test_what_cannot_be_sliced_becomes_an_array_of_the_same_memory() -> None:
    array = np.arange(4.0)
    [part, _] = cut(OnlyDlpack(array), 2)
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
    [lambda batch: cut(batch, 2), lambda batch: common_length(as_arrays(batch))],
    ids=["cut", "common_length"],
)
def test_what_has_no_common_first_axis_is_refused_with_its_shapes_and_the_way_out(
    use: Any, batch: Any, shapes: str
) -> None:
    with pytest.raises(ValueError, match=NO_BATCH + shapes):
        use(batch)


@pytest.mark.parametrize("batch", [3.0, {"x": 1, "y": [2.0]}], ids=["scalar", "scalars"])
def test_nothing_is_like_a_single_example(batch: Any) -> None:
    with pytest.raises(ValueError, match=NO_BATCH):
        empty_like(batch)
