"""Distinct keys of a step: made once, for the look-up and for the push of their gradients."""

import numpy as np

from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array
from .hashing import new_secret
from .index import INT64, as_keys, kernel_if_ready

_SECRET = new_secret()
_INT32 = np.dtype(np.int32)


def distinct(table: str, keys: Array, memory: BufferPools | None = None) -> tuple[Array, Array]:
    """The distinct keys, and where each key went.

    Args:
        table: The table's name, for messages.
        keys: int64, shape ``(n,)``. May repeat.
        memory: For the result and to work in; None: fresh memory.

    Returns:
        (the distinct keys in the order in which they first stand, int64, shape ``(count,)``;
        int64, shape ``(n,)``: ``unique[inverse]`` is ``keys``)

    Raises:
        ShapeMismatchError: The keys are no vector of int64.
    """
    keys = as_keys(table, keys)
    kernel = kernel_if_ready("distinct_keys")
    if kernel is None:
        return _by_numpy(keys)
    memory = memory if memory is not None else BufferPools()
    unique, inverse = (memory.take_array(keys.shape, INT64) for _ in range(2))
    bits = max(1, (2 * keys.size).bit_length())
    numbers = memory.take_array((1 << bits,), _INT32)
    numbers[:] = 0
    count = kernel(keys, _SECRET, 63 - bits, numbers, unique, inverse)
    return unique[:count], inverse


def _by_numpy(keys: Array) -> tuple[Array, Array]:
    ascending, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.empty(order.size, INT64)
    places[order] = np.arange(order.size)
    return ascending[order], places[inverse]
