"""Rows that a worker keeps of a table, for lookups whose rows may be some steps old.

Ids are skewed: of those of a step most were in the steps before, too. A row that was pulled may be
read again by the next lookups, as many as the table allows; then it is pulled again. It does not
change meanwhile; in ``trained_rows.py`` this worker's own gradients change it.

Which rows are kept follows from how often their keys are looked up. A new row takes the place of
one whose key is looked up less often, as in TinyLFU (Einziger, Friedman and Manes, 2017), so that
keys which come once do not drive out those which come always.

Pure but for its lock: what is missing is pulled by its user.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array, DType
from ...engine.keyed.distinct import distinct
from ...engine.keyed.hashing import mixed
from ...engine.keyed.index import INT64, KeyIndex
from ...engine.rows import gather_rows
from ...telemetry.catalogue import CACHED_ROWS, UNCACHED_ROWS, Sample

ROW_BYTES = 120  # beside the elements of a row: key, lookup, entry of the index, counters
_COUNTERS = 16  # per row
_HALVED_AFTER = 64  # counts per row
_MOST_COUNTED = np.uint16(2**16 - 1)
_REVIEWED_EVERY = 16  # lookups
_REVIEWED = 8  # this part of all rows


@dataclass(frozen=True, slots=True)
class CachedLookup:
    """The part of a lookup that is there, and what has to be pulled.

    Attributes:
        number: Number of the lookup, from 1.
        keys: int64, shape ``(count,)``: the distinct keys.
        inverse: int64, shape ``(n,)``: ``keys[inverse]`` are the ids.
        rows: Shape ``(count, dim)``: of keys that are missing not yet filled in.
        missing: int64: positions of the distinct keys whose rows have to be pulled.
    """

    number: int
    keys: Array
    inverse: Array
    rows: Array
    missing: Array

    @property
    def wanted(self) -> Array:
        """The keys to pull."""
        return self.keys[self.missing]


class RowCache:
    """A cache of rows of one table. Thread-safe.

    Args:
        name: The table's, for messages.
        dim: Elements of a row.
        dtype: Dtype of the rows.
        staleness: A row is read by at most so many lookups after the one that has pulled it.
        max_bytes: Most memory of rows and all that is kept beside them.
        beside_bytes: Part of that which is kept beside the elements of a row. Unit: bytes.

    Attributes:
        hits: Distinct rows of lookups that were read here.
        misses: Distinct rows of lookups that were pulled.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        dtype: DType,
        staleness: int,
        max_bytes: int,
        *,
        beside_bytes: int = ROW_BYTES,
    ) -> None:
        self._row_bytes = dim * dtype.itemsize + beside_bytes
        count = max(1, max_bytes // self._row_bytes)
        self._name = name
        self._staleness = staleness
        self._index = KeyIndex(name, count)
        self._values = np.zeros((count, dim), dtype)
        self._keys, self._pulled_at = np.zeros(count, INT64), np.zeros(count, INT64)
        self._uses = _Uses(count)
        self._used = 0
        self._lookups = 0
        self._victims, self._reviewed_at = np.empty(0, INT64), 0
        self._memory = BufferPools()  # of lookups: fresh memory costs more than the work in it
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return self._used

    @property
    def num_bytes(self) -> int:
        """Memory of the rows that are kept and of all that is beside them."""
        return self._used * self._row_bytes

    def begin(self, ids: Array) -> CachedLookup:
        """Begin a lookup: what is here is read.

        Args:
            ids: int64, shape ``(n,)``. May repeat.
        """
        with self._lock:
            keys, inverse = distinct(self._name, ids, self._memory)
            rows = self._memory.take_array((keys.size, self._values.shape[1]), self._values.dtype)
            self._lookups += 1
            self._uses.count(keys)
            places = self._index.find(keys)
            usable = (places >= 0) & self._are_usable(places)
            gather_rows(self._values, np.maximum(places, 0), rows)  # of others anything
            missing = np.flatnonzero(~usable)
            self.hits += keys.size - missing.size
            self.misses += missing.size
            return self._begun(keys, inverse, rows, missing, places)

    def _are_usable(self, places: Array) -> Array:
        """Return whether the rows at these places may be read by the lookup under way; -1: any
        answer.
        """
        usable: Array = self._pulled_at[places] >= self._lookups - self._staleness
        return usable

    def _begun(
        self,
        keys: Array,
        inverse: Array,
        rows: Array,
        missing: Array,
        places: Array,  # noqa: ARG002 - for subclasses
    ) -> CachedLookup:
        return CachedLookup(self._lookups, keys, inverse, rows, missing)

    def finish(self, lookup: CachedLookup, pulled: Array) -> Array:
        """Complete the rows of a lookup with those that were pulled; some of them are kept.

        Args:
            lookup: Lookup from :meth:`begin`. Its rows are filled in.
            pulled: The rows of ``lookup.wanted``, in order; pulled after :meth:`begin`.
        """
        lookup.rows[lookup.missing] = pulled
        with self._lock:
            if self._may_keep(lookup):
                self._keep(lookup.wanted, pulled, lookup.number)
        return lookup.rows

    def _keep(self, keys: Array, pulled: Array, number: int) -> None:
        """Keep some of the rows that a lookup has pulled."""
        places = self._index.find(keys)
        # Another lookup may have brought a row meanwhile, later than this one began.
        older = (places >= 0) & (self._pulled_at[places] < number)
        self._write(places[older], pulled[older], number)
        new, places = self._choose(keys, np.flatnonzero(places < 0))
        self._keys[places] = keys[new]
        self._index.insert(keys[new], places)
        self._write(places, pulled[new], number)

    def _may_keep(self, lookup: CachedLookup) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether rows that a lookup has pulled may be read again."""
        return True

    def _write(self, places: Array, rows: Array, number: int) -> None:
        self._values[places] = rows
        self._pulled_at[places] = number

    def _choose(self, keys: Array, new: Array) -> tuple[Array, Array]:
        """Choose which of the new keys get a place, and which one; others lose theirs."""
        chosen, victims = self._compare(keys, new)
        fresh = np.arange(self._used, self._used + chosen.size - victims.size)
        self._used += fresh.size
        self._victims = self._victims[victims.size :]
        self._index.remove(self._keys[victims])
        return chosen, np.concatenate([fresh, victims])

    def _compare(self, keys: Array, new: Array) -> tuple[Array, Array]:
        """Compare the new keys with the rows here: which get a place, and the places of rows that
        go for them.
        """
        uses = self._uses.of(keys[new])
        new = new[np.argsort(-uses, kind="stable")]
        victims = self._review()
        room = min(new.size, self._keys.size - self._used)
        rest = new[room:]
        victims = victims[: rest.size]
        # The most frequent of the new ones against the least frequent of those that are here.
        better = self._uses.of(keys[rest[: victims.size]]) > self._uses.of(self._keys[victims])
        count = int(better.argmin()) if not better.all() else better.size
        return new[: room + count], victims[:count]

    def _review(self) -> Array:
        """Find the places of rows that are looked up least often, the least first."""
        if self._used < self._keys.size:
            return self._keys[:0]
        if not self._reviewed_at or self._lookups >= self._reviewed_at + _REVIEWED_EVERY:
            uses = self._uses.of(self._keys)
            count = -(-uses.size // _REVIEWED)
            least = np.argpartition(uses, count - 1)[:count]
            self._victims = least[np.argsort(uses[least], kind="stable")]
            self._reviewed_at = self._lookups
        return self._victims


class _Uses:
    """About how many of the last lookups had a key: a count-min sketch of two rows, in one array.

    Of the two counters of a key the smaller one is right more often, and only it is raised
    (conservative update; Estan and Varghese, 2002). All are halved now and then, so that what was
    looked up often once does not stay for ever.
    """

    def __init__(self, rows: int) -> None:
        self._bits = max(1, (_COUNTERS * rows - 1).bit_length())
        self._counts = np.zeros(1 << self._bits, np.uint16)
        self._limit, self._counted = _HALVED_AFTER * rows, 0

    def count(self, keys: Array) -> None:
        """Count one lookup for each of these keys."""
        places = self._places(keys)
        first, second = (self._counts[at] for at in places)
        least = np.minimum(np.minimum(first, second), _MOST_COUNTED - 1) + np.uint16(1)
        for at, before in zip(places, (first, second), strict=True):
            self._counts[at] = np.maximum(before, least)
        self._counted += keys.size
        if self._counted >= self._limit:
            self._counts >>= 1
            self._counted //= 2

    def of(self, keys: Array) -> Array:
        """Return the counts of keys, int64."""
        first, second = (self._counts[at] for at in self._places(keys))
        return np.minimum(first, second).astype(np.int64)

    def _places(self, keys: Array) -> tuple[Array, Array]:
        hashed = mixed(keys)
        return hashed >> np.uint64(64 - self._bits), hashed & np.uint64((1 << self._bits) - 1)


def rows_of(rows: Array, inverse: Array | None) -> Array:
    """Put the distinct rows into the order in which they were asked for."""
    return rows if inverse is None else gather_rows(rows, inverse)


def cache_samples(caches: Mapping[str, RowCache]) -> Iterator[Sample]:
    """Yield how many rows of lookups came from caches, by table, for Prometheus."""
    for table, cache in caches.items():
        yield Sample(CACHED_ROWS, cache.hits, (table,))
        yield Sample(UNCACHED_ROWS, cache.misses, (table,))
