"""Values of any framework as numbers and NumPy arrays."""

from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array


def to_numpy(value: Any) -> Array:
    """Convert an array of NumPy, JAX or PyTorch (with a gradient or without), or a number, to one
    on the host.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(to_host(value) if hasattr(value, "dtype") else value)


def to_float(value: Any) -> float:
    """Convert a value of one element to a number."""
    return float(to_numpy(value).reshape(()))


def is_scalar(value: Any) -> bool:
    """Return whether a value has one element; shapes alone are asked, not values."""
    shape = getattr(value, "shape", None)
    return shape is None or int(np.prod(tuple(shape), dtype=np.int64)) == 1
