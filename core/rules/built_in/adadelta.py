"""Adadelta: steps in the unit of the variable, by averages of gradients and of steps."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..counterparts import Counterparts, Hyperparameters, OnServer, Place, torch_place
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


@kernel(scalars=6, slots=2)
def adadelta(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Update by Adadelta: accumulated gradient s0 and step s1."""
    scale, limit, lr = h[0], h[1], h[2]
    rho, rest, eps = h[3], h[4], h[5]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            a = rho * s0[lo + i] + rest * x * x
            d = x * np.sqrt(s1[lo + i] + eps) / np.sqrt(a + eps)
            s0[lo + i] = a
            s1[lo + i] = rho * s1[lo + i] + rest * d * d
            w[lo + i] -= lr * d


def _of_torch(group: Hyperparameters) -> Place:
    fields = {"rho": float(group["rho"]), "epsilon": float(group["eps"])}
    return torch_place("Adadelta", group, **fields)


def _of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    arguments = hyper["scale_by_adadelta"]
    return OnServer("Adadelta", {"rho": arguments["rho"], "epsilon": arguments["eps"]})


class Adadelta(UpdateRule):
    """``a = rho*a + (1-rho)*g²; d = g * sqrt(s + epsilon) / sqrt(a + epsilon); w -= lr * d``.

    Then ``s = rho*s + (1-rho)*d²``. As Keras, optax and PyTorch. Zeiler, arXiv:1212.5701, whose
    rate is 1.
    """

    slots: ClassVar[Slots] = {"accumulated_gradient": 0.0, "accumulated_delta": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (adadelta,)
    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"Adadelta": _of_torch}, optax={("scale_by_adadelta", "rate"): _of_optax}
    )

    name: Literal["Adadelta"] = "Adadelta"
    learning_rate: Rate = 0.001
    rho: float = Field(default=0.95, ge=0, le=1)
    epsilon: float = Field(default=1e-7, ge=0)

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        return rate, self.rho, 1 - self.rho, self.epsilon

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        rho, s = self.rho, slots["accumulated_delta"]
        a = slots["accumulated_gradient"] = rho * slots["accumulated_gradient"] + (1 - rho) * g * g
        d = g * xp.sqrt(s + self.epsilon) / xp.sqrt(a + self.epsilon)
        slots["accumulated_delta"] = rho * s + (1 - rho) * d * d
        return w - rate * d
