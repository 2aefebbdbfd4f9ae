"""FTRL-Proximal: the regularized leader is followed."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


@kernel(scalars=8, slots=2)
def ftrl(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Update by FTRL: accumulator s0, linear s1.

    h[6]: 2 * l2_shrinkage. h[7]: 1 if the power is one half, the common case, where a root is
    exact.
    """
    scale, limit, lr = h[0], h[1], h[2]
    power, l1, l2, shrinkage, is_root = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            n, old = s0[lo + i], w[lo + i]
            new = n + x * x
            if is_root > 0:
                after, before = np.sqrt(new), np.sqrt(n)
            else:
                after, before = new**power, n**power
            z = s1[lo + i] + (x + shrinkage * old - (after - before) / lr * old)
            s0[lo + i] = new
            s1[lo + i] = z
            w[lo + i] = (clip(z, l1) - z) / (after / lr + l2)


class Ftrl(UpdateRule):
    """Follow the regularized leader, proximal: McMahan et al., "Ad Click Prediction", KDD 2013.

    ``n' = n + g²; s = (n'^-p - n^-p) / lr; z += g - s*w`` with ``p = learning_rate_power``; ``w =
    (clip(z, -l1, l1) - z) / (n'^-p / lr + 2*(l2 + beta/(2*lr)))``. As Keras; ``g`` in ``z`` carries
    ``2 * l2_shrinkage * w``.
    """

    slots: ClassVar[Slots] = {"accumulator": "initial_accumulator_value", "linear": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (ftrl,)
    skips_rate_zero: ClassVar[bool] = True

    name: Literal["Ftrl"] = "Ftrl"
    learning_rate: Rate = 0.001
    learning_rate_power: float = Field(default=-0.5, le=0)
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    l1_regularization_strength: float = Field(default=0.0, ge=0)
    l2_regularization_strength: float = Field(default=0.0, ge=0)
    l2_shrinkage_regularization_strength: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.0, ge=0)

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        power, l1, l2, shrinkage = self._strengths(rate)
        return rate, power, l1, l2, shrinkage, power == 0.5

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        power, l1, l2, shrinkage = self._strengths(rate)
        before = slots["accumulator"]
        after = before + g * g
        strength = (after**power - before**power) / rate
        z = slots["linear"] = slots["linear"] + (g + shrinkage * w - strength * w)
        slots["accumulator"] = after
        return (xp.clip(z, -l1, l1) - z) / (after**power / rate + l2)

    def _strengths(self, rate: float) -> tuple[float, float, float, float]:
        l2 = 2 * self.l2_regularization_strength + (self.beta / rate if self.beta else 0.0)
        shrinkage = 2 * self.l2_shrinkage_regularization_strength
        return -self.learning_rate_power, self.l1_regularization_strength, l2, shrinkage
