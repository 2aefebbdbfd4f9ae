"""Values and row numbers in the form in which a variable takes them, checked."""

from typing import Any

import numpy as np

from ...core.arrays.any_framework import beside, to_host
from ...core.arrays.dtypes import DTYPES, Array, DType, is_float
from ...core.errors import ShapeMismatchError


def in_dtype(given: Any, dtype: DType, name: str) -> Any:
    """Convert what is written to a variable to its dtype.

    Raises:
        ShapeMismatchError: Floats for an integer variable, or integers its dtype does not hold.
        TypeError: Text, or complex numbers.
        ValueError: No array of numbers, such as None.
    """
    if given.dtype == dtype:
        return given
    if given.dtype.kind == "O":
        raise ValueError(f"the value for {name!r} is no array of numbers: {given}")
    if given.dtype not in DTYPES:
        raise TypeError(
            f"the value for {name!r} is {given.dtype.name}, the variable is {dtype.name}"
        )
    if is_float(given.dtype) and not is_float(dtype):
        raise ShapeMismatchError(
            f"the value for {name!r} is {given.dtype.name}, the variable is {dtype.name}; convert "
            "it explicitly",
            variable=name,
        )
    if dtype.kind in "iu" and given.dtype.kind in "iu" and given.size:
        with beside(given):
            low, high, limits = int(given.min()), int(given.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise ShapeMismatchError(
                f"the value for {name!r} has {low if low < limits.min else high}, the variable is "
                f"{dtype.name}, which goes from {limits.min} to {limits.max}",
                variable=name,
            )
    with beside(given):
        return given.astype(dtype, copy=False)


def row_numbers(indices: Any, shape: tuple[int, ...], name: str) -> Array:
    """Convert row numbers to integers; an empty list is no rows.

    Raises:
        TypeError: They are no integers.
        ShapeMismatchError: One is out of range. NumPy would count negative ones from the end.
    """
    numbers = to_host(indices)
    if numbers.size == 0:
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"rows of {name!r} are named by integers, got {numbers.dtype.name}")
    rows = shape[0] if shape else 0
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= rows:
        raise ShapeMismatchError(
            f"row {low if low < 0 else high} of {name!r} is out of range: it has {rows} rows",
            variable=name,
        )
    return numbers.astype(np.int64, copy=False)  # small ones would wrap when an offset is added
