"""Adam, and the rules that are made after it: AdamW, Adamax, Nadam and LAMB."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
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
    torch_moments,
    torch_place,
)


@kernel(scalars=9, slots=2)
def adam(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Do ``w -= decay*w`` first (AdamW), then ``w -= alpha * m / (sqrt(v) + eps)``.

    h[2]: alpha, the rate with both bias corrections. h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 -
    b2. h[7]: eps. h[8]: rate times weight decay.
    """
    scale, limit, alpha = h[0], h[1], h[2]
    b1, c1, b2, c2, eps, decay = h[3], h[4], h[5], h[6], h[7], h[8]
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
            old = w[lo + i]
            w[lo + i] = old - decay * old - alpha * m / (np.sqrt(v) + eps)


class AdamLike(UpdateRule):
    """The fields that Adam shares with rules made after it, and the averages that they keep.

    ``t``, by which biases are corrected, counts the updates of each variable, as PyTorch does. With
    ``by_iterations=True`` it is ``optimizer.iterations`` with this step, as in Keras and
    TensorFlow: on servers the global step. Where all variables are updated in every step both are
    the same, and the same as optax, which counts the updates of the whole tree.
    """

    slots: ClassVar[Slots] = {"momentum": 0.0, "velocity": 0.0}
    counts_updates: ClassVar[bool] = True

    learning_rate: Rate = 0.001
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, ge=0)
    by_iterations: bool = False

    @property
    def goes_by_step(self) -> bool:
        """Whether the correction goes by the global step, as the program has chosen."""
        return self.by_iterations

    def next_moments(self, slots: dict[str, Any], g: Any) -> tuple[Any, Any]:
        """Compute the moving averages of the gradient and of its square, with this one in them."""
        m = slots["momentum"] = self.beta_1 * slots["momentum"] + (1 - self.beta_1) * g
        v = slots["velocity"] = self.beta_2 * slots["velocity"] + (1 - self.beta_2) * g * g
        return m, v


class CorrectedAdam(AdamLike):
    """The part that Adam and AdamW share: the step, and where its correction counts."""

    kernels: ClassVar[tuple[UpdateFunction, ...]] = (adam,)

    corrected_epsilon: bool = False
    float32_correction: bool = False

    def corrections(self, rate: float, t: int) -> tuple[float, float]:
        """Compute the rate of update ``t``, and what is added to the root of the uncorrected
        velocity.
        """
        first, second = (self._one_minus_power(beta, t) for beta in (self.beta_1, self.beta_2))
        root = math.sqrt(second)
        return rate * root / first, self.epsilon * (root if self.corrected_epsilon else 1.0)

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, without weight decay."""
        alpha, epsilon = self.corrections(rate, t)
        b1, b2 = self.beta_1, self.beta_2
        return alpha, b1, 1 - b1, b2, 1 - b2, epsilon, 0.0

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute Adam's formula."""
        return self.corrected(xp, w, slots, g, rate, *self.corrections(rate, t))

    def corrected(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: Any, alpha: Any, epsilon: Any
    ) -> Any:
        """Compute the formula with corrections, which may be others for each row."""
        m, v = self.next_moments(slots, g)
        return w - alpha * m / (xp.sqrt(v) + epsilon)

    def _one_minus_power(self, beta: float, t: int) -> float:
        if not self.float32_correction:
            return 1 - beta**t
        return float(np.float32(1) - np.float32(beta) ** np.float32(t))


def adam_of_torch(group: Hyperparameters) -> Place:
    """Choose where ``Adam`` and ``AdamW`` of PyTorch run."""
    if group["amsgrad"]:
        return OnWorker("keeps the maximum of its velocities (amsgrad)")
    arguments = torch_moments(group) | {"corrected_epsilon": True}
    if not group.get("decoupled_weight_decay"):
        return torch_place("Adam", group, **arguments)
    more = {"learning_rate": float(group["lr"]), "weight_decay": float(group["weight_decay"])}
    return OnServer("AdamW", more | arguments)


def moments_of_optax(hyper: Mapping[str, Hyperparameters]) -> dict[str, Any] | OnWorker:
    """Translate the arguments of ``scale_by_adam`` in a chain of optax into fields of a rule."""
    moments = hyper["scale_by_adam"]
    if moments["eps_root"] or moments["nesterov"] or moments["mu_dtype"] is not None:
        return OnWorker("is an Adam with eps_root, nesterov or mu_dtype")
    return {"beta_1": moments["b1"], "beta_2": moments["b2"], "epsilon": moments["eps"]}


def adam_of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    """Choose where a chain of optax with Adam's step runs, and with weight decay after it."""
    arguments = moments_of_optax(hyper)
    if isinstance(arguments, OnWorker):
        return arguments
    arguments |= {"corrected_epsilon": True, "float32_correction": True}
    if "add_decayed_weights" not in hyper:
        return OnServer("Adam", arguments)
    decay = {"weight_decay": hyper["add_decayed_weights"]["weight_decay"]}
    return OnServer("AdamW", arguments | decay)


class Adam(CorrectedAdam):
    """``m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g²; w -= a * m / (sqrt(v) + epsilon)``.

    ``a = lr * sqrt(1 - b2^t) / (1 - b1^t)``, as Keras: epsilon is added to the root of the
    uncorrected ``v``; optax and PyTorch add it after the correction, as this rule does with
    ``corrected_epsilon=True``: then it stands for ``epsilon * sqrt(1 - b2^t)``. Kingma and Ba, ICLR
    2015. Sparse gradients touch only their rows ("lazy"); ``t`` still counts steps of the variable.

    With ``float32_correction=True`` ``1 - b^t`` is computed in float32, as optax does: for ``b2 =
    0.999`` that differs by 2e-5 in the first steps.
    """

    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={
            "Adam": adam_of_torch,
            "SparseAdam": lambda group: torch_place("Adam", group, **torch_moments(group)),
        },
        optax={("scale_by_adam", "rate"): adam_of_optax},
        keras=lambda config: "AdamW" if config.get("weight_decay") else "Adam",
    )

    name: Literal["Adam"] = "Adam"


# -- AdamW: Adam with decoupled weight decay ---------------------------------------------------


class AdamW(CorrectedAdam):
    """Adam with decoupled decay: first ``w -= lr * weight_decay * w``, then Adam's step.

    Loshchilov and Hutter, ICLR 2019. As Keras; ``corrected_epsilon`` and ``float32_correction`` as
    Adam's.
    """

    counterparts: ClassVar[Counterparts] = Counterparts(
        torch={"AdamW": lambda group: adam_of_torch({**group, "decoupled_weight_decay": True})},
        optax={("scale_by_adam", "add_decayed_weights", "rate"): adam_of_optax},
    )

    name: Literal["AdamW"] = "AdamW"
    weight_decay: float = Field(default=0.004, ge=0)

    def scalars(self, rate: float, t: int) -> Sequence[float]:
        """Return what the kernel reads, as its docstring says."""
        return *super().scalars(rate, t)[:-1], rate * self.weight_decay

    def corrected(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: Any, alpha: Any, epsilon: Any
    ) -> Any:
        """Compute the formula above."""
        w = w - rate * self.weight_decay * w
        return super().corrected(xp, w, slots, g, rate, alpha, epsilon)


# -- Adamax: Adam with the maximum norm --------------------------------------------------------


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


# -- Nadam: Adam with Nesterov's momentum ------------------------------------------------------


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
def _momentum_products() -> list[float]:
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
            products = _momentum_products()
            return float(self.beta_1**i * products[min(i, len(products)) - 1])

        return (
            momentum(t + 1) / (1 - product(t + 1)),
            (1 - momentum(t)) / (1 - product(t)),
            1 / (1 - self.beta_2**t),
        )


# -- LAMB: Adam with a rate for each variable, for large batches -------------------------------


def _of_optax(hyper: Mapping[str, Hyperparameters]) -> Place:
    arguments, ratio = moments_of_optax(hyper), hyper["scale_by_trust_ratio"]
    if isinstance(arguments, OnWorker):
        return arguments
    if ratio["min_norm"] or ratio["eps"] or ratio["trust_coefficient"] != 1:
        return OnWorker("is a LAMB with a trust coefficient, a least norm or an epsilon")
    decay = hyper.get("add_decayed_weights", {}).get("weight_decay", 0.0)
    return OnServer("Lamb", arguments | {"weight_decay": decay})


def _of_keras(config: Hyperparameters) -> str | OnWorker:
    if config.get("weight_decay"):
        return OnWorker("decays weights beside its ratio, the rule within")
    return "Lamb"


class Lamb(AdamLike):
    """LAMB: Adam's step with a rate for each variable: its norm over that of the step.

    ``d = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay * w``, ``w -= lr * |w| /
    |d| * d``; a norm of zero makes the ratio 1. As the paper and optax; Keras without the decay. Of
    a variable that is cut into shards each shard has a ratio of its own, and of a sparse gradient
    the norms are those of its rows. You et al., "Large Batch Optimization for Deep Learning", ICLR
    2020.
    """

    counterparts: ClassVar[Counterparts] = Counterparts(
        optax={
            ("scale_by_adam", "scale_by_trust_ratio", "rate"): _of_optax,
            ("scale_by_adam", "add_decayed_weights", "scale_by_trust_ratio", "rate"): _of_optax,
        },
        keras=_of_keras,
    )

    name: Literal["Lamb"] = "Lamb"
    weight_decay: float = Field(default=0.0, ge=0)

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        m, v = self.next_moments(slots, g)
        d = m / (1 - self.beta_1**t) / (xp.sqrt(v / (1 - self.beta_2**t)) + self.epsilon)
        if self.weight_decay:
            d = d + self.weight_decay * w
        of_w, of_d = xp.sqrt(xp.sum(w * w)), xp.sqrt(xp.sum(d * d))
        usable = (of_w > 0) & (of_d > 0)
        return w - rate * xp.where(usable, of_w / xp.where(usable, of_d, 1), 1) * d
