"""Update rules on rows of a growing table.

The rules of ``core/rules/built_in`` run by the kernels that dense tables have. Where a rule
corrects by the number of updates, that is the row's own here: a row that is made late would
otherwise take its first steps with the corrections of an old one. Two rules look at whole rows, and
run here alone.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.arrays.gather_buffer import split
from ....core.errors import ConfigurationError
from ....core.rules.built_in.adam import AdamW, CorrectedAdam
from ....core.rules.update_rules import UpdateRule
from ....engine.library import library
from ....engine.update_kernel import apply_formula, hyperparameters
from ..options import NormClipping
from ..update_rules import GroupFtrl, RowwiseAdagrad, slot_elements
from .row_store import RowStore

_LINE_BYTES = 64
_MOST_CORRECTIONS = 1 << 22  # entries of Adam's table: 16 bytes each
_CORRECTIONS_AT_ONCE = 1024  # 3 ms
_LARGEST_BETA = 1 - math.log(1e6) / _MOST_CORRECTIONS


def slots_of(table: str, rule: UpdateRule, width: int) -> dict[str, tuple[int, float]]:
    """List slots by name: (elements per row, the number they begin with).

    Raises:
        ConfigurationError: The rule does not run on rows.
    """
    if not isinstance(rule, RowwiseAdagrad | GroupFtrl):
        if not rule.kernels:
            raise ConfigurationError(
                f"table {table!r}: the update rule {rule.name} has no kernel that runs on rows of "
                "a growing table; write SGD, Adagrad, RowwiseAdagrad, Adam, Ftrl or GroupFtrl",
                table=table,
            )
        betas = [getattr(rule, beta, 0.0) for beta in ("beta_1", "beta_2")]
        if isinstance(rule, CorrectedAdam) and max(betas) > _LARGEST_BETA:
            raise ConfigurationError(
                f"table {table!r}: {rule.name} has the beta {max(betas)}; rows are corrected for "
                f"{_MOST_CORRECTIONS} updates, which is enough up to {_LARGEST_BETA:.7f}",
                table=table,
            )
    elements = slot_elements(rule, width)
    return {slot: (elements[slot], start) for slot, start in rule.slot_start().items()}


_Own = RowwiseAdagrad | GroupFtrl | CorrectedAdam
"""Rules with kernels of their own for rows."""


class RowUpdater:
    """Runs one rule on rows of a store.

    Args:
        table: The table's name.
        rule: Rule to run; its slots are those of the store.
    """

    def __init__(self, table: str, rule: UpdateRule) -> None:
        self._table = table
        self._rule = rule
        self._corrections = np.empty(0)

    def apply(
        self, store: RowStore, rows: Array, gradients: Array, *, step: int, scale: float
    ) -> None:
        """Update rows in place, by several threads if they are many.

        Args:
            store: Store whose counts have this update in them. Modified.
            rows: int64, shape ``(n,)``, each once.
            gradients: contiguous, shape ``(n, width)``, of the store's dtype.
            step: Global step, for the learning-rate schedule.
            scale: Multiplies the gradients, before they are clipped by value.
        """
        rule = self._rule
        if not rows.size or (rule.skips_rate_zero and not rule.rate(step)):
            return
        if rule.goes_by_step:
            self._run_shared(store, rows, gradients, step, scale, updates=rule.count(0, step))
            return
        if isinstance(rule, _Own):
            self._run_own(rule, store, rows, gradients, step, scale)
            return
        if not rule.counts_updates:
            self._run_shared(store, rows, gradients, step, scale, updates=1)
            return
        counts = store.counts[rows]
        for count in np.unique(counts).tolist():
            chosen = np.flatnonzero(counts == count)
            self._run_shared(store, rows[chosen], gradients[chosen], step, scale, updates=count)

    def _run_shared(
        self, store: RowStore, rows: Array, gradients: Array, step: int, scale: float, updates: int
    ) -> None:
        rule, dtype = self._rule, store.values.dtype
        chosen = rule.chosen_kernel()
        kernel = library.update_kernel_if_ready(chosen, dtype) if chosen else None
        if kernel is None:
            self._run_formula(store, rows, gradients, step, scale, updates=updates)
            return
        scalars = hyperparameters(rule, updates=updates, global_step=step, gradient_scale=scale)
        active, none = rule.active_slots(), np.empty(0, dtype)
        slots = [store.slots[name].reshape(-1) if name in active else none for name in rule.slots]
        width = store.values.shape[1]
        flat = store.values.reshape(-1), slots, gradients.reshape(-1)
        kernel(*flat, rows, width, scalars.astype(dtype))

    def _run_formula(
        self, store: RowStore, rows: Array, gradients: Array, step: int, scale: float, updates: int
    ) -> None:
        apply_formula(
            np, self._rule, store.values, store.slots, gradients, rows,
            rate=self._rule.rate(step), updates=updates, scale=scale,
        )  # fmt: skip

    def _run_own(
        self, rule: _Own, store: RowStore, rows: Array, gradients: Array, step: int, scale: float
    ) -> None:
        dtype, width = store.values.dtype, store.values.shape[1]
        rate = rule.rate(step)
        limit = rule.clipvalue if rule.clipvalue is not None else math.inf
        name, scalars = _own_scalars(rule, rate, width)
        table = self._table_of(rule, int(store.counts[rows].max()))
        kernel = library.row_kernel_if_ready(name, dtype)
        if kernel is None:
            if not isinstance(rule, CorrectedAdam):
                self._run_formula(store, rows, gradients, step, scale, updates=1)
                return
            g = np.clip(gradients * dtype.type(scale), -limit, limit)
            _adam(rule, store, rows, g, rate, table)
            return
        h = np.array([scale, limit, *scalars], dtype)
        slots = [slot.reshape(-1) for slot in store.slots.values()]
        s0, s1 = (*slots, np.empty(0, dtype))[:2]
        table, uses = table.astype(dtype), store.uses.reshape(-1)
        values, flat = store.values.reshape(-1), gradients.reshape(-1)

        def some_rows(start: int, stop: int) -> None:
            part = flat[start * width : stop * width]
            kernel(values, s0, s1, part, rows[start:stop], width, h, uses, table)

        row_bytes = max(width * dtype.itemsize, _LINE_BYTES)
        split(some_rows, rows.size, itemsize=row_bytes * (1 + len(slots)))

    def _table_of(self, rule: UpdateRule, most: int) -> Array:
        """Tabulate Adam's factor of the rate, and epsilon, for counts from 1 to ``most`` at
        least.
        """
        if not isinstance(rule, CorrectedAdam):
            return self._corrections
        tabulated = self._corrections.size // 2
        enough = min(_where_corrections_end(rule), _MOST_CORRECTIONS)
        if tabulated < min(most, enough):
            counts = range(tabulated + 1, min(most + _CORRECTIONS_AT_ONCE, enough) + 1)
            more = [rule.corrections(1.0, t) for t in counts]
            self._corrections = np.append(self._corrections, np.array(more))
        return self._corrections


def _where_corrections_end(rule: CorrectedAdam) -> int:
    """Find the count from which on ``1 - beta ** t`` is 1 to nine digits."""
    beta = max(rule.beta_1, rule.beta_2)
    return 1 if beta == 0 else max(1, math.ceil(math.log(1e-9) / math.log(beta)))


def _own_scalars(rule: _Own, rate: float, width: int) -> tuple[str, Sequence[float]]:
    """Return a kernel's name, and what it reads from the rate on."""
    if isinstance(rule, RowwiseAdagrad):
        return "rowwise_adagrad", (rate, rule.epsilon, 1 / width)
    if isinstance(rule, GroupFtrl):
        return "group_ftrl", (rate, *rule.strengths(rate, width))
    return "adam_rows", (
        rate, rule.beta_1, 1 - rule.beta_1, rule.beta_2, 1 - rule.beta_2,
        rule.weight_decay if isinstance(rule, AdamW) else 0.0,
    )  # fmt: skip


def _adam(
    rule: CorrectedAdam, store: RowStore, rows: Array, g: Array, rate: float, table: Array
) -> None:
    """Run Adam's formula with the corrections of each row's own count."""
    entries = np.minimum(store.counts[rows].astype(np.int64), table.size // 2) - 1
    lr = g.dtype.type(rate)
    factor, epsilon = (table.astype(g.dtype)[2 * entries + i][:, None] for i in range(2))
    slots = {name: slot[rows] for name, slot in store.slots.items()}
    w = store.values[rows]
    store.values[rows] = rule.corrected(np, w, slots, g, lr, lr * factor, epsilon)
    for name, slot in slots.items():
        store.slots[name][rows] = slot


RULE_KERNELS = frozenset({"adam_rows", "rowwise_adagrad", "group_ftrl"})


def warm_up(rule: UpdateRule, dtype: Any) -> None:
    """Begin to load the rule's kernel, or to compile it."""
    if isinstance(rule, _Own):
        library.load_in_background(_own_scalars(rule, 1.0, 1)[0], np.dtype(dtype))
    elif (kernel := rule.chosen_kernel()) is not None:
        library.load_in_background(kernel, np.dtype(dtype))


# -- Clipping of a table's gradients by norm, after those of equal keys were added up ----------


def clipped(clipping: NormClipping, gradients: Array, scale: float) -> tuple[Array, float]:
    """Clip gradients that are still to be multiplied by ``scale``.

    Args:
        clipping: Largest norms.
        gradients: contiguous, shape ``(n, dim)``.
        scale: Positive.

    Returns:
        (the gradients, another array if they were clipped; the scale, smaller if they were)
    """
    if (clipping.row_norm is None and clipping.table_norm is None) or not gradients.size:
        return gradients, scale
    squares = square_rows(gradients)
    if clipping.row_norm is not None:
        norms = np.sqrt(squares) * scale
        factors = np.where(
            norms > clipping.row_norm, clipping.row_norm / np.where(norms, norms, 1), 1
        )
        gradients = gradients * factors.astype(gradients.dtype)[:, None]
        squares = squares * factors**2
    if clipping.table_norm is not None:
        # In order, so that every processor makes the same sum.
        norm = math.sqrt(float(np.cumsum(squares)[-1])) * scale
        if norm > clipping.table_norm:
            scale *= clipping.table_norm / norm
    return gradients, scale


def square_rows(gradients: Array) -> Array:
    """Sum the squares of each row, float64, shape ``(n,)``."""
    count, width = gradients.shape
    kernel = library.row_kernel_if_ready("square_rows", gradients.dtype)
    if kernel is not None:
        out = np.empty(count)
        kernel(gradients.reshape(-1), width, out)
        return out
    out = np.zeros(count)
    for i in range(width):
        x = gradients[:, i].astype(np.float64)
        out += x * x
    return out
