"""Update rules on rows of a growing table.

Rules of ``core/rules/update_rules.py`` run by the kernels that dense tables have. Where a rule
corrects by the number of updates, that is the row's own here: a row that is made late would
otherwise take its first steps with the corrections of an old one. Two rules look at whole rows, and
run here alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.arrays.copying import split
from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...core.rules.row_rules import GroupFtrl, RowwiseAdagrad, slot_elements
from ...core.rules.update_rules import Adam, AdamW, UpdateRule
from .. import array_updates
from ..library import library
from ..rules import apply_formula, entry_of, hyperparameters
from .row_store import RowStore

_LINE_BYTES = 64
_MOST_CORRECTIONS = 1 << 22  # entries of Adam's table: 16 bytes each
_CORRECTIONS_AT_ONCE = 1024  # 3 ms
_LARGEST_BETA = 1 - math.log(1e6) / _MOST_CORRECTIONS


def slots_of(table: str, rule: UpdateRule, width: int) -> dict[str, tuple[int, float]]:
    """Slot name → (elements per row, the number they begin with).

    Raises:
        ConfigurationError: The rule does not run on rows.
    """
    if not isinstance(rule, RowwiseAdagrad | GroupFtrl):
        try:
            usable = bool(entry_of(rule).kernels)
        except TypeError:
            usable = False
        if not usable:
            raise ConfigurationError(
                f"table {table!r}: the update rule {rule.name} has no kernel that runs on rows of "
                "a growing table; write SGD, Adagrad, RowwiseAdagrad, Adam, Ftrl or GroupFtrl",
                table=table,
            )
        betas = [getattr(rule, beta, 0.0) for beta in ("beta_1", "beta_2")]
        if isinstance(rule, Adam | AdamW) and max(betas) > _LARGEST_BETA:
            raise ConfigurationError(
                f"table {table!r}: {rule.name} has the beta {max(betas)}; rows are corrected for "
                f"{_MOST_CORRECTIONS} updates, which is enough up to {_LARGEST_BETA:.7f}",
                table=table,
            )
    elements = slot_elements(rule, width)
    return {slot: (elements[slot], start) for slot, start in rule.slot_start().items()}


_Own = RowwiseAdagrad | GroupFtrl | Adam | AdamW
"""Rules with kernels of their own for rows."""


class RowUpdater:
    """Runs one rule on rows of a store.

    Args:
        table: The table's name.
        rule: Its slots are those of the store.
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
            store: Its counts have this update in them. Modified.
            rows: int64, shape ``(n,)``, each once.
            gradients: contiguous, shape ``(n, width)``, of the store's dtype.
            step: For the learning-rate schedule.
            scale: Multiplies the gradients, before they are clipped by value.
        """
        rule = self._rule
        if not rows.size:
            return
        if isinstance(rule, _Own):
            self._run_own(rule, store, rows, gradients, step, scale)
            return
        entry = entry_of(rule)
        if entry.skips_rate_zero and not rule.rate(step):
            return
        if not entry.counts_updates:
            self._run_shared(store, rows, gradients, step, scale, updates=1)
            return
        counts = store.counts[rows]
        for count in np.unique(counts).tolist():
            chosen = np.flatnonzero(counts == count)
            self._run_shared(store, rows[chosen], gradients[chosen], step, scale, updates=count)

    def _run_shared(
        self,
        store: RowStore,
        rows: Array,
        gradients: Array,
        step: int,
        scale: float,
        *,
        updates: int,
    ) -> None:
        rule, entry, dtype = self._rule, entry_of(self._rule), store.values.dtype
        try:
            kernel = library.update_kernel(entry.kernel(rule), dtype) if entry.kernel else None
        except ImportError:
            kernel = None
        if kernel is None:
            apply_formula(
                np, rule, store.values, store.slots, gradients, rows,
                rate=rule.rate(step), updates=updates, scale=scale,
            )  # fmt: skip
            return
        scalars = hyperparameters(rule, updates=updates, global_step=step, gradient_scale=scale)
        active, none = rule.active_slots(), np.empty(0, dtype)
        slots = [store.slots[name].reshape(-1) if name in active else none for name in entry.slots]
        width = store.values.shape[1]
        flat = store.values.reshape(-1), slots, gradients.reshape(-1)
        kernel(*flat, rows, width, scalars.astype(dtype))

    def _run_own(
        self, rule: _Own, store: RowStore, rows: Array, gradients: Array, step: int, scale: float
    ) -> None:
        dtype, width = store.values.dtype, store.values.shape[1]
        rate = rule.rate(step)
        if isinstance(rule, GroupFtrl) and not rate:
            return
        limit = rule.clipvalue if rule.clipvalue is not None else math.inf
        name, scalars = _own_scalars(rule, rate, width)
        table = self._table_of(rule, int(store.counts[rows].max()))
        try:
            kernel = library.row_kernel(name, dtype)
        except ImportError:
            g = np.clip(gradients * dtype.type(scale), -limit, limit)
            _FORMULAS[name](store, rows, g, [dtype.type(x) for x in scalars], table)
            return
        h = np.array([scale, limit, *scalars], dtype)
        slots = [slot.reshape(-1) for slot in store.slots.values()]
        s0, s1 = (*slots, np.empty(0, dtype))[:2]
        table, counts = table.astype(dtype), store.counts
        values, flat = store.values.reshape(-1), gradients.reshape(-1)

        def some_rows(start: int, stop: int) -> None:
            part = flat[start * width : stop * width]
            kernel(values, s0, s1, part, rows[start:stop], width, h, counts, table)

        row_bytes = max(width * dtype.itemsize, _LINE_BYTES)
        split(some_rows, rows.size, itemsize=row_bytes * (1 + len(slots)))

    def _table_of(self, rule: UpdateRule, most: int) -> Array:
        """Adam's factor of the rate, and epsilon, for counts from 1 to ``most`` at least."""
        if not isinstance(rule, Adam | AdamW):
            return self._corrections
        known = self._corrections.size // 2
        enough = min(_where_corrections_end(rule), _MOST_CORRECTIONS)
        if known < min(most, enough):
            counts = range(known + 1, min(most + _CORRECTIONS_AT_ONCE, enough) + 1)
            more = [array_updates.adam_scalars(rule, 1.0, t) for t in counts]
            self._corrections = np.append(self._corrections, np.array(more))
        return self._corrections


def _where_corrections_end(rule: Adam | AdamW) -> int:
    """From this count on ``1 - beta ** t`` is 1 to nine digits."""
    beta = max(rule.beta_1, rule.beta_2)
    return 1 if beta == 0 else max(1, math.ceil(math.log(1e-9) / math.log(beta)))


def _own_scalars(rule: _Own, rate: float, width: int) -> tuple[str, Sequence[float]]:
    """A kernel's name, and what it reads from the rate on."""
    if isinstance(rule, RowwiseAdagrad):
        return "rowwise_adagrad", (rate, rule.epsilon, 1 / width)
    if isinstance(rule, GroupFtrl):
        l2 = 2 * rule.l2_regularization_strength + (rule.beta / rate if rule.beta else 0.0)
        group = rule.group_regularization_strength * math.sqrt(width)
        return "group_ftrl", (rate, rule.l1_regularization_strength, l2, group)
    return "adam_rows", (
        rate, rule.beta_1, 1 - rule.beta_1, rule.beta_2, 1 - rule.beta_2,
        rule.weight_decay if isinstance(rule, AdamW) else 0.0,
    )  # fmt: skip


def _adam(store: RowStore, rows: Array, g: Array, h: Sequence[Any], table: Array) -> None:
    lr, b1, c1, b2, c2, decay = h
    entries = np.minimum(store.counts[rows].astype(np.int64), table.size // 2) - 1
    dtype = g.dtype.type
    alpha, epsilon = (table.astype(dtype)[2 * entries + i][:, None] for i in range(2))
    m = store.slots["momentum"][rows] * b1 + c1 * g
    v = store.slots["velocity"][rows] * b2 + c2 * g * g
    store.slots["momentum"][rows], store.slots["velocity"][rows] = m, v
    w = store.values[rows]
    store.values[rows] = w - lr * decay * w - lr * alpha * m / (np.sqrt(v) + epsilon)


def _rowwise_adagrad(
    store: RowStore,
    rows: Array,
    g: Array,
    h: Sequence[Any],
    table: Array,  # noqa: ARG001
) -> None:
    lr, epsilon, part = h
    a = store.slots["accumulator"][rows] + (g * g).sum(axis=1, keepdims=True) * part
    store.slots["accumulator"][rows] = a
    store.values[rows] -= lr / (np.sqrt(a) + epsilon) * g


def _group_ftrl(
    store: RowStore,
    rows: Array,
    g: Array,
    h: Sequence[Any],
    table: Array,  # noqa: ARG001
) -> None:
    lr, l1, l2, group = h
    before, old = store.slots["accumulator"][rows], store.values[rows]
    after = before + g * g
    z = store.slots["linear"][rows] + (g - (np.sqrt(after) - np.sqrt(before)) / lr * old)
    store.slots["accumulator"][rows], store.slots["linear"][rows] = after, z
    shrunk = np.clip(z, -l1, l1) - z
    norm = np.sqrt((shrunk * shrunk).sum(axis=1, keepdims=True))
    stays = norm > group
    keep = np.where(stays, (norm - group) / np.where(stays, norm, 1), 0)
    store.values[rows] = keep * shrunk / (np.sqrt(after) / lr + l2)


_FORMULAS: dict[str, Callable[[RowStore, Array, Array, Sequence[Any], Array], None]] = {
    "adam_rows": _adam,
    "rowwise_adagrad": _rowwise_adagrad,
    "group_ftrl": _group_ftrl,
}


RULE_KERNELS = frozenset(_FORMULAS)


def warm_up(rule: UpdateRule, dtype: Any) -> None:
    """Load the rule's kernel, so that no push waits for it; without Numba, nothing."""
    try:
        if isinstance(rule, _Own):
            library.row_kernel(_own_scalars(rule, 1.0, 1)[0], np.dtype(dtype))
        elif (kernel := entry_of(rule).kernel) is not None:
            library.update_kernel(kernel(rule), np.dtype(dtype))
    except ImportError:
        return
