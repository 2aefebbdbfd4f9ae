"""Random examples of the shapes of others, on which code of a program is tried once."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from .frameworks import keras


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of an array; sizes that are not known are 2."""

    shape: tuple[int, ...]
    dtype: str


def specs_of(tree: Any) -> Any:
    """Replace the arrays of a nested structure by specs."""
    return keras.tree.map_structure(_spec, tree)


def drawn(specs: Any, rng: np.random.Generator) -> Any:
    """Draw arrays of NumPy for the specs of a nested structure: below 1, and 0 or 1 of whole
    numbers.
    """
    return keras.tree.map_structure(lambda leaf: _drawn(leaf, rng), specs)


def as_tensors(tree: Any) -> Any:
    """Replace the arrays of a nested structure by tensors."""
    return keras.tree.map_structure(
        lambda leaf: keras.ops.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf,
        tree,
    )


def number_of(value: Any) -> Array:
    """Read a tensor on the host."""
    return np.array(keras.ops.convert_to_numpy(value), np.float64)


def called_apart(function: Callable[[], Any]) -> Any:
    """Call a function where nothing is traced; Python's random numbers go on as without it."""
    state = random.getstate()
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="try") as thread:
            return thread.submit(function).result()
    finally:
        random.setstate(state)


def _spec(leaf: Any) -> Any:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return leaf
    shape = tuple(2 if size is None else int(size) for size in leaf.shape)
    return Spec(shape, keras.backend.standardize_dtype(leaf.dtype))


def _drawn(leaf: Any, rng: np.random.Generator) -> Any:
    if not isinstance(leaf, Spec):
        return leaf
    is_float = keras.backend.is_float_dtype(leaf.dtype)
    numbers = rng.random(leaf.shape) if is_float else rng.integers(0, 2, leaf.shape)
    return numbers.astype("float32" if leaf.dtype == "bfloat16" else leaf.dtype)
