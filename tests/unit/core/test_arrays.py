"""Dtypes a variable may have, and the one-pass check for NaN and infinity."""

import contextlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from helpers.rows import row
from helpers.strategies import text_of
from ropewalk.core.arrays.dtypes import (
    BFLOAT16,
    DTYPES,
    FLOATS,
    Array,
    DType,
    as_dtype,
    describe_dtype,
    described_dtype,
    is_float,
    num_rows,
    row_shape,
    same_values,
    size_of,
)
from ropewalk.core.arrays.finite import all_finite


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_dtype_is_found_by_its_name_and_by_itself(dtype: DType) -> None:
    assert as_dtype(dtype.name) == dtype
    assert as_dtype(dtype) == dtype
    assert as_dtype(dtype.type) == dtype


@pytest.mark.parametrize(
    "value",
    ["complex64", "float", "", "S5", np.complex128, np.dtype("datetime64[s]"), object, 7, None],
    ids=repr,
)
def test_what_is_no_dtype_of_a_variable_is_refused_with_the_list(value: object) -> None:
    with pytest.raises(TypeError, match=r"is no dtype of a variable; those are float32, .*bool"):
        as_dtype(value)


@pytest.mark.parametrize(
    "text",
    ["|b1", "|i1", "<u8", ">f4", "<f2", "<f16", "<c8", "<c32", "|S3", "<U12", "<M8", "<m8[ns]",
     "<M8[25s]", "bfloat16"],
)  # fmt: skip
def test_a_dtype_survives_its_description(text: str) -> None:
    assert describe_dtype(described_dtype(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "(1,f4", "(2,)<f4", "<f4,<f4", "V8", "|V8", "O", "|O", "<f3", "<f4 ", "<f4\n", "<U0",
     "<U999999999", "float32", "int", "<M8[B]", "<M8[1/3s]", "<M8[ns]//2", "\u0661", 4, None,
     ["<f4"], {"names": ["a"], "formats": ["<f4"]}],
    ids=repr,
)  # fmt: skip
def test_other_descriptions_are_refused_without_asking_numpy(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is the caller's, who knows where
        described_dtype(text)


@given(text_of("<>|=(),[]1248bBiufcSUmMOV:s{} ", max_size=8))
def test_any_description_is_a_dtype_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert described_dtype(text).kind in "biufcSUmM"


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype("f4,f4"), np.dtype("V8")], ids=str)
def test_what_is_not_numbers_strings_or_times_has_no_description(dtype: DType) -> None:
    with pytest.raises(TypeError):
        describe_dtype(dtype)


def test_update_rules_run_on_floats_alone() -> None:
    assert [dtype.name for dtype in DTYPES if is_float(dtype)] == [
        "float32",
        "float64",
        "float16",
        "bfloat16",
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_one_bad_element_is_found_wherever_it_is(dtype: DType) -> None:
    for bad, where in product([np.nan, np.inf, -np.inf], [0, 3, 5]):
        with row(bad, where):
            array = np.ones(6, dtype)
            assert all_finite(array)
            array[where] = bad
            assert not all_finite(array.reshape(2, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_huge_finite_values_are_finite_although_their_squares_overflow(dtype: DType) -> None:
    largest = np.array([3.0e38 if dtype in (np.float32, BFLOAT16) else 6.0e4], dtype)
    if dtype == np.float64:
        largest[0] = 1e308
    array = np.repeat(largest, 5)
    assert all_finite(array)
    array[4] = np.nan
    assert not all_finite(array)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.zeros((0, 3), np.float32), id="empty"),
        pytest.param(np.arange(3), id="integers"),
        pytest.param(np.array(1.5, np.float32), id="scalar"),
        pytest.param(np.ones((4, 6), np.float32)[::2, ::3], id="not contiguous"),
    ],
)
def test_these_are_finite(array: Array) -> None:
    assert all_finite(array)


@given(
    arrays_of.arrays(
        st.sampled_from([np.float32, np.float64, np.float16]),
        arrays_of.array_shapes(max_dims=3, max_side=5),
    )
)
def test_the_fast_check_agrees_with_numpy(array: Array) -> None:
    assert all_finite(array) == bool(np.isfinite(array).all())


@pytest.mark.parametrize(
    ("shape", "rows", "row", "size"),
    [
        pytest.param((), 1, (), 1, id="a scalar is its own row"),
        pytest.param((7,), 7, (), 7, id="vector"),
        pytest.param((7, 2, 3), 7, (2, 3), 42, id="rows are along axis 0"),
        pytest.param((0, 5), 0, (5,), 0, id="no rows"),
    ],
)
def test_rows_of_a_shape(
    shape: tuple[int, ...], rows: int, row: tuple[int, ...], size: int
) -> None:
    assert (num_rows(shape), row_shape(shape), size_of(shape)) == (rows, row, size)


def test_small_arrays_of_the_same_bytes_and_of_equal_numbers_have_the_same_values() -> None:
    zeros, nan = np.zeros(3, np.float32), np.full(3, np.nan, np.float32)
    assert same_values(zeros, -zeros)
    assert same_values(zeros, np.zeros(3, np.float64))
    assert same_values(nan, nan.copy())
    assert not same_values(nan, zeros)


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (500, 700)])
@pytest.mark.parametrize("step", [1, 2])
def test_arrays_of_the_same_values_differ_wherever_one_element_does(
    shape: tuple[int, ...], step: int
) -> None:
    left = np.random.default_rng(0).normal(size=(*shape, 2))[..., ::step]
    right = left.copy()
    assert same_values(left, right)
    assert not same_values(left, right[..., :0])
    for index in {0, right.size // 2, right.size - 1} if right.size else set():
        right.flat[index] += 1
        assert not same_values(left, right)
        right.flat[index] -= 1
        right.flat[index] = left.flat[index]
