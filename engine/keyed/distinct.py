"""Distinct keys of a step: found once, for the lookup and for the push of their gradients."""

import numpy as np

from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array
from .hashing import new_secret, ps_of_keys
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


def distinct_by_ps(
    table: str, keys: Array, num_ps: int, memory: BufferPools
) -> tuple[Array, Array, tuple[int, ...]]:
    """The distinct keys, those of one ps beside each other, and where each key went.

    Args:
        table: The table's name, for messages.
        keys: int64, shape ``(n,)``. May repeat.
        num_ps: Number of ps among which the table is divided.
        memory: For the result and to work in.

    Returns:
        (the distinct keys of the first ps, of the second and so on, each in the order in which they
        first stand, int64, shape ``(count,)``; int64, shape ``(n,)``: ``unique[inverse]`` is
        ``keys``; where the keys of each ps begin, and ``count``)

    Raises:
        ShapeMismatchError: The keys are no vector of int64.
    """
    unique, inverse = distinct(table, keys, memory)
    if num_ps == 1:
        return unique, inverse, (0, unique.size)
    places, divided = (memory.take_array(unique.shape, INT64) for _ in range(2))
    bounds = np.zeros(num_ps + 1, INT64)
    kernel = kernel_if_ready("divide_keys")
    if kernel is None:
        part = ps_of_keys(unique, num_ps)
        order = np.argsort(part, kind="stable")
        places[order] = np.arange(order.size)
        np.take(unique, order, out=divided, mode="clip")
        inverse = places[inverse]
        bounds[1:] = np.cumsum(np.bincount(part, minlength=num_ps))
    else:
        kernel(unique, places, divided, inverse, bounds)
    return divided, inverse, tuple(bounds.tolist())


def _by_numpy(keys: Array) -> tuple[Array, Array]:
    ascending, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.empty(order.size, INT64)
    places[order] = np.arange(order.size)
    return ascending[order], places[inverse]
