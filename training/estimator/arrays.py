"""Values of any framework as numbers and NumPy arrays."""

from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array


def to_numpy(value: Any) -> Array:
    """An array on the host: of NumPy, JAX, PyTorch (with a gradient or without), or a number."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(to_host(value) if hasattr(value, "dtype") else value)


def to_float(value: Any) -> float:
    """A number of one element."""
    return float(to_numpy(value).reshape(()))


def is_scalar(value: Any) -> bool:
    """Whether it has one element; shapes alone are asked, not values."""
    shape = getattr(value, "shape", None)
    return shape is None or int(np.prod(tuple(shape), dtype=np.int64)) == 1
