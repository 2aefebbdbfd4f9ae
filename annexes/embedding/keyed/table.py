"""A growing embedding table: rows by int64 keys, made when their key is first trained.

A push makes its keys distinct, counts the unknown ones as seen, makes rows for those that are
admitted and for which there is room, adds up the gradients of each key, clips them and runs the
update rule. What a table holds follows from the pushes in their order and from nothing else, so one
that runs the same pushes is equal, bit for bit. A read makes no row: a key without one reads as the
value with which its row would begin.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple

import numpy as np
import xxhash

from ....core.arrays.buffers import BufferPools
from ....core.arrays.dtypes import Array
from ....core.errors import LimitExceededError
from ....engine import rows as row_functions
from ....engine.library import library
from ....engine.push_target import FREE
from ....engine.row_changes import RowChanges
from ....engine.rows import gather_rows, sum_duplicates
from ..kernels import KERNELS
from .admission import admitter, draws_of
from .definition import TableCounts, TableDefinition, Tile, check_tile, tile_of
from .distinct import distinct
from .index import INT64, KeyIndex, as_keys
from .row_rules import RULE_KERNELS, RowUpdater, clipped, slots_of, warm_up
from .row_store import (
    BUSY,
    LAST_STEP,
    RecentRows,
    RowStore,
    counts_of,
    gather_states,
    least_used,
    unseen_since,
)

_EVICTED_AT_ONCE = 64  # this part of a full table at least: choosing reads all rows
_KEPT_BYTES = 64 << 20
_CHECKS = 16  # per ``max_unseen_steps``, for the same reason
_NONE = np.empty(0, INT64)


class KeyedTable:
    """A table of rows by key. Not thread-safe: a lock is around every call.

    Args:
        definition: Definition of the table.
        store: Makes the store of its rows.

    Attributes:
        counts: Counts of what happened so far.
        step: The largest step of its pushes.
        changes: Rows that changed, as long as that is followed.

    Raises:
        ConfigurationError: The rule, the initializer or the admission does not fit a growing table.
        LimitExceededError: There are no addresses for so many rows.
    """

    def __init__(
        self, definition: TableDefinition, store: Callable[..., RowStore] = RowStore
    ) -> None:
        name, rule = definition.name, definition.rule
        self.definition = definition
        self._draws = draws_of(name, definition.initializer)
        self._admitter = admitter(name, definition.admission, self._draws.seed)
        slots = slots_of(name, rule, definition.dim)
        self._store = store(name, definition.max_rows, definition.dim, definition.dtype, slots)
        self._index = KeyIndex(name, definition.max_rows)
        self._updater = RowUpdater(name, rule)
        self._next_check = 0
        # Of a push: fresh memory costs more than the work in it.
        self._memory = BufferPools(sizes=8, most_bytes=_KEPT_BYTES)
        self._recent = RecentRows(self._memory)
        self.counts = TableCounts()
        self.step = 0
        self.changes: RowChanges | None = None

    def __len__(self) -> int:
        return len(self._store)

    @property
    def num_bytes(self) -> int:
        """Memory of rows and index."""
        return self._store.num_bytes + self._index.num_bytes

    def read(self, keys: Array, out: Array | None = None) -> Array:
        """Read the rows of keys; makes none.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
            out: contiguous array of the table's dtype, shape ``(n, dim)``. Modified. None: a new
                one.

        Returns:
            ``out``.

        Raises:
            ShapeMismatchError: The keys are no vector of int64, or ``out`` has another shape or
                dtype.
        """
        keys = as_keys(self.definition.name, keys)
        if out is not None:
            self.definition.check_rows("out", out, keys.size)
        rows = self._index.find(keys)
        self._recent.note(keys, rows)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            rows = np.maximum(rows, 0)
        out = gather_rows(self._store.values, rows, out)
        if unknown.size and self.definition.unknown == "zeros":
            out[unknown] = 0
        elif unknown.size:
            self._draws.fill(out, keys[unknown], unknown)
        return out

    def read_states(self, keys: Array, out: Array) -> Array:
        """Read the rows of keys with their slots and counts; makes none.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
            out: contiguous array of the table's dtype, shape ``(n, state_elements)``. Modified. The
                count of a key without a row is 0.

        Returns:
            ``out``.
        """
        rows = self._index.find(keys)
        gather_states(self._store, np.maximum(rows, 0), out)
        out[:, : self.definition.dim] = self.read(keys)
        counts_of(out)[rows < 0] = 0
        return out

    def push(self, keys: Array, gradients: Array, step: int, scale: float = 1.0) -> None:
        """Apply gradients of keys; those of equal keys are added up first, in their order.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
            gradients: Shape ``(n, dim)``, the table's dtype.
            step: The global step. A table's step never falls: an earlier one counts as the last.
            scale: Multiplies the gradients.

        Raises:
            ShapeMismatchError: Keys or gradients do not fit. Nothing was changed.
            LimitExceededError: The step is beyond what a row can note. Nothing was changed.
        """
        gradients = self._checked(keys, gradients, step)
        rows = self._find_again(keys)
        missing = self._missing(keys, rows)
        if missing is None:
            keys, inverse = distinct(self.definition.name, keys, self._memory)
            shape = (keys.size, self.definition.dim)
            summed = self._memory.take_array(shape, self.definition.dtype)
            gradients = sum_duplicates(gradients, inverse, summed)
            rows = self._index.find(keys)
            missing = np.flatnonzero(rows < 0)
        self.step = max(self.step, step)
        self.counts.pushes += 1
        if missing.size:
            rows[missing] = rows_made = self._make(keys[missing], rows)
            if rows_made.min() < 0:
                kept = np.flatnonzero(rows >= 0)
                rows, gradients = rows[kept], gradients[kept]
        gradients, scale = clipped(self.definition.clipping, gradients, scale)
        self._store.touch(rows, self.step)
        self._updater.apply(self._store, rows, gradients, step=self.step, scale=scale)
        if self.changes is not None:
            self.changes.note(rows)
        self._evict_unseen()

    def evict(self, keys: Array) -> int:
        """Remove the rows of these keys, as many as there are; how many that were.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
        """
        keys = distinct(self.definition.name, keys)[0]
        rows = self._index.find(keys)
        self._remove(rows[rows >= 0])
        return int(np.count_nonzero(rows >= 0))

    # -- copies --------------------------------------------------------------------------------

    def copy(self, places: Array) -> Tile:
        """Copy the rows at these places, of those that are in use.

        Rows keep their places while they live, so a sequence of copies of all places has every row
        that is there from the first to the last of them.

        Args:
            places: int64, shape ``(n,)``, each below :attr:`places` and once.
        """
        store = self._store
        rows = places[store.last[places] != FREE]
        store.note_copied(rows)
        slots = {name: slot[rows] for name, slot in store.slots.items()}
        values = gather_rows(store.values, rows)
        return Tile(store.keys[rows], values, slots, store.counts[rows], store.last[rows])

    def tiles(self, max_rows: int = 1 << 16) -> Iterator[Tile]:
        """Copy all rows, in tiles of at most ``max_rows``."""
        for start in range(0, self._store.used, max_rows):
            yield self.copy(np.arange(start, min(start + max_rows, self._store.used)))

    def note_copied(self, rows: Array) -> None:
        """Note that places of :attr:`columns` are copied now: they may be on disk.

        Args:
            rows: int64, shape ``(n,)``.
        """
        self._store.note_copied(rows)

    @property
    def columns(self) -> dict[str, Array]:
        """Everything that a row has, by name: memory of all places that were ever used, no copy."""
        used = self._store.used
        return {name: memory[:used] for name, memory in self._store.columns.items()}

    def tile(self, columns: Mapping[str, Array]) -> Tile:
        """Make a tile of columns that were copied; rows of places that were not in use are left
        out.

        A slot that is not there begins anew.

        Args:
            columns: Columns by name as in :attr:`columns`, of equal lengths.

        Raises:
            ShapeMismatchError: Columns are missing, or they have another form.
        """
        return tile_of(self.definition, columns)

    @property
    def places(self) -> int:
        """Number of places of rows that were ever used."""
        return self._store.used

    def places_of(self, keys: Array) -> Array:
        """Find the places of the rows of those of these keys that have one, int64."""
        rows = self._index.find(as_keys(self.definition.name, keys))
        return rows[rows >= 0]

    def keys_in_use(self, rows: Array) -> Array:
        """Find the keys of those of these places that have a row, int64."""
        rows = rows[rows < self._store.used]
        keys: Array = self._store.keys[rows[self._store.last[rows] != FREE]]
        return keys

    def load(self, tile: Tile) -> None:
        """Write rows as they were copied; a key that has a row gets the tile's.

        In a full table they make room for themselves, if it evicts.

        Raises:
            ShapeMismatchError: The rows do not fit. Nothing was changed.
            LimitExceededError: There is no room, and none can be made. Nothing was changed.
        """
        store, name = self._store, self.definition.name
        keys = as_keys(name, tile.keys)
        check_tile(name, tile, store.values, store.slots)
        rows = self._index.find(keys)
        new = np.flatnonzero(rows < 0)
        if store.room < new.size <= store.max_rows:
            self._make_room(new.size - store.room, rows[rows >= 0])
        if new.size > store.room:
            raise LimitExceededError(
                f"table {name!r}: {new.size} rows to load, and room for {store.room} of "
                f"{store.max_rows}; raise max_rows",
                table=name,
            )
        rows[new] = self._insert(keys[new])
        store.note_copied(rows)
        store.values[rows] = tile.values
        for slot, memory in store.slots.items():
            memory[rows] = tile.slots[slot]
        store.counts[rows], store.last[rows] = tile.counts, tile.last
        if self.changes is not None:
            self.changes.note(rows)
        self.step = max(self.step, int(tile.last.max(initial=0)))

    def state(self) -> dict[str, Array]:
        """Return what decides beside the rows: steps, counts, and what admission remembers."""
        steps = [self.step, self._next_check, *astuple(self.counts)]
        return {"steps": np.array(steps, INT64)} | self._admitter.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on as the table whose state this is; those of several tables add up.

        What another kind of admission remembers is left out.
        """
        step, check, *counts = state["steps"].tolist()
        self.step, self._next_check = max(self.step, step), max(self._next_check, check)
        before = astuple(self.counts)
        self.counts = TableCounts(*(a + b for a, b in zip(before, counts, strict=True)))
        if self._admitter.state().keys() <= state.keys():
            self._admitter.load(state)

    def digest(self) -> str:
        """Compute a digest that is equal for equal rows and state, in whatever order rows were
        made.

        For tests: it reads everything.
        """
        total = sum(tile.digest() for tile in self.tiles())
        state = xxhash.xxh64()
        for name, array in sorted(self.state().items()):
            state.update(name.encode() + array.tobytes())
        return f"{len(self)}-{total % 2**64:016x}-{state.hexdigest()}"

    # -- inner ---------------------------------------------------------------------------------

    def _checked(self, keys: Array, gradients: Array, step: int) -> Array:
        name = self.definition.name
        as_keys(name, keys)
        self.definition.check_rows("gradients", gradients, keys.size)
        if not 0 <= step <= LAST_STEP:
            raise LimitExceededError(
                f"table {name!r}: step {step} is not in [0, {LAST_STEP}], which is what a row can "
                "note",
                table=name,
            )
        aligned = gradients.flags.c_contiguous and gradients.flags.aligned
        return gradients if aligned else gradients.copy()

    def _find_again(self, keys: Array) -> Array:
        """Find the rows of keys, which were mostly read just before; -1: there is none."""
        rows = self._recent.take(keys)
        if rows is None:
            return self._index.find(keys)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            rows[unknown] = self._index.find(keys[unknown])
        return rows

    def _missing(self, keys: Array, rows: Array) -> Array | None:
        """Find the keys that have no row; None: a key is there twice. Rows may be marked as busy,
        until they are touched.
        """
        count = self._store.mark(rows)
        if count == 0:
            return _NONE
        if count is not None and count < 0:
            return None
        missing = np.flatnonzero(rows < 0)
        ascending = np.sort(keys if count is None else keys[missing])
        return None if (ascending[1:] == ascending[:-1]).any() else missing

    def _make(self, keys: Array, others: Array) -> Array:
        """Make rows for keys that have none, or -1 for those that get none.

        Args:
            keys: int64, each once.
            others: Rows that are not evicted for them; -1 stands for none.
        """
        rows = np.full(keys.size, -1, INT64)
        chosen = np.flatnonzero(self._admitter.admit(keys, self.counts.pushes))
        self.counts.refused += keys.size - chosen.size
        if chosen.size > self._store.room:
            self._make_room(chosen.size - self._store.room, others[others >= 0])
            self.counts.full += max(0, chosen.size - self._store.room)
            chosen = chosen[: self._store.room]
        rows[chosen] = self._insert(keys[chosen])
        self._draws.fill(self._store.values, keys[chosen], rows[chosen])
        self.counts.admitted += chosen.size
        return rows

    def _insert(self, keys: Array) -> Array:
        rows = self._store.make(keys)
        self._index.insert(keys, rows)
        return rows

    def _make_room(self, count: int, busy: Array) -> None:
        order = self.definition.evicts
        if order is None:
            return
        last = self._store.last
        steps = last[busy]
        last[busy] = BUSY
        at_once = max(count, self.definition.max_rows // _EVICTED_AT_ONCE)
        victims = least_used(self._store, at_once, order)
        last[busy] = steps
        self._remove(victims)

    def _evict_unseen(self) -> None:
        most = self.definition.max_unseen_steps
        if most is None or self.step < self._next_check:
            return
        self._next_check = self.step + max(1, most // _CHECKS)
        self._remove(unseen_since(self._store, self.step - most))

    def _remove(self, rows: Array) -> None:
        if not rows.size:
            return
        self._recent.forget()
        keys = self._store.keys[rows]
        if self.changes is not None:
            self.changes.note_removed(keys)
        self._index.remove(keys)
        self._store.release(rows)
        self.counts.evicted += rows.size


def prepare(definition: TableDefinition) -> None:
    """Load the kernels that a table needs, and wait for them. Without Numba, nothing."""
    warm_up(definition.rule, definition.dtype)
    try:
        for name in KERNELS.keys() - RULE_KERNELS:
            for dtype in KERNELS[name]:
                library.row_kernel(name, dtype)
    except ImportError:
        return
    row_functions.prepare()
    library.wait(math.inf)
