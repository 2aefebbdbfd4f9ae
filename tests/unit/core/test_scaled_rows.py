"""Rows as int8 with a scale: how far they are off, and right in the mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ropewalk.core.arrays.dtypes import FLOATS, Array, DType
from ropewalk.core.arrays.scaled_rows import first_bad_scale, pack_rows, unpack_rows

F32 = np.dtype(np.float32)
_rows = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)
_keys = st.none() | st.tuples(*[st.integers(0, 2**64 - 1)] * 2)


@settings(max_examples=60, deadline=None)
@given(values=_rows, key=_keys)
def test_no_element_is_off_by_more_than_a_step(values: Array, key: tuple[int, int] | None) -> None:
    packed = pack_rows(values, key)
    assert packed.shape == (values.shape[0], values.shape[1] + 4)
    assert first_bad_scale(packed) is None
    step = np.abs(values).max(axis=1, initial=0)[:, None] / 127
    off = np.abs(unpack_rows(packed, F32) - values)
    # Steps below the smallest number of float32 are none.
    assert (off <= step * (0.5001 if key is None else 1.0001) + 1e-43).all()
    np.testing.assert_array_equal(pack_rows(values.copy(), key), packed)


@pytest.mark.parametrize("dtype", [*FLOATS], ids=str)
def test_rows_of_any_dtype_of_floats_are_those_of_float32(dtype: DType) -> None:
    rows = np.array([[0.5, -2.0, 1.25]], np.float32)
    packed = pack_rows(rows.astype(dtype))
    np.testing.assert_array_equal(packed, pack_rows(rows))
    assert unpack_rows(packed, dtype).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_many_is_the_value(dtype: type) -> None:
    row: Array = np.array([1.0, 0.123, -0.0456, 0.0, 1e-4], dtype)
    rows = unpack_rows(pack_rows(np.tile(row, (40_000, 1)), (5, 6)), np.dtype(np.float64))
    error = np.abs(rows.mean(axis=0) - row) * 127
    assert (error < 4 * 0.5 / 200).all()
    assert len({*rows[:, 1]}) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_shows_in_its_scale(bad: float) -> None:
    packed = pack_rows(np.array([[1, 2], [bad, 1]], np.float32), (0, 0))
    scale = first_bad_scale(packed)
    assert scale is not None
    assert not np.isfinite(scale)
    assert not np.isfinite(unpack_rows(packed, F32)[1]).all()
    np.testing.assert_array_equal(unpack_rows(packed, F32)[0, 1], np.float32(2))


def test_the_largest_numbers_stay_finite() -> None:
    rows = np.random.default_rng(0).uniform(0.999, 1, (1000, 2)) * np.finfo(np.float32).max
    packed = pack_rows(rows.astype(np.float32))
    assert first_bad_scale(packed) is None
    assert np.isfinite(unpack_rows(packed, F32)).all()
    packed[3, :4] = np.array([np.finfo(np.float32).max / 126], np.float32).view(np.uint8)
    assert first_bad_scale(packed) is not None


def test_a_negative_scale_is_bad() -> None:
    packed = pack_rows(np.ones((3, 2), np.float32))
    packed[2, :4] = np.array([-1.0], np.float32).view(np.uint8)
    assert first_bad_scale(packed) == -1
