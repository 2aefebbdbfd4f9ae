"""Memory of a variable's value and slots: on the host, in a block like a ps's, or on a GPU.

On a GPU the formulas are those of the update rules (``core/rules/built_in``), in array operations.
"""

from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ...core.arrays.dtypes import Array, is_float
from ...core.process.accelerators import load_cupy
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import Incarnation, TaskId
from ...engine.update_kernel import apply_formula
from ..base.devices import on_device
from .spec import VariableSpec

_NOBODY = Incarnation(TaskId("worker", 0), 1)


class VariableMemory(Protocol):
    """Memory of a value and its slots."""

    updates: int

    @property
    def rule(self) -> UpdateRule | None:
        """The rule that updates it."""

    @property
    def value(self) -> Any:
        """The array itself."""

    def apply(
        self, gradient: Any, rows: Array | None, scale: float, rule: UpdateRule, step: int
    ) -> None:
        """Run the bound rule, with these hyperparameters, on the whole or rows that occur once.

        Args:
            gradient: Gradient of the whole, or of these rows.
            rows: Row numbers; None: the whole.
            scale: Multiplies the gradient.
            rule: The rule, for this update.
            step: Updates before this one, which count from now on.
        """

    def bind(self, rule: UpdateRule) -> None:
        """Take a rule, with fresh slots."""

    def slots(self) -> dict[str, Any]:
        """Return the slot arrays by name."""


class HostMemory:
    """A block of one variable, as on a ps.

    Args:
        spec: Shape and dtype of the variable.
    """

    def __init__(self, spec: VariableSpec) -> None:
        # Not loaded by a worker of a cluster, whose variables are on the ps.
        from ...engine.block import Block

        self._block = Block([ShardDefinition(spec.definition(spec.name))])
        self.value: Array = self._block.view(0)

    @property
    def updates(self) -> int:
        """Number of times that its rule was applied."""
        return int(self._block.updates[0])

    @updates.setter
    def updates(self, count: int) -> None:
        self._block.updates[0] = count

    @property
    def rule(self) -> UpdateRule | None:
        """The rule that updates it."""
        return self._block.rules[0]

    def bind(self, rule: UpdateRule) -> None:
        """Take a rule, with fresh slots."""
        self._block.bind(0, rule)

    def slots(self) -> dict[str, Any]:
        """Return the slot arrays by name."""
        return {name: self._block.view(0, name) for name in self._block.slots}

    def apply(
        self, gradient: Array, rows: Array | None, scale: float, rule: UpdateRule, step: int
    ) -> None:
        """Run the bound rule; see :class:`VariableMemory`."""
        from ...engine.push_target import Gradient, StepInfo

        info = StepInfo(_NOBODY, step + 1, step, scale)
        values = np.ascontiguousarray(gradient, self.value.dtype).reshape(-1)
        self._block.apply(self._block.range_of(0), Gradient(values, rows), rule, info)
        # FTRL leaves out a step whose rate is zero; a schedule that begins with one has to go on.
        self.updates = info.sequence


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
