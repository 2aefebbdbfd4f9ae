"""Runs update rules: the scalars that a kernel reads, and a rule's formula on arrays."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.rules.update_rules import UpdateRule


def hyperparameters(
    rule: UpdateRule, *, updates: int, global_step: int, gradient_scale: float
) -> Array:
    """The scalars that a rule's kernel reads, as float64.

    Args:
        rule: The rule.
        updates: How often it was applied to the variable, this time included.
        global_step: For the learning-rate schedule.
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
