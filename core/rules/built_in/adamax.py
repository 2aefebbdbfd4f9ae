"""Adamax: Adam with the maximum norm."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ..counterparts import Counterparts, OnWorker
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Slots
from .adam import AdamLike


@kernel(scalars=7, slots=2)
def adamax(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Update by Adamax. h[2]: the rate with its bias correction. h[3], h[4]: b1, 1 - b1. h[5]: b2.
    h[6]: eps.
    """
    scale, limit, alpha = h[0], h[1], h[2]
    b1, c1, b2, eps = h[3], h[4], h[5], h[6]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            m = b1 * s0[lo + i] + c1 * x
            u = max(b2 * s1[lo + i], abs(x))
            s0[lo + i] = m
            s1[lo + i] = u
            w[lo + i] -= alpha * m / (u + eps)


class Adamax(AdamLike):
    """``m = b1*m + (1-b1)*g; u = max(b2*u, |g|); w -= lr * m / ((1 - b1^t) * (u + epsilon))``.

    As Keras; optax and PyTorch add epsilon to ``|g|`` before the maximum. Kingma and Ba, ICLR 2015,
    section 7.1.
    """

    slots: ClassVar[Slots] = {"momentum": 0.0, "norm": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (adamax,)
    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"Adamax": lambda _: OnWorker("adds epsilon before the maximum, the rule after")}
    )

    name: Literal["Adamax"] = "Adamax"

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        alpha = rate / (1 - self.beta_1**t)
        return alpha, self.beta_1, 1 - self.beta_1, self.beta_2, self.epsilon

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        m = slots["momentum"] = self.beta_1 * slots["momentum"] + (1 - self.beta_1) * g
        u = slots["norm"] = xp.maximum(self.beta_2 * slots["norm"], xp.abs(g))
        return w - rate / (1 - self.beta_1**t) * m / (u + self.epsilon)
