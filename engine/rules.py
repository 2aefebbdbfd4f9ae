"""Runs update rules: the scalars that a kernel reads, and a rule's formula on arrays.

To compile a kernel takes half a second, and minutes on a machine that has more to do, once for each
machine. Nobody waits for it: until it is there NumPy does the same, to the bit, by the formula
(``tests/unit/engine/test_engine_formula_kernel.py``). That takes five to twelve times as long, and
goes in tiles, so that what it computes with stays in the caches and takes no memory to speak of.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array, DType
from ..core.rules.kernels import UpdateFunction
from ..core.rules.update_rules import UpdateRule
from .update_kernel import UpdateKernel

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
    """Run the formula with the signature of a kernel; see ``core/rules/kernels.py``."""
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
