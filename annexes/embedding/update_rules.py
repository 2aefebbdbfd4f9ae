"""Update rules that look at whole rows: they run on growing tables alone.

As data and formula, like those of ``built_in``; ``keyed`` carries them out.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...core.rules.update_rules import Rate, Slots, UpdateRule


class RowwiseAdagrad(UpdateRule):
    """Adagrad with one accumulator per row: ``a += mean(g²); w -= lr * g / (sqrt(a) + epsilon)``.

    As TorchRec's and FBGEMM's ``EXACT_ROWWISE_ADAGRAD``, whose epsilon stands outside the root.
    """

    slots: ClassVar[Slots] = {"accumulator": "initial_accumulator_value"}
    needs_rows: ClassVar[bool] = True

    name: Literal["RowwiseAdagrad"] = "RowwiseAdagrad"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.0, ge=0)
    epsilon: float = Field(default=1e-8, ge=0)

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above, of rows."""
        squares = _row_sums(g * g) * (1 / w.shape[1])
        a = slots["accumulator"] = slots["accumulator"] + squares
        return w - rate / (xp.sqrt(a) + self.epsilon) * g


class GroupFtrl(UpdateRule):
    """FTRL with a group lasso over each row, so that whole rows become zero.

    ``n' = n + g²; z += g - (sqrt(n') - sqrt(n)) / lr * w; s = clip(z, -l1, l1) - z``; with ``G =
    group * sqrt(width)`` the row is ``max(0, 1 - G / |s|) * s / (sqrt(n') / lr + 2*l2 + beta/lr)``.
    Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR Prediction",
    ECML 2021; with ``group = 0`` it is ``Ftrl``.
    """

    slots: ClassVar[Slots] = {"accumulator": "initial_accumulator_value", "linear": 0.0}
    needs_rows: ClassVar[bool] = True
    skips_rate_zero: ClassVar[bool] = True

    name: Literal["GroupFtrl"] = "GroupFtrl"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    l1_regularization_strength: float = Field(default=0.0, ge=0)
    l2_regularization_strength: float = Field(default=0.0, ge=0)
    group_regularization_strength: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.0, ge=0)

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula above, of rows."""
        l1, l2, group = self.strengths(rate, w.shape[1])
        before = slots["accumulator"]
        after = slots["accumulator"] = before + g * g
        z = slots["linear"] = slots["linear"] + (g - (xp.sqrt(after) - xp.sqrt(before)) / rate * w)
        shrunk = xp.clip(z, -l1, l1) - z
        norm = xp.sqrt(_row_sums(shrunk * shrunk))
        stays = norm > group
        keep = xp.where(stays, (norm - group) / xp.where(stays, norm, 1), 0)
        return keep * shrunk / (xp.sqrt(after) / rate + l2)

    def strengths(self, rate: float, width: int) -> tuple[float, float, float]:
        """Return ``l1``, the number that is added to ``sqrt(n') / lr``, and ``G``."""
        l2 = 2 * self.l2_regularization_strength + (self.beta / rate if self.beta else 0.0)
        group = self.group_regularization_strength * math.sqrt(width)
        return self.l1_regularization_strength, l2, group


def _row_sums(values: Any) -> Any:
    """Sum each row, from its first element on, as kernels add up; shape ``(rows, 1)``."""
    return values.cumsum(axis=1)[:, -1:]


RULES: tuple[type[UpdateRule], ...] = (RowwiseAdagrad, GroupFtrl)


def slot_elements(rule: UpdateRule, width: int) -> dict[str, int]:
    """Count the elements of each slot, by name, in a row of ``width`` elements."""
    elements = 1 if isinstance(rule, RowwiseAdagrad) else width
    return dict.fromkeys(rule.active_slots(), elements)
