"""IndexedSlices: rows of a larger array, in which repeated indices add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType
from ropewalk.core.arrays.indexed_slices import IndexedSlices

ROWS = 6


@st.composite
def slices(draw: st.DrawFn) -> IndexedSlices:
    """Any gradient of a table of 6 rows. Small whole numbers: sums are exact in any order."""
    indices = draw(st.lists(st.integers(0, ROWS - 1), max_size=12))
    row = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int32]))
    seed = draw(st.integers(0, 100))
    values = np.random.default_rng(seed).integers(-9, 10, (len(indices), *row)).astype(dtype)
    return IndexedSlices(values, np.array(indices, np.int64), (ROWS, *row))


@settings(deadline=None)
@given(slices())
def test_combining_does_not_change_the_gradient(gradient: IndexedSlices) -> None:
    np.testing.assert_array_equal(gradient.combined().to_dense(), gradient.to_dense())


@given(slices())
def test_combined_indices_ascend_and_are_those_that_were_there(gradient: IndexedSlices) -> None:
    indices = gradient.combined().indices.tolist()
    assert indices == sorted(set(gradient.indices.tolist()))


@given(slices())
def test_the_whole_array_is_the_sum_of_its_rows(gradient: IndexedSlices) -> None:
    expected = np.zeros(gradient.dense_shape or (), gradient.values.dtype)
    for index, row in zip(gradient.indices, gradient.values, strict=True):
        expected[index] += row
    np.testing.assert_array_equal(gradient.to_dense(), expected)


@pytest.mark.parametrize(
    "dtype",
    [np.dtype(n) for n in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")]
    + [BFLOAT16],
    ids=lambda dtype: dtype.name,
)
def test_rows_are_summed_in_the_values_dtype(dtype: DType) -> None:
    gradient = IndexedSlices(np.array([[1, 2], [3, 4], [5, 6]], dtype), np.array([4, 0, 4]))
    combined = gradient.combined()
    assert combined.values.dtype == dtype
    np.testing.assert_array_equal(combined.indices, [0, 4])
    np.testing.assert_array_equal(combined.values, np.array([[3, 4], [6, 8]], dtype))


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param([], id="nothing"),
        pytest.param([3], id="one row"),
        pytest.param([0, 2, 5], id="ascending already"),
    ],
)
def test_what_is_combined_already_is_not_copied(indices: list[int]) -> None:
    gradient = IndexedSlices(np.ones((len(indices), 2)), np.array(indices, np.int64), (6, 2))
    assert gradient.combined() is gradient


def test_combining_keeps_the_shape_of_the_whole() -> None:
    gradient = IndexedSlices(np.ones((2, 3)), np.array([1, 1]), (ROWS, 3))
    assert gradient.combined().dense_shape == (ROWS, 3)


def test_indices_of_any_integer_type_become_int64() -> None:
    assert IndexedSlices(np.ones(2), np.array([1, 2], np.uint8)).indices.dtype == np.int64


@pytest.mark.parametrize(
    ("values", "indices", "said"),
    [
        pytest.param(np.ones(2), np.array([[0, 1]]), r"of shape \(1, 2\) do", id="matrix"),
        pytest.param(np.ones(2), np.array([0.0, 1.0]), "integers, got float64", id="floats"),
        pytest.param(np.ones((3, 2)), np.array([0, 1]), r"\(3, 2\) and .*\(2,\)", id="too few"),
        pytest.param(np.array(1.0), np.array([0]), r"\(\) and .*\(1,\)", id="scalar"),
    ],
)
def test_rows_and_indices_that_do_not_fit_are_refused(
    values: Array, indices: Array, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        IndexedSlices(values, indices)


def test_without_a_shape_there_is_no_whole_array() -> None:
    with pytest.raises(ValueError, match="dense_shape is not known"):
        IndexedSlices(np.ones(1), np.array([0])).to_dense()


def test_dtype_and_shape_are_those_of_the_whole() -> None:
    rows = IndexedSlices(np.ones((2, 3), np.float32), np.asarray([4, 0]), (5, 3))
    assert rows.dtype == np.float32
    assert rows.shape == (5, 3)
    assert IndexedSlices(rows.values, rows.indices).shape is None


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0, 4), (1, 2, 2)], ids=str)
def test_indices_of_any_shape_are_kept_flat(shape: tuple[int, ...]) -> None:
    indices = np.arange(int(np.prod(shape))).reshape(shape)
    values = np.random.default_rng(0).normal(size=(*shape, 3, 2))
    kept = IndexedSlices(values, indices)
    np.testing.assert_array_equal(kept.indices, indices.reshape(-1))
    np.testing.assert_array_equal(kept.values, values.reshape(-1, 3, 2))
