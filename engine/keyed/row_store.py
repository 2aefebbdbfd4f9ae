"""The rows of a growing table: values, slots, keys, counts and steps, in columns.

A column has addresses for the table's largest number of rows from the beginning, and memory for the
rows that were ever used: pages come with the first write. So growing copies nothing, a row stays
where it is, and the kernels of dense tables run on it as they are.
"""

from collections.abc import Mapping

import numpy as np

from ...core.arrays.dtypes import Array, DType
from ..arena import zeros
from ..library import library
from .index import INT64, reserving

SLOT = "slot/"  # in front of a slot's name, where it is a column
UINT32 = np.dtype(np.uint32)
LAST_STEP = 2**32 - 3
BUSY, FREE = 2**32 - 2, 2**32 - 1  # in the place of a row's step

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
