"""The rows of a growing table: values, slots, keys, counts and steps, in columns.

A column has addresses for the table's largest number of rows from the beginning, and memory for the
rows that were ever used: pages come with the first write. So growing copies nothing, a row stays
where it is, and the kernels of dense tables run on it as they are.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np

from ....core.arrays.buffers import BufferPools
from ....core.arrays.dtypes import Array, DType
from ....engine.arena import zeros
from ....engine.library import library
from ....engine.push_target import FREE, SLOT
from ..options import Order
from .index import INT64, reserving

UINT32 = np.dtype(np.uint32)
LAST_STEP = 2**32 - 3
BUSY = FREE - 1  # in the place of a row's step

SlotColumns = Mapping[str, tuple[int, float]]
"""Slots by name: (elements per row, the number they begin with)."""


class RowStore:
    """Columns of rows. Not thread-safe.

    Args:
        name: The table's, for messages.
        max_rows: Largest number of rows.
        width: Elements of a row.
        dtype: float32 or float64, of values and slots.
        slots: Slots of a row.

    Attributes:
        values: Shape ``(max_rows, width)``.
        slots: Slots by name, shape ``(max_rows, elements)``.
        keys: int64; of rows that are not in use, what was there.
        uses: uint32, shape ``(max_rows, 2)``: the next two side by side; a push changes both.
        counts: Pushes of each row; stays at ``2**32 - 1``.
        last: The step of a row's last change; ``FREE``: not in use.
        used: Rows from here on were never used.

    Raises:
        LimitExceededError: There are no addresses for so many rows.
    """

    def __init__(
        self, name: str, max_rows: int, width: int, dtype: DType, slots: SlotColumns
    ) -> None:
        self._starts = {slot: start for slot, (_, start) in slots.items()}
        self.max_rows = max_rows
        per_row = width + sum(elements for elements, _ in slots.values())
        self.row_bytes = per_row * dtype.itemsize + 24  # with key, count, step and free list
        with reserving(name, f"{max_rows} rows of {self.row_bytes} bytes"):
            self.values = self.column(width, dtype)
            self.slots = {slot: self.column(size, dtype) for slot, (size, _) in slots.items()}
            self.keys, self._free = (zeros(max_rows, INT64) for _ in range(2))
            self.uses = zeros(2 * max_rows, UINT32).reshape(max_rows, 2)
        self.counts, self.last = self.uses.T
        self.used = 0
        self._num_free = 0

    def column(self, width: int, dtype: DType) -> Array:
        """Allocate zeroed memory of values or of a slot, shape ``(max_rows, width)``."""
        return zeros(self.max_rows * width, dtype).reshape(self.max_rows, width)

    @property
    def columns(self) -> dict[str, Array]:
        """Everything that a row has, by name: memory of all rows, not a copy."""
        slots = {f"{SLOT}{slot}": memory for slot, memory in self.slots.items()}
        return {
            "keys": self.keys, "values": self.values, "counts": self.counts, "last": self.last,
        } | slots  # fmt: skip

    def __len__(self) -> int:
        return self.used - self._num_free

    @property
    def num_bytes(self) -> int:
        """Memory of rows that were ever used."""
        return self.used * self.row_bytes

    @property
    def room(self) -> int:
        """Number of rows that can still be made."""
        return self.max_rows - len(self)

    def make(self, keys: Array) -> Array:
        """Take rows for keys, those that were released first; their values are not yet written.

        Returns:
            int64, shape ``(n,)``: the rows.
        """
        again = min(self._num_free, keys.size)
        left, used = self._num_free - again, self.used
        fresh = slice(used, used + keys.size - again)
        rows = np.arange(used, fresh.stop)
        self.used = fresh.stop
        self.keys[fresh] = keys[again:]
        for slot, start in self._starts.items():
            if start:  # memory that was never used is zero
                self.slots[slot][fresh] = start
        if not again:
            return rows
        released = self._free[left : self._num_free][::-1].copy()
        self._num_free = left
        self.keys[released] = keys[:again]
        self.counts[released] = 0
        for slot, start in self._starts.items():
            self.slots[slot][released] = start
        return np.concatenate([released, rows])

    def note_copied(self, rows: Array) -> None:
        """Note that these rows are copied now, from here or to here; for those that may be on
        disk.
        """

    def release(self, rows: Array) -> None:
        """Give rows back, to be used again."""
        self.last[rows] = FREE
        self._free[self._num_free : self._num_free + rows.size] = rows
        self._num_free += rows.size

    def touch(self, rows: Array, step: int) -> None:
        """Count one more push of each of these rows, at this step; each occurs once."""
        kernel = library.row_kernel_if_ready("touch_rows", UINT32)
        if kernel is not None:
            kernel(rows, self.uses.reshape(-1), step)
            return
        counts = self.counts[rows]
        self.counts[rows] = counts + (counts != FREE)
        self.last[rows] = step

    def mark(self, rows: Array) -> int | None:
        """Mark rows as busy, until :meth:`touch`: no eviction takes them. -1 stands for no row.

        Returns:
            Number of keys without a row; -1: a row is there twice, and not all are marked; None:
            nothing was looked at, the kernel is not loaded.
            was looked at, the kernel is not loaded.
        """
        kernel = library.row_kernel_if_ready("mark_rows", UINT32)
        return int(kernel(rows, self.uses.reshape(-1), BUSY)) if kernel is not None else None

    def in_use(self, start: int, stop: int) -> Array:
        """Find the rows of ``[start, stop)`` that are in use, ascending."""
        return np.flatnonzero(self.last[start : min(stop, self.used)] != FREE) + start


# -- Rows with everything that a push changes in them, one row of an array each ----------------
# A row's values come first, then its slots in the order of its store, and last the number of its
# pushes: the bits of an unsigned integer of an element's size. With that, the update rule gives
# the same on any machine that has the row's gradient.

_LARGEST_COUNT = np.iinfo(UINT32).max


def counts_of(states: Array) -> Array:
    """View the counts in states, as unsigned integers, shape ``(n,)``.

    Args:
        states: contiguous, float32 or float64, shape ``(n, elements)``.
    """
    return states.view(f"u{states.dtype.itemsize}")[:, -1]


def gather_states(store: RowStore, rows: Array, out: Array) -> None:
    """Copy rows of a store with their slots and counts.

    Args:
        store: The rows.
        rows: int64, shape ``(n,)``.
        out: contiguous, of the store's dtype, shape ``(n, elements)``. Modified.
    """
    for column, start, stop in _columns(store):
        out[:, start:stop] = column[rows]
    counts_of(out)[:] = store.counts[rows]


def scatter_states(store: RowStore, rows: Array, states: Array) -> None:
    """Write rows with their slots and counts.

    Args:
        store: Modified.
        rows: int64, shape ``(n,)``, each once.
        states: States, as :func:`gather_states` returns them.
    """
    for column, start, stop in _columns(store):
        column[rows] = states[:, start:stop]
    store.counts[rows] = np.minimum(counts_of(states), _LARGEST_COUNT)


def _columns(store: RowStore) -> Iterator[tuple[Array, int, int]]:
    """Yield values and slots, and where they stand in a state."""
    start = 0
    for column in (store.values, *store.slots.values()):
        yield column, start, start + column.shape[1]
        start += column.shape[1]


# -- Rows of the keys that were read last: the push of a step has the keys of its lookup -------
# Finding a key waits for memory, in an index and then in the rows. A worker looks keys up, and
# pushes gradients of the same keys in the same order, so where their rows are is known already.

_KEPT = 8  # reads; each worker has one under way
_LEAST_KEYS = 1024  # of fewer the index is as fast
_MOST_KEYS = 1 << 20  # in all reads together: 16 MiB
_Mark = tuple[int, int, int]


class RecentRows:
    """The rows of some reads. Not thread-safe. Rows that are removed end all of it.

    Args:
        memory: Buffers for copies of keys.
    """

    def __init__(self, memory: BufferPools) -> None:
        self._memory = memory
        self._reads: OrderedDict[_Mark, tuple[Array, Array]] = OrderedDict()

    def note(self, keys: Array, rows: Array) -> None:
        """Remember where the rows of these keys are.

        Args:
            keys: int64, shape ``(n,)``.
            rows: int64, shape ``(n,)``; -1: the key has none. Kept, not copied.
        """
        if not _LEAST_KEYS <= keys.size <= _MOST_KEYS:
            return
        own = self._memory.take_array(keys.shape, keys.dtype)
        own[:] = keys
        self._reads[_mark(keys)] = own, rows
        while len(self._reads) > _KEPT or self._num_keys > _MOST_KEYS:
            self._reads.popitem(last=False)

    @property
    def _num_keys(self) -> int:
        return sum(keys.size for keys, _ in self._reads.values())

    def take(self, keys: Array) -> Array | None:
        """Take the rows of a read of these keys, which is forgotten; None: there was none.

        A key that had no row may have one since then.
        """
        if keys.size < _LEAST_KEYS:
            return None
        read_keys, rows = self._reads.pop(_mark(keys), (None, None))
        return rows if read_keys is not None and np.array_equal(read_keys, keys) else None

    def forget(self) -> None:
        """Forget all reads: rows were removed."""
        self._reads.clear()


def _mark(keys: Array) -> _Mark:
    return keys.size, int(keys[0]), int(keys[-1])


# -- Eviction of rows: those that were not pushed for long, or those that are least used when there
# are too many.
#
# Pure functions of the rows' columns. Of two rows that are alike the one with the smaller key goes
# first; in which order rows were made, and where they lie, decides nothing.


def unseen_since(store: RowStore, step: int) -> Array:
    """Find the rows whose last push was before a step; int64, ascending."""
    return np.flatnonzero(store.last[: store.used] < step)


def least_used(store: RowStore, count: int, order: Order) -> Array:
    """Find the ``count`` rows that go first, or fewer if there are not so many; int64, ascending.

    Rows that are marked as busy stay.
    """
    last, counts = store.last[: store.used], store.counts[: store.used]
    alike = last < BUSY
    left = min(count, int(np.count_nonzero(alike)))
    if not left:
        return np.empty(0, np.int64)
    chosen = []
    for column in [last] if order == "least_recent" else [counts, last]:
        words = np.where(alike, column, UINT32.type(FREE))
        bound = _kth_smallest(words, left - 1)
        chosen.append(np.flatnonzero(words < bound))
        left -= chosen[-1].size
        alike &= column == bound
    rows = np.flatnonzero(alike)
    chosen.append(rows[np.argpartition(store.keys[rows], left - 1)[:left]])
    return np.sort(np.concatenate(chosen))


def _kth_smallest(words: Array, k: int) -> int:
    kernel = library.row_kernel_if_ready("kth_smallest", UINT32)
    if kernel is None:
        return int(np.partition(words, k)[k])
    return int(kernel(words, k, np.zeros(1 << 16, np.int64)))
