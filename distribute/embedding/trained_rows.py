"""Rows that a worker keeps of a growing table, changed by its own gradients as on the ps.

A row is pulled with its slots and the number of its updates, so the table's update rule gives here
what it gives on the ps: a worker always reads what it has trained itself, and alone in its job it
computes the same, bit by bit, as if it had pulled every row. What a row lacks is what other workers
have trained since it was pulled, for two bounds: ``staleness_reads`` lookups, and a part of all
updates that the row has had, so that young rows, which change quickly, are pulled more often.

Sources: read-your-writes (Terry et al., "Session guarantees", 1994); clocks of rows as in HET (Miao
et al., VLDB 2022), which bounds the number of updates, not their part.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...client.ps.distinct_rows import DistinctRows, RowSums
from ...core.arrays.dtypes import Array, as_dtype
from ...core.rules.definitions import VariableDefinition
from ...core.rules.tables import TableOptions
from ...engine.keyed.clipping import clipped
from ...engine.keyed.row_rules import RowUpdater, slots_of
from ...engine.keyed.row_states import counts_of, scatter_states
from ...engine.keyed.row_store import LAST_STEP, RowStore
from .config import TableConfig
from .row_cache import ROW_BYTES, CachedLookup, RowCache

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
        options: TableOptions = definition.table  # type: ignore[assignment]
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
