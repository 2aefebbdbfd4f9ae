"""The table of update rules: what carries out each class of ``core/update_rules.py``.

A rule needs a kernel for the host, the scalars that the kernel reads, and the same formula in array
operations for a GPU. They stand in one entry, which is checked when this module is imported: a rule
that lacks a part is an error there, not at its first use.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from ..core.arrays import Array
from ..core.update_rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop, UpdateRule
from . import array_updates
from .array_updates import ArrayUpdate

Scalars = Callable[[Any, float, int], Sequence[float]]
"""``scalars(rule, rate, t)``: the scalars from the learning rate on, in ``kernels.py``'s order."""


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule.

    Attributes:
        rule: Its class.
        kernels: Names of the kernels in ``kernels.py`` that it may take.
        kernel: Which of them it takes with these hyperparameters.
        slots: Names of its slots in the order of the kernel's arguments, all that it may have.
        scalars: Computes what the kernel reads.
        array_update: The formula in array operations.
        counts_updates: Whether the scalars depend on how often a variable was updated.
        skips_rate_zero: Whether a learning rate of zero means no update at all: the formula divides
            by it.
    """

    rule: type[Any]
    kernels: tuple[str, ...]
    slots: tuple[str, ...]
    scalars: Scalars
    array_update: ArrayUpdate
    kernel: Callable[[Any], str]
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
    if set(entry.slots) != set(declared) or len(entry.slots) != len(declared) or len(declared) > 3:
        raise TypeError(
            f"the update rule {name} has the slots {declared}, its entry says {entry.slots}; they "
            "must be the same, and at most three"
        )
    if not entry.kernels:
        raise TypeError(f"the entry of the update rule {name} names no kernel")
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
    """The whole table."""
    return tuple(_ENTRIES.values())


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
    rest = entry_of(rule).scalars(rule, rule.rate(global_step), updates)
    return np.array([gradient_scale, limit, *rest], np.float64)


def _sgd(rule: SGD, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.momentum, rule.nesterov


def _adagrad(rule: Adagrad, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.epsilon


def _rmsprop(rule: RMSprop, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    return rate, rule.rho, 1 - rule.rho, rule.epsilon, rule.momentum, rule.centered


def _adam(rule: Adam | AdamW, rate: float, t: int) -> Sequence[float]:
    alpha = rate * math.sqrt(1 - rule.beta_2**t) / (1 - rule.beta_1**t)
    decay = rate * rule.weight_decay if isinstance(rule, AdamW) else 0.0
    return alpha, rule.beta_1, 1 - rule.beta_1, rule.beta_2, 1 - rule.beta_2, rule.epsilon, decay


def _ftrl(rule: Ftrl, rate: float, t: int) -> Sequence[float]:  # noqa: ARG001
    l1, power = rule.l1_regularization_strength, -rule.learning_rate_power
    l2 = 2 * rule.l2_regularization_strength + (rule.beta / rate if rule.beta else 0.0)
    return rate, power, l1, l2, 2 * rule.l2_shrinkage_regularization_strength, power == 0.5


register(
    RuleEntry(
        rule=SGD,
        kernels=("sgd", "momentum"),
        kernel=lambda rule: "momentum" if rule.momentum else "sgd",
        slots=("momentum",),
        scalars=_sgd,
        array_update=array_updates.update_sgd,
    )
)
register(
    RuleEntry(
        rule=Adagrad,
        kernels=("adagrad",),
        kernel=lambda _: "adagrad",
        slots=("accumulator",),
        scalars=_adagrad,
        array_update=array_updates.update_adagrad,
    )
)
register(
    RuleEntry(
        rule=RMSprop,
        kernels=("rmsprop",),
        kernel=lambda _: "rmsprop",
        slots=("velocity", "momentum", "average_gradient"),
        scalars=_rmsprop,
        array_update=array_updates.update_rmsprop,
    )
)
for _rule in (Adam, AdamW):
    register(
        RuleEntry(
            rule=_rule,
            kernels=("adam",),
            kernel=lambda _: "adam",
            slots=("momentum", "velocity"),
            scalars=_adam,
            array_update=array_updates.update_adam,
            counts_updates=True,
        )
    )
register(
    RuleEntry(
        rule=Ftrl,
        kernels=("ftrl",),
        kernel=lambda _: "ftrl",
        slots=("accumulator", "linear"),
        scalars=_ftrl,
        array_update=array_updates.update_ftrl,
        skips_rate_zero=True,
    )
)
check_complete(get_args(UpdateRule))
