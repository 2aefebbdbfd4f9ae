"""A variable in this process's memory: a program's own, or one device's copy of a distributed one.

On the host it is updated by the kernels of a ps; on a GPU by the same formulas in CuPy.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array, beside, to_host
from ...core.arrays.dtypes import Array, is_float
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import DefinitionMismatchError, ShapeMismatchError
from ...core.rules.update_rules import UpdateRule
from ...core.terminal import one_line
from ..base.contexts import get_replica_context
from ..base.devices import HOST, in_task, is_gpu, place
from ..base.interface import StrategyInterface
from ..base.reductions import VariableSynchronization
from ..base.values import DistributedValues
from .conversions import in_dtype, row_numbers
from .memory import GpuMemory, HostMemory, VariableMemory
from .scatter import Scatter, change_rows
from .spec import VariableSpec
from .variable import Variable


@dataclass(frozen=True, slots=True)
class _Restored:
    """Slots of a checkpoint, and the rule that had them."""

    slots: dict[str, Array]
    rule: dict[str, Any] | None


class LocalVariable(Variable):
    """See :class:`~ropewalk.distribute.variables.variable.Variable`. Thread-safe.

    Args:
        spec: Spec that was asked for; its value, if it has one, is copied.
        strategy: Strategy under which it was made.
        device: Device of the value.
        name: Name under which it is known; None: the one asked for.
    """

    def __init__(
        self,
        spec: VariableSpec,
        strategy: StrategyInterface,
        device: str = HOST,
        name: str | None = None,
    ) -> None:
        self._set_up(spec, name or spec.name, strategy)
        self._device = device
        self._lock = threading.Lock()
        self._copy: Any = None
        # Of a checkpoint, until a rule is bound.
        self._restored: _Restored | None = None
        self._container: Callable[[], Variable | None] = lambda: None
        if is_gpu(device):
            self._memory: VariableMemory = GpuMemory(spec, device)
        else:
            self._memory = HostMemory(spec)
        with beside(self._memory.value):
            self._memory.value[...] = place(spec.first_value(), device)

    @property
    def container(self) -> Variable | None:
        """The distributed variable this is a component of, while that one is in use."""
        return self._container()

    @container.setter
    def container(self, variable: Variable) -> None:
        # Weak: in a reference cycle memory stays until the garbage collector runs, which ignores
        # its size.
        self._container = weakref.ref(variable)

    @property
    def device(self) -> str:
        """Device of the value."""
        return in_task(self._strategy.extended.task_name, self._device)

    def read_value(self) -> Any:
        """Read the value, as it is now; later changes do not show in it. Read-only on the host."""
        with self._lock, beside(self._memory.value):
            if self._copy is not None:
                return self._copy
            copy = self._memory.value.copy()
            if isinstance(copy, np.ndarray):
                copy.flags.writeable = False
                # Shared between readers, so read-only; a GPU's arrays cannot be made so.
                self._copy = copy
            return copy

    def _shown_value(self) -> str:
        with self._lock, beside(self._memory.value):
            return one_line(str(self._memory.value))

    def sparse_read(self, indices: Any) -> Any:
        """Read rows by number."""
        numbers = row_numbers(indices, self.shape, self.name)
        with self._lock, beside(self._memory.value):
            # Picking by an array copies; by one without axes it would be a view.
            picked = self._memory.value[numbers.reshape(-1)]
        return picked.reshape((*numbers.shape, *self.shape[1:]))

    def assign(self, value: Any) -> "LocalVariable":
        """Overwrite the value."""
        return self._write(value, add=False)

    def assign_add(self, delta: Any) -> "LocalVariable":
        """Add to the value."""
        return self._write(delta, add=True)

    def _write(self, value: Any, *, add: bool) -> "LocalVariable":
        array = in_dtype(as_array(_own_part(self._not_rows(value))), self.dtype, self.name)
        self._require_shape(array)
        self._note_write()
        with self._lock, beside(self._memory.value):
            self._copy = None
            placed, memory = place(array, self._device), self._memory.value
            if add:
                memory += placed
            else:
                memory[...] = placed
        return self

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> "LocalVariable":
        """Change rows."""
        part = _own_part(delta)
        if not isinstance(part, IndexedSlices):
            raise TypeError(f"scatter_{kind} takes IndexedSlices, got {type(part).__name__}")
        rows = row_numbers(part.indices, self.shape, self.name)
        values = in_dtype(part.values, self.dtype, self.name)
        self._check_rows(values)
        self._note_write()
        with self._lock:
            self._copy = None
            change_rows(kind, self._memory.value, rows, values)
        return self

    def _note_write(self) -> None:
        """Let the strategy know of the change, unless a distributed variable decides on that.

        Metrics, which are ON_READ, are no part of what is trained.
        """
        on_read = self.synchronization is VariableSynchronization.ON_READ
        if not on_read and self._container() is None:
            self._strategy.extended.note_write()

    def slots(self) -> tuple[dict[str, Array], int, dict[str, Any] | None]:
        """Copy the slot variables to the host; returns also the number of updates, and the rule."""
        with self._lock:
            memory, restored = self._memory, self._restored
            if restored is not None:
                return dict(restored.slots), memory.updates, restored.rule
            slots = {name: np.array(to_host(slot)) for name, slot in memory.slots().items()}
            rule = memory.rule
            return slots, memory.updates, rule.model_dump(mode="json") if rule is not None else None

    def restore_slots(
        self, slots: Mapping[str, Array], updates: int, rule: dict[str, Any] | None
    ) -> None:
        """Take slots from a checkpoint: now, or when a rule is bound.

        As on a ps they are of use to a rule of the same name only; others begin with fresh ones.
        """
        with self._lock:
            self._restored = _Restored(dict(slots), rule)
            self._memory.updates = updates
            if self._memory.rule is not None:
                self._bind(self._memory.rule)

    def _bind(self, rule: UpdateRule) -> None:
        memory, restored = self._memory, self._restored
        memory.bind(rule)
        if restored is None:
            return
        self._restored = None
        if restored.rule is None or restored.rule.get("name") != rule.name:
            memory.updates = 0
            return
        for name, slot in memory.slots().items():
            if name in restored.slots:
                with beside(slot):
                    slot[...] = place(restored.slots[name], self._device)

    def check_update(self, gradient: Any, rule: UpdateRule) -> None:
        """Raise what :meth:`apply` would, and change nothing.

        Raises:
            DefinitionMismatchError: Another rule updates the variable.
            ShapeMismatchError: It is not of a float dtype.
            ValueError: The gradient has another shape.
        """
        if not is_float(self.dtype):
            raise ShapeMismatchError(
                f"{self.name!r} is {self.dtype.name}; update rules need a float dtype. Use assign "
                "or assign_add, or trainable=False",
                variable=self.name,
            )
        bound = self._memory.rule
        if bound is not None and bound is not rule and bound != rule:
            # As on a ps: another rule would begin with empty slots, without a word.
            raise DefinitionMismatchError(
                f"{self.name!r} is updated by {bound!r}; it cannot be updated by {rule!r} as well",
                variable=self.name,
            )
        if isinstance(gradient, IndexedSlices):
            row_numbers(gradient.indices, self.shape, self.name)
            self._check_rows(gradient.values)
        elif np.shape(gradient) != self.shape:
            raise ValueError(
                f"{self.name!r} has shape {self.shape}, the gradient has {np.shape(gradient)}"
            )

    @property
    def updates(self) -> int:
        """Number of times that its update rule was applied."""
        return self._memory.updates

    def apply(
        self,
        gradient: Any,
        rule: UpdateRule,
        *,
        gradient_scale: float = 1.0,
        changed: UpdateRule | None = None,
        step: int | None = None,
    ) -> None:
        """Run an update rule.

        Args:
            gradient: Array of the variable's shape, or IndexedSlices.
            rule: Rule that the variable is bound to.
            gradient_scale: Multiplies the gradient.
            changed: The rule with other hyperparameters, for this update; None: as bound.
            step: Updates of the optimizer before this one; None: those of the variable.

        Raises:
            DefinitionMismatchError: Another rule updates the variable.
            ShapeMismatchError: It is not of a float dtype.
            ValueError: The gradient has another shape.
        """
        with self._lock:
            # Before anything is changed, and because kernels trust it: they would read beyond rows
            # too short.
            self.check_update(gradient, rule)
            memory = self._memory
            if memory.rule is None:
                self._bind(rule)
            self._copy = None
            chosen, before = changed or rule, memory.updates if step is None else step
            if isinstance(gradient, IndexedSlices):
                rows = gradient.combined()
                memory.apply(rows.values, rows.indices, gradient_scale, chosen, before)
            else:
                dense = place(gradient, self._device)
                memory.apply(dense, None, gradient_scale, chosen, before)

    def _check_rows(self, values: Any) -> None:
        if values.shape[1:] != self.shape[1:]:
            raise ValueError(
                f"rows of {self.name!r} have shape {self.shape[1:]}, the given ones "
                f"{values.shape[1:]}"
            )


def _own_part(value: Any) -> Any:
    """Take the current replica's part of a distributed value that is written to a component
    directly.
    """
    if not isinstance(value, DistributedValues) or isinstance(value, Variable):
        return value
    context = get_replica_context()
    return value.values[context.local_id if context is not None else 0]
