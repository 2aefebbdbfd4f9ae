"""LAMB: Adam with a rate for each variable, for large batches."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..counterparts import Counterparts, Hyperparameters, OnServer, OnWorker, Place
from .adam import AdamLike, moments_of_optax


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
