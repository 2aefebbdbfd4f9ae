"""Rows of a sparse step: kernels and NumPy's way agree, bit for bit, with the plain definition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rows import row
from helpers.ways import on_four_cores, without_row_kernels
from ropewalk.core.arrays.dtypes import DTYPES, Array, DType
from ropewalk.engine import rows as row_functions
from ropewalk.engine.rows import (
    deduplicate,
    gather_rows,
    prepare,
    sum_duplicates,
)

F32 = np.dtype(np.float32)
all_types = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


@pytest.fixture(params=["kernel", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, whatever the size."""
    if request.param == "kernel":
        prepare()
        monkeypatch.setattr(row_functions, "_SMALL_BYTES", 0)
        monkeypatch.setattr(row_functions, "_SMALL_COUNT", 0)
    else:
        without_row_kernels(monkeypatch)
    return str(request.param)


def in_order(values: Array, inverse: Array, count: int) -> Array:
    """The definition: the first row is copied, each later one added where it stands."""
    out: Array = np.zeros((count, values.shape[1]), values.dtype)
    seen: set[int] = set()
    with np.errstate(over="ignore"):
        for row, value in zip(inverse.tolist(), values, strict=True):
            out[row] = out[row] + value if row in seen else value
            seen.add(row)
    return out


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


# -- deduplicate -----------------------------------------------------------------------------


def check_deduplicated(ids: Array, num_rows: int) -> None:
    unique, inverse = deduplicate(ids, num_rows)
    expected, where = np.unique(ids, return_inverse=True)
    assert unique.dtype == inverse.dtype == np.int64
    np.testing.assert_array_equal(unique, expected)
    np.testing.assert_array_equal(inverse, where)
    np.testing.assert_array_equal(unique[inverse], ids)


@pytest.mark.parametrize(
    ("count", "num_rows"),
    [(0, 5), (0, 0), (1, 1), (1, 2**62), (100, 63), (100, 64), (100, 65), (5000, 10), (5000, 10**6),
     (300, 2048), (300, 2**11 * 64 * 300), (5000, 2**31), (5000, 2**51 - 1), (5000, 2**51),
     (5000, 2**63 - 1), (300_000, 2**24 + 5)],
    ids=str,
)  # fmt: skip
def test_distinct_ids_ascend_and_every_id_is_found_again(count: int, num_rows: int) -> None:
    ids = np.random.default_rng(1).integers(0, max(num_rows, 1), count)
    check_deduplicated(ids, num_rows)
    check_deduplicated(np.sort(ids)[::-1], num_rows)
    check_deduplicated(np.full(count, max(num_rows - 1, 0)), num_rows)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), num_rows=st.sampled_from([1, 64, 65, 1000, 2**22, 2**40]))
def test_any_ids_are_deduplicated(data: st.DataObject, num_rows: int) -> None:
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=200))
    check_deduplicated(np.array(ids, np.int64), num_rows)


@pytest.mark.parametrize("num_rows", [100, 2**40], ids=["bitmap", "sort"])
@pytest.mark.parametrize("bad", [-1, 2**40, -(2**63)], ids=str)
def test_an_id_out_of_range_is_named(num_rows: int, bad: int) -> None:
    with pytest.raises(
        ValueError, match=f"deduplicate: id {bad} is out of range.* {num_rows} rows"
    ):
        deduplicate(np.array([3, bad, 4]), num_rows)


def test_a_small_step_on_a_huge_table_takes_memory_by_its_ids() -> None:
    assert row_functions._takes_bitmap(106_496, 1_000_000)
    assert not row_functions._takes_bitmap(1_000, 1_000_000)
    assert not row_functions._takes_bitmap(1_000_000, 60_000_000)
    assert row_functions._takes_bitmap(10_000_000, 60_000_000)


# -- sums ------------------------------------------------------------------------------------


@all_types
def test_sums_are_those_of_adding_in_order_to_the_bit(dtype: DType) -> None:
    for width in [1, 33]:
        with row(width):
            rng = np.random.default_rng(2)
            values, inverse = numbers(rng, (500, width), dtype), rng.integers(0, 40, 500)
            summed = sum_duplicates(values, inverse, np.empty((40, width), dtype))
            assert summed.dtype == dtype
            assert summed.tobytes() == in_order(values, inverse, 40).tobytes()


def test_the_order_matters_and_is_kept() -> None:
    values = np.array([[1e8], [1.0], [-1e8], [1.0]], F32)
    one, out = np.zeros(4, np.int64), np.empty((1, 1), F32)
    assert sum_duplicates(values, one, out).tolist() == [[1.0]]
    assert sum_duplicates(values[[0, 2, 1, 3]], one, out).tolist() == [[2.0]]


def test_a_lone_negative_zero_stays_one_and_rows_of_nothing_are_zero() -> None:
    summed = sum_duplicates(np.array([[-0.0]], F32), np.array([1]), np.ones((3, 1), F32))
    assert np.signbit(summed).tolist() == [[False], [True], [False]]
    assert not summed.any()


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    width=st.integers(0, 5),
    count=st.integers(1, 8),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_rows_are_summed(
    data: st.DataObject, width: int, count: int, dtype: type[np.floating]
) -> None:
    inverse = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=40)), np.int64)
    seed = data.draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).standard_normal((inverse.size, width)).astype(dtype)
    expected = in_order(values, inverse, count)
    out = np.empty((count, width), dtype)
    assert sum_duplicates(values, inverse, out).tobytes() == expected.tobytes()
    first, last = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    part = sum_duplicates(values, inverse, out[first:last], first)
    assert part.tobytes() == expected[first:last].tobytes()


def test_rows_that_belong_elsewhere_are_left_out() -> None:
    inverse = np.array([3, -1, 2**40, 2, 3, -(2**63)])
    summed = sum_duplicates(np.ones((6, 2), F32), inverse, np.empty((2, 2), F32), 2)
    assert summed.tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("shape", [(3, 3), (2,)], ids=str)
def test_sums_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sum_duplicates: values have shape .*, expected 2 rows"):
        sum_duplicates(np.ones(shape, F32), np.array([0, 1]), np.empty((5, 3), F32))
    with pytest.raises(ValueError, match="sum_duplicates: out is float32"):
        sum_duplicates(np.ones((2, 3), F32), np.array([0, 1]), np.empty((5, 2), F32))


# -- gathering -------------------------------------------------------------------------------


@all_types
def test_gathered_rows_are_those_of_the_table(dtype: DType) -> None:
    for width in [1, 700]:
        with row(width):
            rng = np.random.default_rng(3)
            table, chosen = numbers(rng, (50, width), dtype), rng.integers(0, 50, 90)
            gathered = gather_rows(table, chosen)
            assert gathered.dtype == dtype
            assert gathered.tobytes() == table[chosen].tobytes()
            out = np.empty((90, width), dtype)
            assert gather_rows(table, chosen, out) is out
            assert out.tobytes() == table[chosen].tobytes()


@pytest.mark.parametrize("chosen", [[], [2], [2, 2, 0]], ids=str)
@pytest.mark.parametrize("width", [0, 1])
def test_no_rows_and_rows_without_elements_are_no_special_case(
    chosen: list[int], width: int
) -> None:
    gathered = gather_rows(np.ones((3, width), F32), np.array(chosen, np.int64))
    assert gathered.shape == (len(chosen), width)


def test_row_numbers_and_tables_may_lie_at_odd_addresses() -> None:
    """Both come out of received frames."""
    chosen = np.frombuffer(b"x" + np.array([1, 0], np.int64).tobytes(), np.int64, offset=1)
    table = np.frombuffer(b"x" + np.arange(4, dtype=F32).tobytes(), F32, offset=1).reshape(2, 2)
    assert gather_rows(table, chosen).tolist() == [[2, 3], [0, 1]]


def test_several_cores_copy_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    on_four_cores(monkeypatch)
    rng = np.random.default_rng(4)
    table, chosen = numbers(rng, (1000, 5), F32), rng.integers(0, 1000, 3001)
    np.testing.assert_array_equal(gather_rows(table, chosen), table[chosen])


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "row-high": (lambda: gather_rows(np.ones((3, 2)), np.array([3])), "row 3 is out of range; .* 3 "
                                                                      "rows"),
    "row-negative": (lambda: gather_rows(np.ones((3, 2)), np.array([-1])), "row -1 is out of "
                                                                           "range"),
    "rows-dtype": (lambda: gather_rows(np.ones((3, 2)), np.array([1], np.int32)),
                   r"rows is int32\[1\], expected a vector of int64"),
    "table-vector": (lambda: gather_rows(np.ones(3), np.array([1])), r"the table has shape \(3,\)"),
    "table-strided": (lambda: gather_rows(np.ones((3, 4))[:, ::2], np.array([1])), "contiguous "
                                                                                   "rows"),
    "out-shape": (lambda: gather_rows(np.ones((3, 2)), np.array([1]), np.ones((2, 2))),
                  r"out is float64\[2, 2\], expected float64\[1, 2\]"),
    "out-dtype": (lambda: gather_rows(np.ones((3, 2)), np.array([1]), np.ones((1, 2), F32)),
                  r"out is float32\[1, 2\], expected float64\[1, 2\]"),
    "out-strided": (lambda: gather_rows(np.ones((3, 2)), np.array([1, 1]), np.ones((2, 4))[:, ::2]),
                    "out is not contiguous"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_gather_that_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"gather_rows: .*{message}"):
        call()
