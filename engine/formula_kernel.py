"""An update rule by its formula, in the place of a kernel that is not there yet.

To compile a kernel takes half a second, and minutes on a machine that has more to do, once for each
machine. Nobody waits for it: NumPy does the same meanwhile, to the bit, by the rule's formula
(``tests/unit/engine/test_engine_formula_kernel.py``). It takes three to ten times as long, and goes
in tiles, so that what it computes with stays in the caches and takes no memory to speak of.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..core.arrays.dtypes import Array, DType
from ..core.rules.kernels import UpdateFunction
from ..core.rules.update_rules import UpdateRule
from .rules import apply_formula
from .update_kernel import UpdateKernel

_TILE = 1 << 15  # elements


def formula_kernel(
    rule: UpdateRule, update: UpdateFunction, dtype: DType, *, rate: float, updates: int
) -> UpdateKernel:
    """What is called as the rule's kernel is, and checks its arguments as that does.

    Args:
        rule: Element by element, as every rule with a kernel.
        update: Its kernel.
        dtype: Dtype of all arrays but the row numbers.
        rate: The learning rate.
        updates: How often the rule was applied, this time included.
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
    """The signature of a kernel; see ``core/rules/kernels.py``."""
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
