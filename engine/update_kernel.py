"""Running an update kernel: checks its arguments and splits large ones over the cores.

Kernels check no bounds; a wrong size would surface as a crash somewhere else.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array, DType
from ..core.arrays.gather_buffer import is_split, split
from ..core.rules.update_rules import UpdateFunction, UpdateRule

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


# -- Runs update rules: the scalars that a kernel reads, and a rule's formula on arrays --------
# To compile a kernel takes half a second, and minutes on a machine that has more to do, once for
# each machine. Nobody waits for it: until it is there NumPy does the same, to the bit, by the
# formula (``tests/unit/engine/test_engine_formula_kernel.py``). That takes five to twelve times as
# long, and goes in tiles, so that what it computes with stays in the caches and takes no memory to
# speak of.

_TILE = 1 << 15  # elements


def hyperparameters(
    rule: UpdateRule, *, updates: int, global_step: int, gradient_scale: float
) -> Array:
    """Collect the scalars that a rule's kernel reads, as float64.

    Args:
        rule: The rule.
        updates: Number of times that it was applied to the variable, this time included.
        global_step: Global step, for the learning-rate schedule.
        gradient_scale: Multiplies the gradient before clipping by value.
    """
    limit = rule.clipvalue if rule.clipvalue is not None else math.inf
    scalars = rule.scalars(rule.rate(global_step), updates)
    return np.array([gradient_scale, limit, *scalars], np.float64)


def apply_formula(
    xp: Any,
    rule: UpdateRule,
    value: Any,
    slots: Mapping[str, Any],
    gradient: Any,
    index: Any,
    *,
    rate: float,
    updates: int,
    scale: float,
) -> None:
    """Update a value and its slots in place, by the formula in array operations.

    Args:
        xp: ``numpy`` or ``cupy``.
        rule: The rule; its docstring has the formula.
        value: float array. Modified.
        slots: Arrays by name, of the value's shape. Modified.
        gradient: Gradient of the shape of ``value[index]``.
        index: ``...``, or rows that occur once.
        rate: The learning rate.
        updates: Number of times the rule was applied, this time included.
        scale: Multiplies the gradient before it is clipped.
    """
    if rule.skips_rate_zero and not rate:
        return
    wide = np.dtype(np.float32) if value.dtype.itemsize < 4 else value.dtype
    # Python numbers, which do not widen float32.
    g = xp.asarray(gradient).astype(wide) * float(scale)
    if rule.clipvalue is not None:
        g = xp.clip(g, -rule.clipvalue, rule.clipvalue)
    w = value[index].astype(wide)
    part = {name: slot[index] for name, slot in slots.items()}
    w = rule.array_update(xp, w, part, g, rate, updates)
    for name, slot in slots.items():
        slot[index] = part[name]
    value[index] = w.astype(value.dtype)


def formula_kernel(
    rule: UpdateRule, update: UpdateFunction, dtype: DType, *, rate: float, updates: int
) -> UpdateKernel:
    """Make a function that is called as the rule's kernel is, and checks its arguments as that
    does.

    Args:
        rule: Element by element, as every rule with a kernel.
        update: Kernel of the rule.
        dtype: Dtype of all arrays but the row numbers.
        rate: The learning rate.
        updates: Number of times that the rule was applied, this time included.
    """
    apply = partial(apply_formula, np, rule, rate=rate, updates=updates)
    return UpdateKernel(update, dtype, partial(_run, rule, apply))


def _run(
    rule: UpdateRule,
    apply: Callable[..., None],
    w: Array,
    s0: Array,
    s1: Array,
    s2: Array,
    g: Array,
    rows: Array,
    width: int,
    h: Array,
) -> None:
    """Run the formula with the signature of a kernel; see ``core/rules/update_rules.py``."""
    active = rule.active_slots()
    slots = {
        name: slot for name, slot in zip(rule.slots, (s0, s1, s2), strict=False) if name in active
    }
    scale = float(h[0])
    with np.errstate(all="ignore"):  # a kernel says nothing either
        if width > _TILE or rows.size == 1:
            for number, row in enumerate(rows.tolist()):
                for start in range(0, width, _TILE):
                    stop = min(start + _TILE, width)
                    part = g[number * width + start : number * width + stop]
                    apply(
                        w, slots, part, slice(row * width + start, row * width + stop), scale=scale
                    )
            return
        w, g = w.reshape(-1, width), g.reshape(-1, width)
        slots = {name: slot.reshape(-1, width) for name, slot in slots.items()}
        count = _TILE // width
        for start in range(0, rows.size, count):
            tile = slice(start, start + count)
            apply(w, slots, g[tile], rows[tile], scale=scale)
