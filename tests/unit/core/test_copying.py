"""Work cut over cores covers everything once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.arrays.dtypes import BFLOAT16, DType
from ropewalk.core.arrays.gather_buffer import copy_into, joined, split


@given(st.integers(0, 5_000_000), st.sampled_from([1, 4, 8]))
def test_parts_cover_the_range_once_and_begin_at_multiples_of_16(count: int, itemsize: int) -> None:
    parts: list[tuple[int, int]] = []
    split(lambda start, stop: parts.append((start, stop)), count, itemsize=itemsize)
    parts.sort()
    assert parts[0][0] == 0
    assert parts[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert all(start % 16 == 0 for start, _ in parts)


@pytest.mark.parametrize("size", [0, 1, 1000, 5_000_001])
def test_a_copy_is_equal(size: int) -> None:
    source = np.random.default_rng(0).integers(0, 255, size).astype(np.uint8)
    target = np.zeros(size, np.uint8)
    copy_into(target, source)
    assert np.array_equal(source, target)


def test_an_error_in_a_part_reaches_the_caller() -> None:
    def work(start: int, stop: int) -> None:
        if stop == 10_000_000:
            raise ValueError("last part")

    with pytest.raises(ValueError, match="last part"):
        split(work, 10_000_000, itemsize=8)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.int8), BFLOAT16], ids=str)
def test_joined_arrays_stand_one_after_another_whatever_their_shapes(dtype: DType) -> None:
    whole = np.arange(12).astype(dtype).reshape(3, 4)
    arrays = [whole, whole.T, whole[:, ::2], np.asarray(7, dtype), whole[:0]]
    elements = joined(arrays)
    assert elements.dtype == dtype
    assert elements.tolist() == [each for array in arrays for each in array.ravel().tolist()]


def test_a_single_array_is_joined_without_a_copy() -> None:
    array = np.ones((2, 3), np.float32)
    assert np.shares_memory(joined([array]), array)
