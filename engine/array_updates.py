"""The update rules as array operations, for memory that the kernels cannot reach: a GPU's.

Each function has the signature of ``ArrayUpdate``: it returns the new value and replaces the arrays
in ``slots``. The same code runs on NumPy arrays, where tests compare it with the kernels. ``xp`` is
``numpy`` or ``cupy``; ``w``, ``slots`` and ``g`` are in the dtype that is computed in, ``g`` after
scaling and clipping; hyperparameters are Python numbers, which do not widen float32. ``t`` counts
the updates of the variable, this one included.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.update_rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop

ArrayUpdate = Callable[[Any, Any, Any, dict[str, Any], Any, float, int], Any]
"""``update(xp, rule, w, slots, g, rate, t) -> new w``"""


def update_sgd(
    xp: Any,  # noqa: ARG001
    rule: SGD,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``SGD``."""
    if not rule.momentum:
        return w - rate * g
    m = slots["momentum"] = rule.momentum * slots["momentum"] - rate * g
    return w + (rule.momentum * m - rate * g if rule.nesterov else m)


def update_adagrad(
    xp: Any,
    rule: Adagrad,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``Adagrad``."""
    a = slots["accumulator"] = slots["accumulator"] + g * g
    return w - rate * g / xp.sqrt(a + rule.epsilon)


def update_rmsprop(
    xp: Any,
    rule: RMSprop,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``RMSprop``."""
    v = slots["velocity"] = rule.rho * slots["velocity"] + (1 - rule.rho) * g * g
    if rule.centered:
        a = rule.rho * slots["average_gradient"] + (1 - rule.rho) * g
        slots["average_gradient"] = a
        v = v - a * a
    step = rate * g / xp.sqrt(v + rule.epsilon)
    if rule.momentum:
        step = slots["momentum"] = rule.momentum * slots["momentum"] + step
    return w - step


def update_adam(
    xp: Any, rule: Adam | AdamW, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
) -> Any:
    """See ``Adam`` and ``AdamW``."""
    alpha = rate * float(np.sqrt(1 - rule.beta_2**t)) / (1 - rule.beta_1**t)
    m = slots["momentum"] = rule.beta_1 * slots["momentum"] + (1 - rule.beta_1) * g
    v = slots["velocity"] = rule.beta_2 * slots["velocity"] + (1 - rule.beta_2) * g * g
    if isinstance(rule, AdamW):
        w = w - rate * rule.weight_decay * w
    return w - alpha * m / (xp.sqrt(v) + rule.epsilon)


def update_ftrl(
    xp: Any,
    rule: Ftrl,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``Ftrl``."""
    power = -rule.learning_rate_power
    before = slots["accumulator"]
    after = before + g * g
    strength = (after**power - before**power) / rate
    shrinkage = 2 * rule.l2_shrinkage_regularization_strength
    z = slots["linear"] = slots["linear"] + g + shrinkage * w - strength * w
    slots["accumulator"] = after
    l1 = rule.l1_regularization_strength
    l2 = 2 * rule.l2_regularization_strength + (rule.beta / rate if rule.beta else 0.0)
    return (xp.clip(z, -l1, l1) - z) / (after**power / rate + l2)
