"""Distinct keys of a step: found once, for the lookup and for the push of their gradients."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ....core.arrays.buffers import BufferPools
from ....core.arrays.dtypes import Array
from ....core.arrays.gather_buffer import split
from .index import INT64, as_keys, kernel_if_ready
from .index_arrays import new_secret, ps_of_keys

_SECRET = new_secret()
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
MOST_PS = 1024  # that a kernel has room to count for
_MOST_KEYS = 2**29  # that kernels count in these types
_ENTRIES = 4  # at most of the hash table of a part for each of its keys
_KEY_BYTES = 128  # what a key moves in the caches, for ``split``


class DistinctKeys(NamedTuple):
    """Distinct keys of one table.

    Attributes:
        unique: int64, shape ``(count,)``: those of the first ps, of the second and so on, each in
            the order in which they first stand.
        inverse: int64, shape ``(n,)``: ``unique[inverse]`` is the keys.
        bounds: Positions at which the keys of each ps begin, and ``count``.
    """

    unique: Array
    inverse: Array
    bounds: tuple[int, ...]


def distinct(table: str, keys: Array, memory: BufferPools | None = None) -> tuple[Array, Array]:
    """Find the distinct keys, and where each key went.

    Args:
        table: The table's name, for messages.
        keys: int64, shape ``(n,)``. May repeat.
        memory: Buffers for the result and to work in; None: fresh memory.

    Returns:
        (the distinct keys in the order in which they first stand, int64, shape ``(count,)``;
        int64, shape ``(n,)``: ``unique[inverse]`` is ``keys``)

    Raises:
        ShapeMismatchError: The keys are no vector of int64.
    """
    keys = as_keys(table, keys)
    result = distinct_by_ps(keys, (keys.size,), 1, memory if memory else BufferPools())[0]
    return result.unique, result.inverse


def distinct_by_ps(
    keys: Array, sizes: Sequence[int], num_ps: int, memory: BufferPools
) -> list[DistinctKeys]:
    """Find the distinct keys of some tables, those of one ps beside each other.

    By several threads if the keys are many: keys of two tables, or of two ps, have nothing in
    common.

    Args:
        keys: int64, contiguous: those of the first table, of the second and so on. May repeat.
        sizes: Number of keys of each table.
        num_ps: Number of ps among which each of the tables is divided.
        memory: Buffers for the result and to work in.
    """
    tables = np.zeros(len(sizes) + 1, INT64)
    np.cumsum(sizes, out=tables[1:])
    edges = tables.tolist()
    kernels = [kernel_if_ready(name) for name in ("divide_keys", "distinct_keys", "join_keys")]
    if None in kernels or num_ps > MOST_PS or keys.size > _MOST_KEYS:
        return [_by_numpy(keys[i:j], num_ps) for i, j in pairwise(edges)]
    divide, find, join = kernels
    unique, inverse = memory.take_array((2, keys.size), INT64)
    memory_32 = memory.take_array(((1 + _ENTRIES) * keys.size,), _INT32)
    places, entries = memory_32[: keys.size], memory_32[keys.size :]
    starts = tables if num_ps == 1 else np.full(len(sizes) * num_ps + 1, keys.size, INT64)
    counts = np.zeros(len(sizes) * num_ps, INT64)
    parts = entries.view(_INT16)

    def find_parts(first: int, last: int) -> None:
        own = entries[_ENTRIES * starts[first] : _ENTRIES * starts[last]]
        find(keys, places, starts, first, last, _SECRET, own, unique, inverse, counts)

    if num_ps == 1:
        places[:] = np.arange(keys.size, dtype=_INT32)
    else:
        _split(lambda *some: divide(keys, tables, num_ps, *some, parts, places, starts), tables)
    _split(find_parts, starts)
    if num_ps > 1:
        _split(lambda *some: join(places, starts, num_ps, *some, counts, unique, inverse), tables)
    bounds = np.zeros((len(sizes), num_ps + 1), INT64)
    np.cumsum(counts.reshape(-1, num_ps), axis=1, out=bounds[:, 1:])
    return [
        DistinctKeys(unique[i : i + own[-1]], inverse[i:j], tuple(own))
        for i, j, own in zip(edges, edges[1:], bounds.tolist(), strict=False)
    ]


def _split(work: Callable[[int, int], None], edges: Array) -> None:
    """Call ``work`` for parts of pieces ``[edges[i], edges[i + 1])`` of the keys, in threads."""
    if edges.size == 2:  # a thread for nothing takes as long as a tenth of the work
        work(0, 1)
        return
    count = int(edges[-1])
    middles = (edges[:-1] + edges[1:]) // 2

    def some_pieces(start: int, stop: int) -> None:
        first, last = np.searchsorted(middles, (start, stop)).tolist()
        work(first, middles.size if stop == count else last)

    split(some_pieces, count, itemsize=_KEY_BYTES, aligned=1)


def _by_numpy(keys: Array, num_ps: int) -> DistinctKeys:
    ascending, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    part = ps_of_keys(ascending, num_ps)
    order = np.lexsort((first, part))
    places = np.empty(order.size, INT64)
    places[order] = np.arange(order.size)
    bounds = np.zeros(num_ps + 1, INT64)
    np.cumsum(np.bincount(part, minlength=num_ps), out=bounds[1:])
    return DistinctKeys(ascending[order], places[inverse], tuple(bounds.tolist()))
