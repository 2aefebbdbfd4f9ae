"""Rules with a rate for each element by its squared gradients: Adagrad, Adadelta, RMSprop, FTRL."""

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


def _adagrad_of_torch(group: Hyperparameters) -> Place:
    if group["lr_decay"]:
        return OnWorker(f"lowers its rate with the steps of each parameter ({group['lr_decay']=})")
    return torch_place(
        "Adagrad",
        group,
        initial_accumulator_value=float(group["initial_accumulator_value"]),
        epsilon=float(group["eps"]),
        epsilon_in_root=False,
    )


def _adagrad_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
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
        torch={"Adagrad": _adagrad_of_torch}, optax={("scale_by_rss", "rate"): _adagrad_of_optax}
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


# -- Adadelta: steps in the unit of the variable, by averages of gradients and of steps --------


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


def _adadelta_of_torch(group: Hyperparameters) -> Place:
    fields = {"rho": float(group["rho"]), "epsilon": float(group["eps"])}
    return torch_place("Adadelta", group, **fields)


def _adadelta_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
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
        torch={"Adadelta": _adadelta_of_torch},
        optax={("scale_by_adadelta", "rate"): _adadelta_of_optax},
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


# -- RMSprop: a rate for each element, by a moving average of its squared gradients ------------


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


def _rmsprop_of_torch(group: Hyperparameters) -> Place:
    return OnWorker("adds epsilon outside of the root, the rule inside")


def _rmsprop_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
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
        torch={"RMSprop": _rmsprop_of_torch},
        optax={
            ("scale_by_rms", "rate"): _rmsprop_of_optax,
            ("scale_by_rms", "rate", "trace"): _rmsprop_of_optax,
        },
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


# -- FTRL-Proximal: the regularized leader is followed -----------------------------------------


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
