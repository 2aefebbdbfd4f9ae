"""Adam, and what the rules that are made after it share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..counterparts import (
    Counterparts,
    Hyperparameters,
    OnServer,
    OnWorker,
    Place,
    torch_moments,
    torch_place,
)
from ..kernels import AHEAD, UpdateFunction, clip, kernel, prefetch_row
from ..update_rules import Rate, Slots, UpdateRule


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
        alpha, epsilon = self.corrections(rate, t)
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
