"""Nadam: Adam with Nesterov's momentum."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from ..counterparts import (
    Counterparts,
    Hyperparameters,
    OnWorker,
    Place,
    torch_moments,
    torch_place,
)
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from .adam import AdamLike


@kernel(scalars=11, slots=2)
def nadam(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Do ``w -= lr * (p*m + q*g) / (sqrt(c*v) + eps)``.

    h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2. h[7]: eps. h[8], h[9], h[10]: p, q, c.
    """
    scale, limit, lr = h[0], h[1], h[2]
    b1, c1, b2, c2, eps, p, q, c = h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10]
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
            v = b2 * s1[lo + i] + c2 * x * x
            s0[lo + i] = m
            s1[lo + i] = v
            w[lo + i] -= lr * (p * m + q * x) / (np.sqrt(c * v) + eps)


@cache
def _warm_up() -> list[float]:
    """Compute products of ``1 - 0.96^i / 2``; beyond, they stay the same to the last bit."""
    return list(np.cumprod(1 - 0.5 * 0.96 ** np.arange(1, 1001)).tolist())


def _of_torch(group: Hyperparameters) -> Place:
    if group["momentum_decay"] != 1.0 or group["decoupled_weight_decay"]:
        return OnWorker("warms its momentum up in another way than the rule (momentum_decay)")
    return torch_place("Nadam", group, **torch_moments(group))


class Nadam(AdamLike):
    """Adam with Nesterov's momentum; ``m`` and ``v`` as Adam's, and a momentum that warms up.

    ``u_t = b1 * (1 - 0.96^t / 2)``, ``U_t = u_1 * … * u_t``; ``w -= lr * (u_{t+1} * m / (1 -
    U_{t+1}) + (1 - u_t) * g / (1 - U_t)) / (sqrt(v / (1 - b2^t)) + epsilon)``. As Keras and
    PyTorch; optax leaves the warm-up out. Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
    """

    kernels: ClassVar[tuple[UpdateFunction, ...]] = (nadam,)
    counterparts: ClassVar[Counterparts] = Counterparts(torch={"NAdam": _of_torch})

    name: Literal["Nadam"] = "Nadam"

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        b1, b2 = self.beta_1, self.beta_2
        return rate, b1, 1 - b1, b2, 1 - b2, self.epsilon, *self._factors(t)

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        of_m, of_g, of_v = self._factors(t)
        m, v = self.next_moments(slots, g)
        return w - rate * (of_m * m + of_g * g) / (xp.sqrt(of_v * v) + self.epsilon)

    def _factors(self, t: int) -> tuple[float, float, float]:
        """Compute the factors of momentum, gradient and velocity in update ``t``."""

        def momentum(i: int) -> float:
            return self.beta_1 * (1 - 0.5 * 0.96**i)

        def product(i: int) -> float:
            products = _warm_up()
            return float(self.beta_1**i * products[min(i, len(products)) - 1])

        return (
            momentum(t + 1) / (1 - product(t + 1)),
            (1 - momentum(t)) / (1 - product(t)),
            1 / (1 - self.beta_2**t),
        )
