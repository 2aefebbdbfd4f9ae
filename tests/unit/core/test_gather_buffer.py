"""Runs of a payload: one way to gather arrays into memory, and one to hand out their bytes."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.rows import row
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, Array, DType
from ropewalk.core.arrays.gather_buffer import GatherBuffer

F32 = np.dtype(np.float32)


def gathered(arrays: list[Array], dtype: DType) -> GatherBuffer:
    return GatherBuffer(arrays, dtype, sum(array.size for array in arrays) * dtype.itemsize)


def reference(arrays: list[Array], dtype: DType) -> bytes:
    with np.errstate(over="ignore"):
        return np.concatenate([array.astype(dtype).reshape(-1) for array in arrays]).tobytes()


def written(made: GatherBuffer, shift: int = 0) -> bytes:
    """What ``write`` puts into memory that begins ``shift`` bytes behind an aligned place."""
    room = np.full(made.num_bytes + 64, 0xAB, np.uint8)
    start = -room.ctypes.data % 16 + shift
    made.write(room[start : start + made.num_bytes])
    outside = np.delete(room, slice(start, start + made.num_bytes))
    assert (outside == 0xAB).all(), "nothing beside it is touched"
    return room[start : start + made.num_bytes].tobytes()


@st.composite
def arrays_of(draw: st.DrawFn, dtypes: tuple[DType, ...]) -> Array:
    """Small arrays in every shape and memory order, also views with holes."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(dtypes))
    size = int(np.prod(shape, dtype=int))
    numbers = np.array(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    array: Array = (numbers * draw(st.integers(1, 100))).astype(dtype).reshape(shape)
    form = draw(st.sampled_from(["C", "F", "strided", "reversed", "read-only"]))
    if form == "F":
        array = np.asfortranarray(array)
    elif form == "strided" and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    elif form == "reversed" and array.ndim:
        array = array[::-1]
    elif form == "read-only":
        array.flags.writeable = False
    return array


@given(
    dtype=st.sampled_from(DTYPES),
    arrays=st.lists(arrays_of(DTYPES), min_size=1, max_size=6),
    shift=st.integers(0, 15),
)
def test_bytes_are_those_of_the_arrays_one_after_another_in_one_dtype(
    dtype: DType, arrays: list[Array], shift: int
) -> None:
    made, expected = gathered(arrays, dtype), reference(arrays, dtype)
    assert written(made, shift) == expected
    assert bytes(made.buffer()) == expected
    assert bytes(made.detached().buffer()) == expected
    assert written(made.detached(), shift) == expected


def test_every_dtype_is_gathered_without_a_cast() -> None:
    for dtype, count in product(DTYPES, [1, 2, 300]):
        with row(dtype, count):
            arrays = [(np.arange(i % 5) % 2).astype(dtype) for i in range(1, count + 1)]
            made, expected = gathered(arrays, dtype), reference(arrays, dtype)
            for shift in (0, 1, 7):
                assert written(made, shift) == expected
            assert bytes(made.buffer()) == expected


@pytest.mark.parametrize("dtype", [F32, BFLOAT16], ids=["float32", "bfloat16"])
def test_arrays_without_elements_are_no_bytes(dtype: DType) -> None:
    for shapes in ([(0,)], [(0, 3), (2, 0)], [(0,), (2,), (0,)]):
        arrays = [np.ones(shape, dtype) for shape in shapes]
        made = gathered(arrays, dtype)
        assert bytes(made.buffer()) == written(made) == reference(arrays, dtype)


def test_a_large_array_is_written_whole() -> None:
    """Over what one core copies alone."""
    values = np.random.default_rng(0).integers(0, 255, 5_000_001).astype(np.uint8)
    assert written(gathered([values], values.dtype)) == values.tobytes()


def test_the_bytes_of_one_plain_array_are_not_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = np.frombuffer(gathered([array], F32).buffer(), np.uint8)
    assert np.shares_memory(buffer, array)


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param([np.ones(3, np.float32)], id="plain"),
        pytest.param([np.ones(3, np.float32), np.ones(2, np.float32)], id="joined"),
        pytest.param([np.ones(3, np.float64)], id="cast"),
    ],
)
def test_what_was_detached_stays_when_the_arrays_change(arrays: list[Array]) -> None:
    own = gathered([array.copy() for array in arrays], F32)
    kept = own.detached()
    assert kept.num_bytes == own.num_bytes
    for array in own.arrays:
        array[...] = 7
    assert bytes(kept.buffer()) == reference(arrays, F32)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array([1e300, -1e300]), F32, np.array([np.inf, -np.inf], np.float32)),
        (np.array([1.5, 2.7]), np.dtype(np.int32), np.array([1, 2], np.int32)),
        (np.array([1 + 2**-9], np.float32), BFLOAT16, np.array([1.0], BFLOAT16)),
    ],
    ids=["over-the-range", "fractions", "rounded"],
)
def test_a_cast_that_loses_something_is_numpys_and_does_not_complain(
    values: Any, dtype: DType, expected: Array
) -> None:
    assert written(gathered([values], dtype)) == expected.tobytes()
