"""Nested structures as bytes: they come back as they were, and nothing else can be read."""

import contextlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from helpers.strategies import text_of
from ropewalk.core.errors import RefusedError
from ropewalk.core.wire.structures import from_parts, to_parts


def there_and_back(value: Any) -> Any:
    structure, parts = to_parts(value)
    return from_parts(structure, [memoryview(bytearray(part)) for part in parts])


TEXT = text_of('aé"\\', max_size=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.binary()
KEYS = TEXT | st.integers() | st.tuples(st.integers(), TEXT)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=NESTED)
def test_plain_values_keep_their_types(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value)


@given(
    array=st_numpy.arrays(
        st_numpy.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc"),
        st_numpy.array_shapes(min_dims=0, min_side=0),
    )
)
def test_arrays_keep_their_dtype_shape_and_bytes(array: np.ndarray[Any, Any]) -> None:
    back = there_and_back({"a": [array, array.T]})["a"]
    for got, sent in zip(back, (array, array.T), strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tobytes() == np.ascontiguousarray(sent).tobytes()


def test_bfloat16_and_scalars_of_numpy() -> None:
    half = np.arange(4).astype(ml_dtypes.bfloat16)
    back = there_and_back((half, np.float32(0.5), np.int64(3)))
    assert back[0].dtype == half.dtype
    assert back[0].tolist() == half.tolist()
    assert back[1] == np.float32(0.5)
    assert back[1].dtype == np.float32
    assert back[2].dtype == np.int64


def test_what_comes_back_may_be_changed() -> None:
    back = there_and_back(np.zeros(3))
    back += 1
    assert back.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "the result is a object"),
        ({"a": [1, {2}]}, r"the result\['a'\]\[1\] is a set"),
        (np.array([object()]), "an array of object"),
        ({object(): 1}, "a key of the result is a object"),
    ],
)
def test_what_cannot_be_sent_is_named(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        to_parts(value)


def test_a_list_in_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="more than 64 deep"):
        to_parts(endless)


@pytest.mark.parametrize(
    "described",
    [
        ["array", "O", [1]],
        ["array", "<f4", [3]],
        ["array", "<f4", [-1, 0]],
        ["array"],
        ["list", 3],
        ["dict", [1]],
        ["dict", [[["list", []], 1]]],
        ["surprise"],
        [],
        ["bytes"],
        3,
    ],
)
def test_nonsense_is_refused(described: Any) -> None:
    parts = [memoryview(bytearray(8)), memoryview(bytearray(8))]
    with pytest.raises(RefusedError, match="a result cannot be read"):
        from_parts(json.dumps(described).encode(), parts)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        from_parts(data, [])


@pytest.mark.parametrize(
    "described",
    [
        ["array", "(1,f4", [1]],
        ["array", "(2,)f4", [1]],
        ["array", "f4,f4", [1]],
        ["array", "V8", [1]],
        ["array", "float64", [1]],
        ["array", "<f4", 2],
        ["array", "<f4", [True, 2]],
        ["array", "<f4", [10**30]],
        ["array", "<f4", [2], 1],
        ["array", 4, [2]],
        ["list", "ab"],
        ["dict", {"a": 1}],
        {"a": 1},
        [["list", []], []],
    ],
    ids=str,
)
def test_what_is_almost_an_array_is_refused(described: Any) -> None:
    parts = [memoryview(bytearray(8))]
    with pytest.raises(RefusedError, match="a result cannot be read"):
        from_parts(json.dumps(described).encode(), parts if "array" in described else [])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text_of("(1,f4<UM8[s]", max_size=6)
    | st.sampled_from(["array", "bytes", "dict", "list", "tuple", "<f4", "|b1", "<U3"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=12,
)


@given(JSON, st.lists(st.binary(max_size=9), max_size=3))
@example(["array", "(1,f4", [1]], [b"abcd"])
@example(["array", "<f4", [2**70]], [b"abcd"])
@example(["tuple", [["bytes"]]], [])
def test_any_structure_is_refused_or_read(described: Any, parts: list[bytes]) -> None:
    with contextlib.suppress(RefusedError):
        from_parts(json.dumps(described).encode(), [memoryview(part) for part in parts])


def test_deep_nonsense_is_refused() -> None:
    with pytest.raises(RefusedError):
        from_parts(b"[" * 100_000, [])
