"""Update rules that look at whole rows: they run on growing tables alone.

As data, like the rules of ``update_rules.py``; ``engine/keyed/row_rules.py`` carries them out.
"""

from typing import ClassVar, Literal

from pydantic import Field

from .update_rules import Rate, UpdateRule, add_rule


class RowwiseAdagrad(UpdateRule):
    """Adagrad with one accumulator per row: ``a += mean(g²); w -= lr * g / (sqrt(a) + epsilon)``.

    As TorchRec's and FBGEMM's ``EXACT_ROWWISE_ADAGRAD``, whose epsilon stands outside the root.
    """

    slots: ClassVar[dict[str, str | float]] = {"accumulator": "initial_accumulator_value"}

    name: Literal["RowwiseAdagrad"] = "RowwiseAdagrad"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.0, ge=0)
    epsilon: float = Field(default=1e-8, ge=0)


class GroupFtrl(UpdateRule):
    """FTRL with a group lasso over each row, so that whole rows become zero.

    ``n' = n + g²; z += g - (sqrt(n') - sqrt(n)) / lr * w; s = clip(z, -l1, l1) - z``; with ``G =
    group * sqrt(width)`` the row is ``max(0, 1 - G / |s|) * s / (sqrt(n') / lr + 2*l2 + beta/lr)``.
    Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR Prediction",
    ECML 2021; with ``group = 0`` it is ``Ftrl``.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "accumulator": "initial_accumulator_value", "linear": 0.0,
    }  # fmt: skip

    name: Literal["GroupFtrl"] = "GroupFtrl"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    l1_regularization_strength: float = Field(default=0.0, ge=0)
    l2_regularization_strength: float = Field(default=0.0, ge=0)
    group_regularization_strength: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.0, ge=0)


ROW_RULES = (RowwiseAdagrad, GroupFtrl)
for _kind in ROW_RULES:
    add_rule(_kind)  # by its name, where a definition or a checkpoint has it


def slot_elements(rule: UpdateRule, width: int) -> dict[str, int]:
    """Slot name -> elements that it has in a row of ``width`` elements."""
    elements = 1 if isinstance(rule, RowwiseAdagrad) else width
    return dict.fromkeys(rule.active_slots(), elements)
