"""The update rules as array operations: on a GPU, and on the host for rules without a kernel.

Each function has the signature of ``ArrayUpdate``: it returns the new value and replaces the arrays
in ``slots``. The same code runs on NumPy arrays, where tests compare it with the kernels. ``xp`` is
``numpy`` or ``cupy``; ``w``, ``slots`` and ``g`` are in the dtype that is computed in, ``g`` after
scaling and clipping; hyperparameters are Python numbers, which do not widen float32. ``t`` counts
the updates of the variable, this one included.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.rules.update_rules import (
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
)

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
    inside, outside = (rate, 1.0) if rule.rate_in_velocity else (1.0, rate)
    m = slots["momentum"] = rule.momentum * slots["momentum"] - inside * g
    return w + outside * (rule.momentum * m - inside * g if rule.nesterov else m)


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


def adam_scalars(rule: Adam | AdamW, rate: float, t: int) -> tuple[float, float]:
    """The rate of update ``t``, and what is added to the root of the uncorrected velocity."""
    first, second = _one_minus_power(rule, rule.beta_1, t), _one_minus_power(rule, rule.beta_2, t)
    root = math.sqrt(second)
    return rate * root / first, rule.epsilon * (root if rule.corrected_epsilon else 1.0)


def _one_minus_power(rule: Adam | AdamW, beta: float, t: int) -> float:
    if not rule.float32_correction:
        return 1 - beta**t
    return float(np.float32(1) - np.float32(beta) ** np.float32(t))


def update_adam(
    xp: Any, rule: Adam | AdamW, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
) -> Any:
    """See ``Adam`` and ``AdamW``."""
    alpha, epsilon = adam_scalars(rule, rate, t)
    m = slots["momentum"] = rule.beta_1 * slots["momentum"] + (1 - rule.beta_1) * g
    v = slots["velocity"] = rule.beta_2 * slots["velocity"] + (1 - rule.beta_2) * g * g
    if isinstance(rule, AdamW):
        w = w - rate * rule.weight_decay * w
    return w - alpha * m / (xp.sqrt(v) + epsilon)


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


def update_adamax(
    xp: Any, rule: Adamax, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
) -> Any:
    """See ``Adamax``."""
    m = slots["momentum"] = rule.beta_1 * slots["momentum"] + (1 - rule.beta_1) * g
    u = slots["norm"] = xp.maximum(rule.beta_2 * slots["norm"], xp.abs(g))
    return w - rate / (1 - rule.beta_1**t) * m / (u + rule.epsilon)


# 1 - 0.96^i / 2 of every update so far, multiplied; beyond, the factors are 1 to the last bit.
_WARM_UP = np.cumprod(1 - 0.5 * 0.96 ** np.arange(1, 1001)).tolist()


def nadam_factors(rule: Nadam, t: int) -> tuple[float, float, float]:
    """What multiplies momentum, gradient and velocity in update ``t``."""

    def momentum(i: int) -> float:
        return rule.beta_1 * (1 - 0.5 * 0.96**i)

    def product(i: int) -> float:
        return float(rule.beta_1**i * _WARM_UP[min(i, len(_WARM_UP)) - 1])

    return (
        momentum(t + 1) / (1 - product(t + 1)),
        (1 - momentum(t)) / (1 - product(t)),
        1 / (1 - rule.beta_2**t),
    )


def update_nadam(
    xp: Any, rule: Nadam, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
) -> Any:
    """See ``Nadam``."""
    of_m, of_g, of_v = nadam_factors(rule, t)
    m = slots["momentum"] = rule.beta_1 * slots["momentum"] + (1 - rule.beta_1) * g
    v = slots["velocity"] = rule.beta_2 * slots["velocity"] + (1 - rule.beta_2) * g * g
    return w - rate * (of_m * m + of_g * g) / (xp.sqrt(of_v * v) + rule.epsilon)


def update_adadelta(
    xp: Any,
    rule: Adadelta,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``Adadelta``."""
    rho, s = rule.rho, slots["accumulated_delta"]
    a = slots["accumulated_gradient"] = rho * slots["accumulated_gradient"] + (1 - rho) * g * g
    d = g * xp.sqrt(s + rule.epsilon) / xp.sqrt(a + rule.epsilon)
    slots["accumulated_delta"] = rho * s + (1 - rho) * d * d
    return w - rate * d


def update_lion(
    xp: Any,
    rule: Lion,
    w: Any,
    slots: dict[str, Any],
    g: Any,
    rate: float,
    t: int,  # noqa: ARG001
) -> Any:
    """See ``Lion``."""
    m = slots["momentum"]
    slots["momentum"] = rule.beta_2 * m + (1 - rule.beta_2) * g
    direction = xp.sign(rule.beta_1 * m + (1 - rule.beta_1) * g)
    return w - rate * rule.weight_decay * w - rate * direction


def update_lamb(
    xp: Any, rule: Lamb, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
) -> Any:
    """See ``Lamb``."""
    m = slots["momentum"] = rule.beta_1 * slots["momentum"] + (1 - rule.beta_1) * g
    v = slots["velocity"] = rule.beta_2 * slots["velocity"] + (1 - rule.beta_2) * g * g
    d = m / (1 - rule.beta_1**t) / (xp.sqrt(v / (1 - rule.beta_2**t)) + rule.epsilon)
    if rule.weight_decay:
        d = d + rule.weight_decay * w
    of_w, of_d = xp.sqrt(xp.sum(w * w)), xp.sqrt(xp.sum(d * d))
    usable = (of_w > 0) & (of_d > 0)
    return w - rate * xp.where(usable, of_w / xp.where(usable, of_d, 1), 1) * d
