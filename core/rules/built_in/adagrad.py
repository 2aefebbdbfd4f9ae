"""Adagrad: a rate for each element, by the sum of its squared gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..counterparts import Counterparts, Hyperparameters, OnServer, OnWorker, Place, torch_place
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


@kernel(scalars=5, slots=1)
def adagrad(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Add ``g*g`` to ``a``, then do ``w -= lr * g / (sqrt(a + inside) + outside)``."""
    scale, limit, lr, inside, outside = h[0], h[1], h[2], h[3], h[4]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            a = s0[lo + i] + x * x
            s0[lo + i] = a
            w[lo + i] -= lr * x / (np.sqrt(a + inside) + outside)


def _of_torch(group: Hyperparameters) -> Place:
    if group["lr_decay"]:
        return OnWorker(f"lowers its rate with the steps of each parameter ({group['lr_decay']=})")
    return torch_place(
        "Adagrad",
        group,
        initial_accumulator_value=float(group["initial_accumulator_value"]),
        epsilon=float(group["eps"]),
        epsilon_in_root=False,
    )


def _of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    rss = hyper["scale_by_rss"]
    start = rss["initial_accumulator_value"]
    return OnServer("Adagrad", {"initial_accumulator_value": start, "epsilon": rss["eps"]})


class Adagrad(UpdateRule):
    """``a += g²; w -= lr * g / sqrt(a + epsilon)``. Duchi et al., JMLR 2011.

    As Keras and optax' ``scale_by_rss``. PyTorch adds epsilon to the root, as this rule does with
    ``epsilon_in_root=False``: ``w -= lr * g / (sqrt(a) + epsilon)``.
    """

    slots: ClassVar[Slots] = {"accumulator": "initial_accumulator_value"}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (adagrad,)
    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"Adagrad": _of_torch}, optax={("scale_by_rss", "rate"): _of_optax}
    )

    name: Literal["Adagrad"] = "Adagrad"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    epsilon: float = Field(default=1e-7, ge=0)
    epsilon_in_root: bool = True

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        return rate, *self._epsilons()

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        a = slots["accumulator"] = slots["accumulator"] + g * g
        inside, outside = self._epsilons()
        return w - rate * g / (xp.sqrt(a + inside) + outside)

    def _epsilons(self) -> tuple[float, float]:
        """Return the numbers that are added inside and outside of the root."""
        return (self.epsilon, 0.0) if self.epsilon_in_root else (0.0, self.epsilon)
