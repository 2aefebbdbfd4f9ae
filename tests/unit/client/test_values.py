"""Pulled values: a read-only mapping over one buffer, and buffers that are used again."""

from collections.abc import Mapping

import numpy as np
import pytest

from ropewalk.client.ps.pull_plans import Values, ValueSpan
from ropewalk.core.arrays.dtypes import BFLOAT16, Array

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
PLACES: dict[str, ValueSpan] = {
    "a": (0, 16, (2, 2), F32, F32),
    "b": (16, 20, (2,), BFLOAT16, F32),
    "c": (20, 20, (0, 3), F32, F32),
    "d": (24, 32, (), F64, F64),
}


def filled() -> Array:
    buffer = np.zeros(32, np.uint8)
    buffer[:16].view(F32)[:] = [1, 2, 3, 4]
    buffer[16:20].view(BFLOAT16)[:] = [5, 6]
    buffer[24:32].view(F64)[:] = 7
    return buffer


# -- values ------------------------------------------------------------------------------------


def test_values_are_a_mapping_in_order() -> None:
    values = Values(PLACES, filled())
    assert isinstance(values, Mapping)
    assert (list(values), len(values)) == (list("abcd"), 4)
    assert "a" in values
    assert "z" not in values
    with pytest.raises(KeyError, match="z"):
        values["z"]
    assert values.get("z") is None


def test_each_value_has_its_variables_shape_and_dtype_whatever_it_travelled_as() -> None:
    values = Values(PLACES, filled())
    np.testing.assert_array_equal(values["a"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(values["b"], [5, 6])
    assert values["c"].shape == (0, 3)
    assert values["d"] == 7
    assert [values[name].dtype for name in values] == [F32, F32, F32, F64]


def test_values_are_read_only_and_made_once() -> None:
    values = Values(PLACES, filled())
    for name in values:
        assert values[name] is values[name]
        with pytest.raises(ValueError, match="read-only"):
            values[name][...] = 1


def test_an_array_is_made_when_it_is_asked_for() -> None:
    values = Values(PLACES, filled())
    assert list(values) == list("abcd")
    assert not values._made
    assert values["a"].base is not None
    assert list(values._made) == ["a"]
