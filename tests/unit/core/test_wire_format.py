"""What may be left out on the way: which settings make sense, and what they narrow."""

from typing import Any

import numpy as np
import pytest

from helpers.rows import row
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, DType, as_dtype
from ropewalk.core.wire.steps import WireFormat

WIDE = (np.dtype(np.float32), np.dtype(np.float64))


@pytest.mark.parametrize("what", ["gradients", "values"])
@pytest.mark.parametrize("name", ["float32", "int8", "float8_e4m3", "", "half"])
def test_a_dtype_that_is_not_narrow_is_refused_by_name(what: str, name: str) -> None:
    with pytest.raises(
        ValueError, match=f"^{what}='{name}': travels as float16 or bfloat16, or None$"
    ):
        WireFormat(**{what: name})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), float("inf"), True])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(ValueError, match=r"top_k=.* is no share between 0 and 1; None sends all"):
        WireFormat(top_k=share)


@pytest.mark.parametrize("share", [1e-9, 0.5, 1 - 1e-9])
def test_shares_between_nothing_and_all_are_taken(share: float) -> None:
    assert WireFormat(top_k=share).top_k == share


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_without_settings_nothing_is_narrowed(dtype: DType) -> None:
    assert WireFormat().gradient_dtype(dtype) == WireFormat().value_dtype(dtype) == dtype
    assert WireFormat(top_k=0.1).gradient_dtype(dtype) == dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_wide_floats_are_narrowed_and_nothing_else(name: str) -> None:
    for dtype in DTYPES:
        with row(dtype):
            narrowed = as_dtype(name) if dtype in WIDE else dtype
            gradients, values = WireFormat(gradients=name), WireFormat(values=name)
            assert gradients.gradient_dtype(dtype) == values.value_dtype(dtype) == narrowed
            assert gradients.value_dtype(dtype) == values.gradient_dtype(dtype) == dtype


def test_a_half_is_not_made_another_half() -> None:
    assert WireFormat(gradients="float16").gradient_dtype(BFLOAT16) == BFLOAT16
