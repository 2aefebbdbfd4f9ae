"""The table of update rules: what carries out each class of ``core/rules/update_rules.py``.

A rule needs a formula in array operations, for GPUs, and for the host a kernel and the scalars that
the kernel reads. They stand in one entry, which is checked when this module is imported: a rule
that lacks a part is an error there, not at its first use. Rules without a kernel (what needs norms
of whole variables, and a program's own) run by their formula on the host, too: one core, and memory
for its intermediate arrays.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.rules.update_rules import (
    BUILT_IN,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
    UpdateRule,
)
from . import array_updates as formulas
from .array_updates import ArrayUpdate

Scalars = Callable[[Any, float, int], Sequence[float]]
"""``scalars(rule, rate, t)``: the scalars from the learning rate on, in ``kernels.py``'s order."""


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule.

    Attributes:
        rule: Its class.
        slots: Names of its slots in the order of the kernel's arguments, all that it may have.
        array_update: The formula in array operations.
        kernels: Names of the kernels in ``kernels.py`` that it may take; none: its formula runs on
            the host, on each variable for itself.
        kernel: Which of them it takes with these hyperparameters.
        scalars: Computes what the kernel reads.
        counts_updates: Whether the scalars depend on how often a variable was updated.
        skips_rate_zero: Whether a learning rate of zero means no update at all: the formula divides
            by it.
    """

    rule: type[Any]
    slots: tuple[str, ...]
    array_update: ArrayUpdate
    kernels: tuple[str, ...] = ()
    kernel: Callable[[Any], str] | None = None
    scalars: Scalars | None = None
    counts_updates: bool = False
    skips_rate_zero: bool = False


_ENTRIES: dict[type[Any], RuleEntry] = {}


def register(entry: RuleEntry) -> None:
    """Add a rule to the table.

    Raises:
        TypeError: The class has an entry, or the entry does not fit it.
    """
    name = entry.rule.__name__
    if entry.rule in _ENTRIES:
        raise TypeError(f"the update rule {name} is registered already")
    declared = tuple(entry.rule.slots)
    same = set(entry.slots) == set(declared) and len(entry.slots) == len(declared)
    if not same or (entry.kernels and len(declared) > 3):
        raise TypeError(
            f"the update rule {name} has the slots {declared}, its entry says {entry.slots}; they "
            "must be the same, and for a kernel at most three"
        )
    if len({bool(entry.kernels), entry.kernel is not None, entry.scalars is not None}) > 1:
        raise TypeError(
            f"the entry of the update rule {name} has some of kernels, kernel and scalars; a rule "
            "with a kernel needs all three"
        )
    _ENTRIES[entry.rule] = entry


def entry_of(rule: UpdateRule) -> RuleEntry:
    """The entry of a rule's class.

    Raises:
        TypeError: It has none.
    """
    try:
        return _ENTRIES[type(rule)]
    except KeyError:
        raise TypeError(
            f"{type(rule).__name__} is no registered update rule; those are "
            + ", ".join(known.__name__ for known in _ENTRIES)
        ) from None


def entries() -> tuple[RuleEntry, ...]:
    """The table of the rules that are built in."""
    return tuple(_ENTRIES[kind] for kind in BUILT_IN)


def check_complete(rules: Sequence[type[Any]]) -> None:
    """Check that each of these classes has an entry.

    Raises:
        TypeError: One has none.
    """
    missing = [rule.__name__ for rule in rules if rule not in _ENTRIES]
    if missing:
        raise TypeError(f"no entry in engine/rules.py for the update rules {', '.join(missing)}")


def hyperparameters(
    rule: UpdateRule, *, updates: int, global_step: int, gradient_scale: float
) -> Array:
    """The scalars a rule's kernel reads, as float64; ``kernels.py`` says in which order.

    Args:
        rule: The rule.
        updates: How often it was applied to the variable, this time included.
        global_step: For the learning-rate schedule.
        gradient_scale: Multiplies the gradient before clipping by value.
    """
    limit = rule.clipvalue if rule.clipvalue is not None else math.inf
    scalars = entry_of(rule).scalars
    rest = scalars(rule, rule.rate(global_step), updates) if scalars is not None else ()
    return np.array([gradient_scale, limit, *rest], np.float64)


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
        rule: The rule; for the formulas see ``core/rules/update_rules.py``.
        value: float array. Modified.
        slots: Arrays by name, of the value's shape. Modified.
        gradient: Gradient of the shape of ``value[index]``.
        index: ``...``, or rows that occur once.
        rate: The learning rate.
        updates: Number of times the rule was applied, this time included.
        scale: Multiplies the gradient before it is clipped.
    """
    entry = entry_of(rule)
    if entry.skips_rate_zero and not rate:
        return
    wide = np.dtype(np.float32) if value.dtype.itemsize < 4 else value.dtype
    # Python numbers, which do not widen float32.
    g = xp.asarray(gradient).astype(wide) * float(scale)
    if rule.clipvalue is not None:
        g = xp.clip(g, -rule.clipvalue, rule.clipvalue)
    w = value[index].astype(wide)
    part = {name: slot[index] for name, slot in slots.items()}
    w = entry.array_update(xp, rule, w, part, g, rate, updates)
    for name, slot in slots.items():
        slot[index] = part[name]
    value[index] = w.astype(value.dtype)


def _sgd(rule: SGD, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    # Whichever of the two is not the rate is 1, and changes nothing to the last bit.
    inside, outside = (rate, 1.0) if rule.rate_in_velocity or not rule.momentum else (1.0, rate)
    return inside, rule.momentum, rule.nesterov, outside


def _adagrad(rule: Adagrad, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.epsilon


def _rmsprop(rule: RMSprop, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.rho, 1 - rule.rho, rule.epsilon, rule.momentum, rule.centered


def _adam(rule: Adam | AdamW, rate: float, t: int) -> Sequence[float]:
    alpha, epsilon = formulas.adam_scalars(rule, rate, t)
    decay = rate * rule.weight_decay if isinstance(rule, AdamW) else 0.0
    b1, b2 = rule.beta_1, rule.beta_2
    return alpha, b1, 1 - b1, b2, 1 - b2, epsilon, decay


def _ftrl(rule: Ftrl, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    l1, power = rule.l1_regularization_strength, -rule.learning_rate_power
    l2 = 2 * rule.l2_regularization_strength + (rule.beta / rate if rule.beta else 0.0)
    return rate, power, l1, l2, 2 * rule.l2_shrinkage_regularization_strength, power == 0.5


def _adamax(rule: Adamax, rate: float, t: int) -> Sequence[float]:
    alpha = rate / (1 - rule.beta_1**t)
    return alpha, rule.beta_1, 1 - rule.beta_1, rule.beta_2, rule.epsilon


def _nadam(rule: Nadam, rate: float, t: int) -> Sequence[float]:
    b1, b2 = rule.beta_1, rule.beta_2
    return rate, b1, 1 - b1, b2, 1 - b2, rule.epsilon, *formulas.nadam_factors(rule, t)


def _adadelta(rule: Adadelta, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.rho, 1 - rule.rho, rule.epsilon


def _lion(rule: Lion, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    b1, b2 = rule.beta_1, rule.beta_2
    return rate, b1, 1 - b1, b2, 1 - b2, rate * rule.weight_decay


def _always(kernel: str) -> tuple[tuple[str, ...], Callable[[Any], str]]:
    return (kernel,), lambda _: kernel


_SGD = (("sgd", "momentum"), lambda rule: "momentum" if rule.momentum else "sgd")
_MOMENTS = ("momentum", "velocity")
_DELTAS = ("accumulated_gradient", "accumulated_delta")

for _entry in (
    RuleEntry(SGD, ("momentum",), formulas.update_sgd, *_SGD, _sgd),
    RuleEntry(Adagrad, ("accumulator",), formulas.update_adagrad, *_always("adagrad"), _adagrad),
    RuleEntry(
        RMSprop,
        ("velocity", "momentum", "average_gradient"),
        formulas.update_rmsprop,
        *_always("rmsprop"),
        _rmsprop,
    ),
    RuleEntry(Adam, _MOMENTS, formulas.update_adam, *_always("adam"), _adam, counts_updates=True),
    RuleEntry(AdamW, _MOMENTS, formulas.update_adam, *_always("adam"), _adam, counts_updates=True),
    RuleEntry(
        Ftrl,
        ("accumulator", "linear"),
        formulas.update_ftrl,
        *_always("ftrl"),
        _ftrl,
        skips_rate_zero=True,
    ),
    RuleEntry(
        Adamax,
        ("momentum", "norm"),
        formulas.update_adamax,
        *_always("adamax"),
        _adamax,
        counts_updates=True,
    ),
    RuleEntry(
        Nadam, _MOMENTS, formulas.update_nadam, *_always("nadam"), _nadam, counts_updates=True
    ),
    RuleEntry(Adadelta, _DELTAS, formulas.update_adadelta, *_always("adadelta"), _adadelta),
    RuleEntry(Lion, ("momentum",), formulas.update_lion, *_always("lion"), _lion),
    RuleEntry(Lamb, _MOMENTS, formulas.update_lamb),
):
    register(_entry)
check_complete(BUILT_IN)
