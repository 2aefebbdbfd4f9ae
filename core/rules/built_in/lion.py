"""Lion: the sign of an interpolated momentum."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..counterparts import Counterparts, Hyperparameters, OnServer, OnWorker, Place
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


@kernel(scalars=8, slots=1)
def lion(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Update by Lion. h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2. h[7]: rate times weight
    decay.
    """
    scale, limit, lr = h[0], h[1], h[2]
    b1, c1, b2, c2, decay = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            m, old = s0[lo + i], w[lo + i]
            s0[lo + i] = b2 * m + c2 * x
            w[lo + i] = old - decay * old - lr * np.sign(b1 * m + c1 * x)


def _of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    arguments = hyper["scale_by_lion"]
    if arguments["mu_dtype"] is not None or arguments.get("mode", "hard") != "hard":
        return OnWorker("is a Lion of another mode, or one with its momentum in another dtype")
    decay = hyper.get("add_decayed_weights", {}).get("weight_decay", 0.0)
    return OnServer(
        "Lion", {"beta_1": arguments["b1"], "beta_2": arguments["b2"], "weight_decay": decay}
    )


class Lion(UpdateRule):
    """``w -= lr * weight_decay * w; w -= lr * sign(b1*m + (1-b1)*g); m = b2*m + (1-b2)*g``.

    As Keras and optax. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    """

    slots: ClassVar[Slots] = {"momentum": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (lion,)
    counterparts: ClassVar[Counterparts] = Counterparts(
        optax={
            ("scale_by_lion", "rate"): _of_optax,
            ("scale_by_lion", "add_decayed_weights", "rate"): _of_optax,
        }
    )

    name: Literal["Lion"] = "Lion"
    learning_rate: Rate = 0.001
    beta_1: float = Field(default=0.9, ge=0, le=1)
    beta_2: float = Field(default=0.99, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        b1, b2 = self.beta_1, self.beta_2
        return rate, b1, 1 - b1, b2, 1 - b2, rate * self.weight_decay

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        m = slots["momentum"]
        slots["momentum"] = self.beta_2 * m + (1 - self.beta_2) * g
        direction = xp.sign(self.beta_1 * m + (1 - self.beta_1) * g)
        return w - rate * self.weight_decay * w - rate * direction
