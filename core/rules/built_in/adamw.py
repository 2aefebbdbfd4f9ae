"""AdamW: Adam with decoupled weight decay."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..counterparts import Counterparts
from .adam import CorrectedAdam, adam_of_optax, adam_of_torch


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

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above."""
        return super().array_update(xp, w - rate * self.weight_decay * w, slots, g, rate, t)
