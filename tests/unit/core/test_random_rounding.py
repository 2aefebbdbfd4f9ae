"""Rounding at random: to a neighbour, right in the mean, and the same for the same key."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType, narrow
from ropewalk.core.arrays.scaled_rows import round_randomly

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
HALVES = pytest.mark.parametrize("wire", [F16, BFLOAT16], ids=lambda dtype: dtype.name)
_finite = arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32, allow_nan=False))


def neighbours(value: Array, wire: DType) -> tuple[Array, Array]:
    """The largest numbers not above, and the smallest not below, as float64."""
    nearest = narrow(value, wire)
    with np.errstate(over="ignore"):  # beside the largest number is infinity
        up = np.nextafter(nearest, wire.type(np.inf)).astype(np.float64)
        down = np.nextafter(nearest, wire.type(-np.inf)).astype(np.float64)
    exact, near = value.astype(np.float64), nearest.astype(np.float64)
    return np.where(near <= exact, near, down), np.where(near >= exact, near, up)


@HALVES
@settings(max_examples=60, deadline=None)
@given(values=_finite, key=st.tuples(*[st.integers(0, 2**64 - 1)] * 2))
def test_each_value_becomes_one_of_its_neighbours(
    wire: DType, values: Array, key: tuple[int, int]
) -> None:
    rounded = round_randomly(values, wire, key)
    assert rounded.dtype == wire
    largest = narrow(np.array([np.inf], np.float32), wire)[0]
    low, high = neighbours(np.clip(values, -F32.type(largest), F32.type(largest)), wire)
    exact = rounded.astype(np.float64)
    assert ((exact == low) | (exact == high)).all()
    again = round_randomly(values.copy(), wire, key)
    np.testing.assert_array_equal(again.view(np.uint16), rounded.view(np.uint16))


@HALVES
@pytest.mark.parametrize("scale", [1.0, 1e-6, 3e-8], ids=["normal", "small", "tiny"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_many_is_the_value(wire: DType, scale: float, dtype: type) -> None:
    value = np.float32(scale * 1.2345678)
    rounded = round_randomly(np.full(40_000, value, dtype), wire, (3, 4)).astype(np.float64)
    low, high = (side[0] for side in neighbours(np.array([value]), wire))
    assert set(rounded) == {low, high}
    error = abs(rounded.mean() - float(value)) / (high - low)
    assert error < 4 * 0.5 / 200  # four standard deviations at most
    negative = round_randomly(np.full(40_000, -value, dtype), wire, (3, 4)).astype(np.float64)
    np.testing.assert_array_equal(negative, -rounded)


@HALVES
def test_what_is_no_number_stays_and_what_is_too_large_is_the_largest(wire: DType) -> None:
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, 0.0, -0.0], np.float32)
    rounded = round_randomly(values, wire, (1, 2))
    assert np.isnan(rounded[:2].astype(np.float32)).all()
    np.testing.assert_array_equal(rounded[2:], narrow(values[2:], wire))


def test_other_keys_give_other_draws() -> None:
    values = np.full(1000, 1.001, np.float32)
    one, two = (round_randomly(values, BFLOAT16, (key, 7)) for key in (1, 2))
    assert (one != two).any()


def test_to_a_wider_dtype_nothing_is_drawn() -> None:
    values = np.array([1 / 3], np.float64)
    assert round_randomly(values, F32, (1, 1))[0] == np.float32(1 / 3)
