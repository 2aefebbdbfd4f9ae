"""Indexing a variable that is cut into shards is indexing the whole array, as NumPy does it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from helpers.rows import row
from helpers.sharded import KINDS
from ropewalk.distribute import ShardedVariable

many = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KEEP: dict[str, ShardedVariable] = {}


def kept(kind: str) -> ShardedVariable:
    """One variable for all examples of a test that only reads."""
    if kind not in KEEP:
        KEEP[kind] = KINDS[kind](np.arange(60, dtype=np.float32).reshape(10, 3, 2))
    return KEEP[kind]


CUBE = np.arange(60, dtype=np.float32).reshape(10, 3, 2)


@pytest.mark.parametrize("kind", KINDS)
@many
@given(index=basic_indices(CUBE.shape, allow_newaxis=True, max_dims=6))
def test_basic_indexing_is_numpys(kind: str, index: Any) -> None:
    found = kept(kind)[index]
    np.testing.assert_array_equal(found, CUBE[index])
    assert np.shape(found) == np.shape(CUBE[index])


numbers = st.integers(-12, 12) | st.none()
steps = st.integers(-12, 12).filter(bool) | st.none()


@pytest.mark.parametrize("kind", KINDS)
@many
@given(
    first=st.builds(slice, numbers, numbers, steps),
    second=st.builds(slice, numbers, numbers, steps) | st.integers(-3, 2) | st.none(),
)
def test_slices_past_the_ends_and_with_any_step_are_numpys(
    kind: str, first: Any, second: Any
) -> None:
    np.testing.assert_array_equal(kept(kind)[first, second], CUBE[first, second])


@pytest.mark.parametrize("kind", KINDS)
@many
@given(
    mask=st.lists(st.booleans(), min_size=10, max_size=10),
    rest=st.sampled_from([(), (1,), (slice(None), 0), (..., slice(None, None, -1)), (None,)]),
)
def test_masks_are_numpys(kind: str, mask: list[bool], rest: tuple[Any, ...]) -> None:
    for first in (mask, np.array(mask)):
        np.testing.assert_array_equal(kept(kind)[(first, *rest)], CUBE[(first, *rest)])


MIXED: dict[str, Any] = {
    "numbers": [3, 9, 3, -1],
    "array": np.array([[0, 9], [5, 5]]),
    "no-numbers": np.array([], np.int64),
    "numbers-and-column": ([0, 9], slice(None), 1),
    "pairs": ([0, 9], [2, 1]),
    "int-slice-array": (2, slice(None), [0, 1]),
    "mask-and-numbers": (np.arange(10) < 2, [2, 1]),
    "whole-mask": CUBE > 30,
    "mask-of-two-axes": CUBE[:, :, 0] > 30,
    "numpy-int": np.int64(-3),
    "zero-d": np.array(4),
    "true": True,
    "false": False,
    "nothing": (),
    "ellipsis": ...,
    "newaxis": None,
    "element": (9, 2, 1),
    "numpy-element": (np.int8(-1), -1, np.uint8(0)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_indices_are_numpys_too(kind: str) -> None:
    for index in MIXED:
        with row(index):
            found, expected = kept(kind)[MIXED[index]], CUBE[MIXED[index]]
            np.testing.assert_array_equal(found, expected)
            assert np.shape(found) == np.shape(expected)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (10, IndexError, "index 10 is out of bounds for 'v' with 10 rows"),
        (-11, IndexError, "index -11 is out of bounds"),
        ((0, 3), IndexError, "out of bounds"),
        ((slice(None), 3), IndexError, "out of bounds"),
        ((slice(1, 3), 0, 2), IndexError, "out of bounds"),
        ((0, 0, 0, 0), IndexError, "too many indices"),
        (slice(None, None, 0), ValueError, "step cannot be zero"),
        ((slice(1, 2), slice(0, 1, 0)), ValueError, "step cannot be zero"),
        (1.0, IndexError, "integers"),
        ("v", IndexError, "integers"),
        ([True] * 9, IndexError, "boolean index did not match"),
        ([0, 10], IndexError, "out of bounds"),
    ],
    ids=[
        "past-the-end", "before-the-start", "column", "column-of-all", "column-of-some", "too-many",
        "step-0", "step-0-behind", "float", "text", "short-mask", "numbers",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_index_is_an_error_as_numpys(
    kind: str, index: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kept(kind)[index]
    with pytest.raises(error):
        CUBE[index]
