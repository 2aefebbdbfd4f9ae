"""Running an update kernel: checks its arguments and splits large ones over the cores.

Kernels check no bounds; a wrong size would surface as a crash somewhere else.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..core.arrays.copying import is_split, split
from ..core.arrays.dtypes import Array, DType
from ..core.rules.kernels import UpdateFunction

_ONE_ROW: Array = np.zeros(1, np.int64)
_INT64 = np.dtype(np.int64)
_LINE_BYTES = 64  # the least that a row costs the memory bus


class UpdateKernel:
    """The compiled kernel of an update rule for one dtype. Thread-safe.

    Args:
        update: Function that was compiled.
        dtype: Dtype of all arrays but the row numbers.
        run: The compiled function.
    """

    def __init__(self, update: UpdateFunction, dtype: DType, run: Callable[..., None]) -> None:
        self.name = update.name
        self.dtype = dtype
        self._run = run
        self._update = update
        self._none: Array = np.empty(0, dtype)

    def __call__(
        self,
        value: Array,
        slots: Sequence[Array],
        gradient: Array,
        rows: Array | None,
        width: int,
        scalars: Array,
    ) -> None:
        """Update a value and its slots in place, by several threads if they are large.

        Args:
            value: 1-D. Modified.
            slots: Slots, at most three, as large as ``value`` or empty. Modified.
            gradient: 1-D; as large as ``value``, or ``rows.size`` times ``width``.
            rows: int64, ascending, each once, in ``[0, value.size / width)``; None: a dense
                gradient.
            width: Elements of a row; not used without ``rows``.
            scalars: Scalars in the order that the kernel says.

        Raises:
            ValueError: An argument has the wrong size, dtype or layout. Nothing was changed.
        """
        self._check(value, slots, gradient, scalars)
        s0, s1, s2 = (*slots, self._none, self._none, self._none)[:3]
        run = self._run
        if rows is None:
            if gradient.size != value.size:
                raise self._error("gradient", "elements", gradient.size, value.size)

            def elements(start: int, stop: int) -> None:
                cut = slice(start, stop)
                run(
                    value[cut], s0[cut], s1[cut], s2[cut], gradient[cut], _ONE_ROW,
                    stop - start, scalars
                )  # fmt: skip

            itemsize = value.itemsize * (2 + len(slots))
            if is_split(value.size, itemsize):
                split(elements, value.size, itemsize=itemsize)
            else:
                run(value, s0, s1, s2, gradient, _ONE_ROW, value.size, scalars)
            return
        self._check_rows(value, gradient, rows, width)
        if not gradient.size:
            return

        def some_rows(start: int, stop: int) -> None:
            part = gradient[start * width : stop * width]
            run(value, s0, s1, s2, part, rows[start:stop], width, scalars)

        row_bytes = max(width * value.itemsize, _LINE_BYTES)
        # The gradient comes in order; what is waited for are the rows.
        split(some_rows, rows.size, itemsize=row_bytes * (1 + len(slots)))

    def _check(self, value: Array, slots: Sequence[Array], gradient: Array, scalars: Array) -> None:
        self._check_layout("value", value, self.dtype)
        self._check_layout("gradient", gradient, self.dtype)
        self._check_layout("scalars", scalars, self.dtype)
        if scalars.size < self._update.num_scalars:
            raise self._error("scalars", "elements", scalars.size, self._update.num_scalars)
        needed = self._update.num_slots
        if not needed <= len(slots) <= 3:
            raise self._error("slots", "arrays", len(slots), needed)
        for number, slot in enumerate(slots):
            self._check_layout(f"slot {number}", slot, self.dtype)
            if slot.size != value.size and (slot.size or number < needed):
                raise self._error(f"slot {number}", "elements", slot.size, value.size)
        for number, scalar in self._update.optional_slots.items():
            size = slots[number].size if number < len(slots) else 0
            if size != value.size and scalars[scalar] > 0:
                raise self._error(f"slot {number}", "elements", size, value.size)
        if not value.flags.writeable or not all(slot.flags.writeable for slot in slots):
            raise ValueError(f"kernel {self.name}: the value or a slot is read-only")

    def _check_rows(self, value: Array, gradient: Array, rows: Array, width: int) -> None:
        self._check_layout("rows", rows, _INT64)
        if gradient.size != rows.size * width:
            raise self._error("gradient", "elements", gradient.size, rows.size * width)
        if not gradient.size:
            return
        count = value.size // width
        if int(rows.view(np.uint64).max()) >= count:  # also a negative one
            low, high = int(rows.min()), int(rows.max())
            raise ValueError(
                f"kernel {self.name}: row {low if low < 0 else high} is out of range; the value "
                f"has {count} rows of {width} elements"
            )

    def _check_layout(self, what: str, array: Array, dtype: DType) -> None:
        if array.dtype != dtype:
            raise ValueError(f"kernel {self.name}: {what} is {array.dtype}, expected {dtype}")
        if array.ndim != 1:
            raise ValueError(f"kernel {self.name}: {what} has {array.ndim} axes, expected 1")
        flags = array.flags
        if not flags.c_contiguous or not flags.aligned:
            raise ValueError(f"kernel {self.name}: {what} is not contiguous, or not aligned")

    def _error(self, what: str, unit: str, actual: int, expected: int) -> ValueError:
        return ValueError(f"kernel {self.name}: {what} has {actual} {unit}, expected {expected}")
