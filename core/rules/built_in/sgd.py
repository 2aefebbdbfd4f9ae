"""Stochastic gradient descent, with momentum, and Lion, which takes the sign of its step."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..update_rules import (
    AHEAD,
    Counterparts,
    Hyperparameters,
    OnServer,
    OnWorker,
    Place,
    Rate,
    Slots,
    UpdateFunction,
    UpdateRule,
    clip,
    kernel,
    prefetch_row,
    torch_place,
)


@kernel(scalars=3, slots=0)
def sgd(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Do ``w -= lr * g``."""
    scale, limit, lr = h[0], h[1], h[2]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
        lo = rows[r] * width
        wr, gr = w[lo : lo + width], g[r * width : (r + 1) * width]
        for i in range(width):
            wr[i] -= lr * clip(gr[i] * scale, limit)


@kernel(scalars=6, slots=1)
def momentum(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Do ``m = mu*m - lr*g; w += out*m``, or ``w += out * (mu*m - lr*g)`` if ``h[4]`` (Nesterov).

    h[3]: mu. h[5]: out; one of ``lr`` and ``out`` is 1.
    """
    scale, limit, lr, mu, nesterov, out = h[0], h[1], h[2], h[3], h[4], h[5]
    for r in range(rows.size):
        if r + AHEAD < rows.size:
            ahead = rows[r + AHEAD] * width
            prefetch_row(w, ahead, width)
            prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        if nesterov > 0:
            for i in range(np.uint64(width)):
                step = lr * clip(g[at + i] * scale, limit)
                m = mu * s0[lo + i] - step
                s0[lo + i] = m
                w[lo + i] += out * (mu * m - step)
        else:
            for i in range(np.uint64(width)):
                m = mu * s0[lo + i] - lr * clip(g[at + i] * scale, limit)
                s0[lo + i] = m
                w[lo + i] += out * m


def _sgd_of_torch(group: Hyperparameters) -> Place:
    if group["dampening"]:
        return OnWorker(f"dampens its momentum (dampening={group['dampening']})")
    return torch_place(
        "SGD",
        group,
        momentum=float(group["momentum"]),
        nesterov=bool(group["nesterov"]),
        rate_in_velocity=False,
    )


def _sgd_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    trace = hyper.get("trace", {"decay": 0.0, "nesterov": False})
    if trace.get("accumulator_dtype") is not None:
        return OnWorker("keeps its velocity in another dtype")
    arguments = {"momentum": float(trace["decay"]), "nesterov": bool(trace["nesterov"])}
    return OnServer("SGD", arguments | {"rate_in_velocity": False})


class SGD(UpdateRule):
    """``w -= lr * g``; with momentum ``m = momentum * m - lr * g; w += m``.

    Nesterov: ``w += momentum * m - lr * g``. As Keras. PyTorch and optax keep the velocity without
    the rate, which differs once the rate changes; so does this rule with
    ``rate_in_velocity=False``: ``m = momentum * m - g; w += lr * m`` (Nesterov: ``w += lr *
    (momentum * m - g)``). Sutskever et al., ICML 2013.
    """

    slots: ClassVar[Slots] = {"momentum": 0.0}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = (sgd, momentum)
    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"SGD": _sgd_of_torch},
        optax={("rate",): _sgd_of_optax, ("trace", "rate"): _sgd_of_optax},
    )

    name: Literal["SGD"] = "SGD"
    learning_rate: Rate = 0.01
    momentum: float = Field(default=0.0, ge=0, le=1)
    nesterov: bool = False
    rate_in_velocity: bool = True

    def active_slots(self) -> Slots:
        """Return the slot of momentum only if there is some."""
        return self.slots if self.momentum else {}

    def chosen_kernel(self) -> UpdateFunction:
        """Choose the kernel: the one without momentum is shorter."""
        return momentum if self.momentum else sgd

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return the rates inside and outside of the velocity; the one that is not the rate is
        1.
        """
        inside, outside = self._rates(rate)
        return inside, self.momentum, self.nesterov, outside

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        if not self.momentum:
            return w - rate * g
        inside, outside = self._rates(rate)
        m = slots["momentum"] = self.momentum * slots["momentum"] - inside * g
        return w + outside * (self.momentum * m - inside * g if self.nesterov else m)

    def _rates(self, rate: float) -> tuple[float, float]:
        return (rate, 1.0) if self.rate_in_velocity or not self.momentum else (1.0, rate)


# -- Lion: the sign of an interpolated momentum ------------------------------------------------


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


def _lion_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
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
            ("scale_by_lion", "rate"): _lion_of_optax,
            ("scale_by_lion", "add_decayed_weights", "rate"): _lion_of_optax,
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
