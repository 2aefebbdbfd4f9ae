"""RMSprop: a rate for each element, by a moving average of its squared gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..counterparts import Counterparts, Hyperparameters, OnServer, OnWorker, Place
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


@kernel(scalars=8, slots=1, optional={1: 6, 2: 7})
def rmsprop(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Update by RMSprop: velocity s0, momentum s1 (if h[6] > 0), average gradient s2 (if h[7] > 0).

    h[3]: rho, h[4]: 1 - rho, h[5]: eps, h[6]: momentum, h[7]: centred.
    """
    scale, limit, lr = h[0], h[1], h[2]
    rho, rest, eps, mu, centred = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
            if mu > 0:
                prefetch_row(s1, ahead, width)
            if centred > 0:
                prefetch_row(s2, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = clip(g[at + i] * scale, limit)
            spread = rho * s0[lo + i] + rest * x * x
            s0[lo + i] = spread
            if centred > 0:
                average = rho * s2[lo + i] + rest * x
                s2[lo + i] = average
                spread -= average * average
            step = lr * x / np.sqrt(spread + eps)
            if mu > 0:
                step += mu * s1[lo + i]
                s1[lo + i] = step
            w[lo + i] -= step


def _of_torch(group: Hyperparameters) -> Place:
    return OnWorker("adds epsilon outside of the root, the rule inside")


def _of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    rms, trace = hyper["scale_by_rms"], hyper.get("trace", {"decay": 0.0, "nesterov": False})
    if rms["bias_correction"] or not rms["eps_in_sqrt"] or rms["initial_scale"]:
        return OnWorker("is an RMSprop with a bias correction, a start, or epsilon after the root")
    if trace["nesterov"] or trace.get("accumulator_dtype") is not None:
        return OnWorker("is an RMSprop with Nesterov's momentum, or one in another dtype")
    arguments = {"rho": rms["decay"], "epsilon": rms["eps"], "momentum": float(trace["decay"])}
    return OnServer("RMSprop", arguments)


class RMSprop(UpdateRule):
    """``v = rho*v + (1-rho)*g²; w -= lr * g / sqrt(v + epsilon)``, optionally centred, with
    momentum.

    Centred: ``a = rho*a + (1-rho)*g`` and ``v - a²`` in the root. With momentum
    ``m = momentum*m + lr*g/sqrt(…); w -= m``. As Keras. Tieleman and Hinton, 2012.
    """

    slots: ClassVar[Slots] = {"velocity": 0.0, "momentum": 0.0, "average_gradient": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (rmsprop,)
    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"RMSprop": _of_torch},
        optax={("scale_by_rms", "rate"): _of_optax, ("scale_by_rms", "rate", "trace"): _of_optax},
    )

    name: Literal["RMSprop"] = "RMSprop"
    learning_rate: Rate = 0.001
    rho: float = Field(default=0.9, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, le=1)
    epsilon: float = Field(default=1e-7, ge=0)
    centered: bool = False

    def active_slots(self) -> Slots:
        """Return the velocity, and what momentum and centring need."""
        wanted = {
            "velocity": True,
            "momentum": self.momentum > 0,
            "average_gradient": self.centered,
        }
        return {slot: start for slot, start in self.slots.items() if wanted[slot]}

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        return rate, self.rho, 1 - self.rho, self.epsilon, self.momentum, self.centered

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        v = slots["velocity"] = self.rho * slots["velocity"] + (1 - self.rho) * g * g
        if self.centered:
            a = self.rho * slots["average_gradient"] + (1 - self.rho) * g
            slots["average_gradient"] = a
            v = v - a * a
        step = rate * g / xp.sqrt(v + self.epsilon)
        if self.momentum:
            step = slots["momentum"] = self.momentum * slots["momentum"] + step
        return w - step
