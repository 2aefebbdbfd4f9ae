"""A variable's value and slots in a GPU's memory, and the update rules on it.

The formulas are those of the update rules (``core/rules/built_in``), in array operations.
"""

from types import ModuleType
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array, is_float
from ...core.process.accelerators import load_cupy
from ...core.rules.update_rules import UpdateRule
from ...engine.update_kernel import apply_formula
from ..base.devices import on_device
from .spec import VariableSpec


class GpuMemory:
    """A variable on one GPU.

    Args:
        spec: Shape and dtype of the variable.
        device: The GPU.
    """

    def __init__(self, spec: VariableSpec, device: str) -> None:
        self._device = device
        self._slots: dict[str, Any] = {}
        self.updates = 0
        self.rule: UpdateRule | None = None
        with on_device(device):
            self.value: Any = load_cupy().empty(spec.shape, spec.dtype)

    def bind(self, rule: UpdateRule) -> None:
        """Take a rule, with fresh slots."""
        self.rule = rule
        with on_device(self._device):
            self._slots = start_slots(load_cupy(), rule, self.value)

    def slots(self) -> dict[str, Any]:
        """Return the slot arrays by name."""
        return self._slots

    def apply(
        self, gradient: Any, rows: Array | None, scale: float, rule: UpdateRule, step: int
    ) -> None:
        """Run the bound rule; see ``VariableMemory``."""
        self.updates = step + 1
        with on_device(self._device):
            xp = load_cupy()
            index = ... if rows is None else xp.asarray(rows)
            apply_formula(
                xp, rule, self.value, self._slots, xp.asarray(gradient), index,
                rate=rule.rate(self.updates - 1), updates=self.updates, scale=scale,
            )  # fmt: skip


def start_slots(xp: ModuleType, rule: UpdateRule, value: Any) -> dict[str, Any]:
    """Make the slot arrays of a value, initialised; half-precision values have float32 slots."""
    kind = np.float32 if is_float(value.dtype) and value.dtype.itemsize < 4 else value.dtype
    return {slot: xp.full(value.shape, start, kind) for slot, start in rule.slot_start().items()}
