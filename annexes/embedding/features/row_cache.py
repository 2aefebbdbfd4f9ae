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
from itertools import pairwise

import numpy as np

from ....client.ps.distinct_rows import DistinctRows, RowSums
from ....core.arrays.buffers import BufferPools
from ....core.arrays.dtypes import Array, DType, as_dtype
from ....core.rules.definitions import VariableDefinition
from ....engine.rows import gather_rows
from ....telemetry.catalogue import CACHED_ROWS, UNCACHED_ROWS, Sample
from ..keyed.definition import options_of
from ..keyed.distinct import distinct
from ..keyed.index import INT64, KeyIndex
from ..keyed.index_arrays import mixed
from ..keyed.row_rules import RowUpdater, clipped, slots_of
from ..keyed.row_store import LAST_STEP, RowStore, counts_of, scatter_states
from .config import TableConfig

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


# -- Rows that a worker keeps of a growing table, changed by its own gradients as on the ps ----
# A row is pulled with its slots and the number of its updates, so the table's update rule gives
# here what it gives on the ps: a worker always reads what it has trained itself, and alone in its
# job it computes the same, bit by bit, as if it had pulled every row. What a row lacks is what
# other workers have trained since it was pulled, for two bounds: ``staleness_reads`` lookups, and
# a part of all updates that the row has had, so that young rows, which change quickly, are pulled
# more often.
#
# Sources: read-your-writes (Terry et al., "Session guarantees", 1994); clocks of rows as in HET
# (Miao et al., VLDB 2022), which bounds the number of updates, not their part.

MOST_MISSING = 0.1
"""Largest part of a row's updates that others may have made since it was pulled."""

_FADES = 0.99  # per lookup that pulls rows again
_LEAST_UPDATES = 1e-6
COUNT_BYTES = 20  # per row: pushes, the last of them, and those since the row was pulled


@dataclass(frozen=True, slots=True)
class TrainedLookup(CachedLookup):
    """The part of a lookup that is there, and what has to be pulled.

    Attributes:
        whole: int64: positions of the distinct keys whose rows have to be pulled with their slots
            and counts, to be kept; they are not among ``missing``.
        pushes: Number of gradients that this worker had pushed when the lookup began.
    """

    whole: Array
    pushes: int

    @property
    def wanted_states(self) -> Array:
        """The keys to pull with slots and counts."""
        return self.keys[self.whole]


class TrainedRows(RowCache):
    """A cache of rows of one growing table, which trains them. Thread-safe.

    A key without a row is not kept: whether it gets one, the ps decides.

    Args:
        definition: The table, with its update rule.
        staleness: A row is read by at most so many lookups after the one that has pulled it.
        max_bytes: Most memory of rows and all that is kept beside them.
    """

    def __init__(self, definition: VariableDefinition, staleness: int, max_bytes: int) -> None:
        name, dtype, dim = definition.name, definition.dtype, definition.shape[1]
        options = options_of(definition)
        beside = (options.state_elements(dim) - dim) * dtype.itemsize + ROW_BYTES + COUNT_BYTES
        super().__init__(name, dim, dtype, staleness, max_bytes, beside_bytes=beside)
        rows = self._keys.size
        self._store = RowStore(name, rows, dim, dtype, slots_of(name, options.rule, dim))
        self._values = self._store.values
        self._updater, self._clipping = RowUpdater(name, options.rule), options.clipping
        # Else only the ps knows of which keys the gradients have no norm: those without a row.
        self._all_keys_have_rows = options.admission is None and options.evicts is not None
        self._own = np.zeros(rows, np.int64)  # updates by this worker since a row was pulled
        self._pushes = self._step = 0
        # Updates of rows between two of their pulls; at first as if there was one other worker.
        self._own_updates = self._other_updates = 1.0

    # -- lookups -------------------------------------------------------------------------------

    def _are_usable(self, places: Array) -> Array:
        others = self._own[places] * (self._other_updates / max(self._own_updates, _LEAST_UPDATES))
        few: Array = others <= MOST_MISSING * self._store.counts[places]
        return super()._are_usable(places) & few

    def _begun(
        self, keys: Array, inverse: Array, rows: Array, missing: Array, places: Array
    ) -> TrainedLookup:
        new = missing[places[missing] < 0]
        is_kept = np.zeros(keys.size, bool)
        is_kept[missing[places[missing] >= 0]] = True
        is_kept[self._compare(keys, new)[0]] = True
        whole, rest = missing[is_kept[missing]], missing[~is_kept[missing]]
        return TrainedLookup(self._lookups, keys, inverse, rows, rest, whole, self._pushes)

    def finish_states(self, lookup: TrainedLookup, pulled: Array, states: Array) -> Array:
        """Complete the rows of a lookup; those that were pulled with their slots may be kept.

        Args:
            lookup: Lookup from :meth:`begin`. Its rows are filled in.
            pulled: The rows of ``lookup.wanted``, in order.
            states: States of ``lookup.wanted_states``, in order, with slots and counts.
        """
        lookup.rows[lookup.missing] = pulled
        lookup.rows[lookup.whole] = states[:, : lookup.rows.shape[1]]
        trained = counts_of(states) > 0
        keys, states = lookup.wanted_states[trained], states[trained]
        with self._lock:
            # Whether what was pushed meanwhile is in these rows is not known.
            if lookup.pushes == self._pushes:
                self._compare_updates(keys, states)
                self._keep(keys, states, lookup.number)
        return lookup.rows

    def _compare_updates(self, keys: Array, states: Array) -> None:
        """Note how many updates others have made, beside this worker's own."""
        places = self._index.find(keys)
        is_here = places >= 0
        places = places[is_here]
        counts = counts_of(states)[is_here].astype(np.int64)
        others = np.maximum(counts - self._store.counts[places], 0).sum()
        if others or self._own[places].any():
            self._own_updates = _FADES * self._own_updates + float(self._own[places].sum())
            self._other_updates = _FADES * self._other_updates + float(others)

    def _write(self, places: Array, rows: Array, number: int) -> None:
        scatter_states(self._store, places, rows)
        self._pulled_at[places] = number
        self._own[places] = 0

    # -- this worker's own gradients -----------------------------------------------------------

    def pushed(self, rows: DistinctRows, sums: RowSums, step: int) -> None:
        """Update the rows that are kept, as the ps do."""
        with self._lock:
            self._pushes += 1
            self._step = max(self._step, min(step, LAST_STEP))
            places = self._index.find(rows.unique)
            if not (places >= 0).any():
                return
            gradients = sums.array().astype(self._values.dtype, copy=False)
            for low, high in _parts(rows):  # each is a push of its own, to one ps
                part, scale = clipped(self._clipping, gradients[low:high], 1.0)
                held = np.flatnonzero(places[low:high] >= 0)
                self._update(places[low:high][held], part[held], scale)
                if scale != 1.0 and held.size < high - low and not self._all_keys_have_rows:
                    self._read_no_more(places[low:high][held])

    def _update(self, places: Array, gradients: Array, scale: float) -> None:
        self._store.touch(places, self._step)
        self._updater.apply(self._store, places, gradients, step=self._step, scale=scale)
        self._own[places] += 1

    def forget(self) -> None:
        """Read no row again that was pulled before now."""
        with self._lock:
            self._pushes += 1
            self._read_no_more(slice(None))

    def _read_no_more(self, places: Array | slice) -> None:
        self._pulled_at[places] = -self._staleness


def _parts(rows: DistinctRows) -> list[tuple[int, int]]:
    bounds = rows.bounds if rows.bounds is not None else (0, rows.unique.size)
    return list(pairwise(bounds))


def cache_of(config: TableConfig, definition: VariableDefinition | None) -> RowCache | None:
    """Make the cache of a table; None if all of its lookups read rows as they are.

    Args:
        config: The table.
        definition: Definition of the table if it grows; None: it has a vocabulary_size.
    """
    if not config.staleness_reads:
        return None
    staleness, most = config.staleness_reads, config.cache_bytes
    if definition is not None:
        return TrainedRows(definition, staleness, most)
    return RowCache(config.name, config.dim, as_dtype(config.dtype), staleness, most)
