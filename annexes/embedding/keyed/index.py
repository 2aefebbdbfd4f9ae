"""A map from keys to rows: any int64 to a number, in memory that grows with the keys.

The index is cut by hash into segments, hash tables of their own that are filled to two thirds at
most. A segment that is full becomes twice as large, and no other is touched: no insertion waits for
the whole index to be written anew. Since a hash fills all segments alike they would all be full at
once; so their sizes differ, from the first up to the last by 2, and at every moment a few are due.

A segment grows in place: it has the addresses for its part of ``max_keys`` from the beginning, and
memory comes with the entries, since fresh pages cost more than writing to them.

A secret of the process decides where keys lie; what an index finds does not depend on it, and
nothing may depend on the order of ``items``.

Large batches go through kernels. Until these are loaded, and without Numba, NumPy does the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.arrays.gather_buffer import split
from ....core.errors import LimitExceededError, ShapeMismatchError
from ....engine.arena import zeros
from ....engine.library import library
from . import index_arrays
from .index_arrays import new_secret

INT64 = np.dtype(np.int64)
_MOST_FULL = 0.65  # of a segment; on average they are at 0.45, or 36 bytes a key
# Of a segment of a full index: it grows in a millisecond, and its memory stays below 4 MiB, from
# where on NumPy asks for huge pages, and gets 2 MiB for an entry.
_SEGMENT_KEYS = 1 << 16
_MOST_BITS = 12  # of the number of segments: each is a piece of address space
_FIRST_SIZE = 8
_LINE_BYTES = 64


def as_keys(table: str, keys: Array) -> Array:
    """Convert keys to what kernels take: contiguous and aligned.

    Raises:
        ShapeMismatchError: They are no vector of int64.
    """
    if keys.ndim != 1 or keys.dtype != INT64:
        raise ShapeMismatchError(
            f"table {table!r}: keys are {keys.dtype}{list(keys.shape)}, expected a vector of "
            "int64; convert them with .astype(np.int64).reshape(-1)",
            table=table,
        )
    return keys if keys.flags.c_contiguous and keys.flags.aligned else keys.copy()


@contextmanager
def reserving(table: str, what: str) -> Iterator[None]:
    """Say what cannot be kept, if the process has no addresses for it.

    Raises:
        LimitExceededError: Instead of MemoryError.
    """
    try:
        yield
    except MemoryError:
        raise LimitExceededError(
            f"table {table!r}: this process has no addresses for {what}; lower max_rows, or raise "
            "the limit of address space (ulimit -v, vm.overcommit_memory)",
            table=table,
        ) from None


def at_least(memory: Array, count: int) -> Array:
    """Return the memory itself if it has so many elements, else new memory of its dtype."""
    return memory if memory.size >= count else np.empty(count, memory.dtype)


def kernel_if_ready(name: str) -> Any:
    """Find a kernel of int64 arrays if it is loaded; otherwise None, and it is loaded meanwhile."""
    return library.row_kernel_if_ready(name, INT64)


class KeyIndex:
    """A map from int64 keys to numbers. Not thread-safe: the table's lock is around it.

    Args:
        name: The table's, for messages.
        max_keys: Number of keys that it is made for; more make it slower at growing, not wrong.
        secret: Two words that decide where keys lie; None: new random ones.

    Raises:
        LimitExceededError: There are no addresses for so many keys.
    """

    def __init__(self, name: str, max_keys: int, secret: Array | None = None) -> None:
        self._name = name
        self._secret = new_secret() if secret is None else secret
        bits = min(_MOST_BITS, max(0, -(-max_keys // _SEGMENT_KEYS) - 1).bit_length())
        count = 1 << bits
        self._shift = 63 - bits
        self._counts = np.zeros(count, INT64)
        self._levels = np.arange(count) / count  # a segment has first size * 2 ** level entries
        self._sizes = _sizes(self._levels)
        self._room = _room(self._levels)
        full = _enough(self._levels, np.full(count, -(-max_keys // count)))
        with reserving(name, f"{max_keys} keys of its index"):
            self._segments = [_new_segment(size) for size in _sizes(full).tolist()]
        self._addresses = np.array([_address(segment) for segment in self._segments], INT64)
        self._work = np.empty(0, INT64)  # kept: fresh memory costs more than the work in it

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        """Memory of all entries, empty ones included."""
        return int(self._sizes.sum()) * 16

    def find(self, keys: Array) -> Array:
        """Find the number of each key, or -1; int64, shape ``(n,)``. By several threads if many.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
        """
        keys = as_keys(self._name, keys)
        out = np.empty(keys.size, INT64)
        kernel = kernel_if_ready("find_keys")
        if kernel is not None:
            secret, shift, sizes = self._secret, self._shift, self._sizes

            def part(start: int, stop: int) -> None:
                cut = slice(start, stop)
                kernel(keys[cut], self._addresses, sizes, secret, shift, out[cut])

            split(part, keys.size, itemsize=2 * _LINE_BYTES)
            return out
        for segment, positions, hashes in self._by_segment(keys):
            entries = self._entries(segment)
            places = index_arrays.find(entries, keys[positions], hashes)
            out[positions] = np.where(places < 0, 0, entries[places, 1]) - 1
        return out

    def insert(self, keys: Array, numbers: Array) -> None:
        """Give each key its number; a key that has one gets the new one.

        Args:
            keys: int64, shape ``(n,)``.
            numbers: int64, shape ``(n,)``, each in ``[0, 2**63 - 1)``.
        """
        keys = as_keys(self._name, keys)
        self._make_room(keys)
        kernel = kernel_if_ready("insert_keys")
        if kernel is not None:
            numbers = np.ascontiguousarray(numbers)
            kernel(keys, numbers, *self._where(), self._counts)
            return
        for segment, positions, hashes in self._by_segment(keys):
            words = numbers[positions] + 1
            entries = self._entries(segment)
            self._counts[segment] += index_arrays.insert(entries, keys[positions], words, hashes)

    def remove(self, keys: Array) -> Array:
        """Remove keys; the number that each had, or -1: int64, shape ``(n,)``.

        Args:
            keys: int64, shape ``(n,)``, each once.
        """
        keys = as_keys(self._name, keys)
        kernel = kernel_if_ready("remove_keys")
        if kernel is not None:
            out = np.empty(keys.size, INT64)
            kernel(keys, *self._where(), self._counts, out)
            return out
        out = np.full(keys.size, -1, INT64)
        for segment, positions, hashes in self._by_segment(keys):
            entries = self._entries(segment)
            places = index_arrays.find(entries, keys[positions], hashes)
            there, places = positions[places >= 0], places[places >= 0]
            out[there] = entries[places, 1] - 1
            self._counts[segment] -= there.size
            index_arrays.remove(entries, places, self._secret)
        return out

    def items(self) -> Iterator[tuple[Array, Array]]:
        """Yield all (keys, numbers), segment by segment, in an order that means nothing."""
        for segment in range(self._sizes.size):
            entries = self._entries(segment)
            used = entries[entries[:, 1] != 0]
            if used.size:
                yield np.ascontiguousarray(used[:, 0]), used[:, 1] - 1

    def _where(self) -> tuple[Array, Array, Array, int]:
        return self._addresses, self._sizes, self._secret, self._shift

    def _by_segment(self, keys: Array) -> Iterator[tuple[int, Array, Array]]:
        return index_arrays.by_segment(keys, self._secret, self._shift)

    def _make_room(self, keys: Array) -> None:
        """Grow the segments that have no room for their part of these keys, all taken for new."""
        if (self._counts + keys.size <= self._room).all():  # not even if all were of one
            return
        needed = self._counts.copy()
        kernel = kernel_if_ready("count_segments")
        if kernel is not None:
            kernel(keys, self._secret, self._shift, needed)
        else:
            for segment, positions, _ in self._by_segment(keys):
                needed[segment] += positions.size
        levels = _enough(self._levels, needed)
        due = np.flatnonzero(levels != self._levels)
        if due.size:
            self._levels, self._room = levels, _room(levels)
            self._grow(due, _sizes(levels))

    def _grow(self, due: Array, sizes: Array) -> None:
        old, addresses = [self._entries(number) for number in due.tolist()], self._addresses.copy()
        for number in due.tolist():
            if sizes[number] > len(self._segments[number]):
                self._segments[number] = _new_segment(sizes[number])
                addresses[number] = _address(self._segments[number])
        before, self._addresses = self._addresses, addresses
        before_sizes, self._sizes = self._sizes, sizes
        kernel = kernel_if_ready("move_entries")
        if kernel is not None:
            work = self._work = at_least(self._work, 2 * int(before_sizes[due].max()))
            where = (before[due], before_sizes[due], addresses[due], sizes[due])
            kernel(*where, self._secret, work)
            return
        for number, entries in zip(due.tolist(), old, strict=True):
            index_arrays.move(entries, self._entries(number), self._secret)

    def _entries(self, segment: int) -> Array:
        return self._segments[segment][: self._sizes[segment]]


def _sizes(levels: Array) -> Array:
    sizes: Array = (_FIRST_SIZE * 2**levels).astype(INT64)
    return sizes


def _room(levels: Array) -> Array:
    room: Array = _sizes(levels) * _MOST_FULL
    return room


def _enough(levels: Array, counts: Array) -> Array:
    """Raise the levels from these on until segments have room for so many keys."""
    levels = levels.copy()
    while (full := counts > _room(levels)).any():
        levels[full] += 1
    return levels


def _new_segment(size: int) -> Array:
    return zeros(2 * size, INT64).reshape(size, 2)


def _address(segment: Array) -> int:
    return int(segment.ctypes.data)
