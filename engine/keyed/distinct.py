"""Distinct keys of a step: found once, for the lookup and for the push of their gradients."""

import numpy as np

from ...core.arrays.buffers import BufferPools
from ...core.arrays.copying import split
from ...core.arrays.dtypes import Array
from .hashing import new_secret, ps_of_keys
from .index import INT64, as_keys, kernel_if_ready

_SECRET = new_secret()
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_MOST_PS, _MOST_KEYS = 2**15 - 1, 2**29  # that kernels count in these types
_ENTRIES = 4  # at most of the hash table of a part for each of its keys
_KEY_BYTES = 128  # what a key moves in the caches, for ``split``


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
    unique, inverse, _ = distinct_by_ps(table, keys, 1, memory if memory else BufferPools())
    return unique, inverse


def distinct_by_ps(
    table: str, keys: Array, num_ps: int, memory: BufferPools
) -> tuple[Array, Array, tuple[int, ...]]:
    """The distinct keys, those of one ps beside each other, and where each key went.

    By several threads if the keys are many: keys of two ps have nothing in common.

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
    keys = as_keys(table, keys)
    kernels = [kernel_if_ready(name) for name in ("divide_keys", "distinct_keys", "join_keys")]
    if None in kernels or num_ps > _MOST_PS or keys.size > _MOST_KEYS:
        return _by_numpy(keys, num_ps)
    divide, find, join = kernels
    unique, inverse = (memory.take_array(keys.shape, INT64) for _ in range(2))
    memory_32 = memory.take_array(((1 + _ENTRIES) * keys.size,), _INT32)
    places, entries = memory_32[: keys.size], memory_32[keys.size :]
    starts, bounds = np.zeros((2, num_ps + 1), INT64)
    if num_ps == 1:
        places[:], starts[1] = np.arange(keys.size, dtype=_INT32), keys.size
    else:
        divide(keys, entries.view(_INT16), places, starts)

    def of_some_ps(begin: int, end: int) -> None:
        own = entries[_ENTRIES * starts[begin] : _ENTRIES * starts[end]]
        find(keys, places, starts, begin, end, _SECRET, own, unique, inverse, bounds[1:])

    split(of_some_ps, num_ps, itemsize=keys.size * _KEY_BYTES // num_ps, aligned=1)
    if num_ps > 1:
        join(places, starts, bounds, unique, inverse)
    return unique[: bounds[-1]], inverse, tuple(bounds.tolist())


def _by_numpy(keys: Array, num_ps: int) -> tuple[Array, Array, tuple[int, ...]]:
    ascending, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    part = ps_of_keys(ascending, num_ps)
    order = np.lexsort((first, part))
    places = np.empty(order.size, INT64)
    places[order] = np.arange(order.size)
    bounds = np.zeros(num_ps + 1, INT64)
    np.cumsum(np.bincount(part, minlength=num_ps), out=bounds[1:])
    return ascending[order], places[inverse], tuple(bounds.tolist())
