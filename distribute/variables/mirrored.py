"""Variables with a copy on every local device.

``MirroredVariable`` keeps the copies equal when it is written (ON_WRITE); ``SyncOnReadVariable``
lets each replica write its own and makes one value of them when it is read (ON_READ): metrics,
batch statistics. What each may do in which context is TensorFlow's table; tests go through all of
it.
"""

from collections.abc import Sequence
from typing import Any

from ...core.arrays.any_framework import as_array, beside, together
from ...core.arrays.indexed_slices import IndexedSlices
from ..base.contexts import require_own, update_component
from ..base.interface import StrategyInterface
from ..base.reductions import ReduceOp, VariableAggregation
from ..base.values import DistributedValues, Mirrored, on_every_replica
from .aggregating import AggregatedVariable
from .conversions import in_dtype, row_numbers
from .local import LocalVariable
from .scatter import Scatter
from .spec import VariableSpec
from .variable import Variable

_NONE = VariableAggregation.NONE
_SUM = VariableAggregation.SUM
_FIRST = VariableAggregation.ONLY_FIRST_REPLICA


class DistributedVariable(Variable, DistributedValues):
    """A variable that is one component per local device; ``values`` are those."""

    def __init__(
        self,
        spec: VariableSpec,
        name: str,
        strategy: StrategyInterface,
        components: Sequence[LocalVariable],
    ) -> None:
        DistributedValues.__init__(self, components)
        self._set_up(spec, name, strategy)
        for component in components:
            component.container = self

    @property
    def values(self) -> tuple[LocalVariable, ...]:
        """The components, one per local device."""
        return self._values

    @property
    def device(self) -> str:
        """Device of the first component."""
        return self.values[0].device

    def _here(self) -> LocalVariable:
        """Find the component of this replica or update; outside of both, the first one."""
        component = update_component()
        if component is not None:
            return self.values[component]
        replica = self._own_replica()
        return self.values[replica.local_id if replica is not None else 0]

    def __repr__(self) -> str:
        kind = type(self).__name__
        copies = ", ".join(copy._shown_value() for copy in self.values)
        return (
            f"<{kind} {self.name!r} shape={self.shape} dtype={self.dtype.name} copies=[{copies}]>"
        )


class MirroredVariable(AggregatedVariable, DistributedVariable):
    """Equal copies: every write goes to all of them."""

    def read_value(self) -> Any:
        """Read this replica's copy; in cross-replica context the first one."""
        return self._here().read_value()

    def sparse_read(self, indices: Any) -> Any:
        """Read rows of this replica's copy."""
        return self._here().sparse_read(indices)

    def _write_all(self, method: str, value: Any) -> None:
        self._strategy.extended.note_write()
        parts = on_every_replica(value, len(self.values)).values
        for component, part in zip(self.values, parts, strict=True):
            getattr(component, method)(part)

    def _write_each(self, method: str, value: Any) -> None:
        self._write_all(method, value)  # as in TensorFlow: each copy its own

    def _write_component(self, component: int, method: str, value: Any) -> None:
        self._strategy.extended.note_write()
        getattr(self.values[component], method)(value)


class SyncOnReadVariable(DistributedVariable):
    """Copies of their own, made one value when they are read in cross-replica context."""

    def _is_one_copy(self) -> bool:
        """Return whether this thread works on one copy: in a replica, or in an update."""
        return update_component() is not None or self._own_replica() is not None

    def read_value(self) -> Any:
        """Read this replica's copy; in cross-replica context the aggregate of all.

        Raises:
            ValueError: In cross-replica context, without an aggregation.
        """
        if self._is_one_copy():
            return self._here().read_value()
        self._require_aggregation("read")
        parts = DistributedValues([component.read_value() for component in self.values])
        extended = self._strategy.extended
        if self.aggregation is _FIRST:
            return extended.of_first_replica(parts)
        return extended.reduce_to(ReduceOp[self.aggregation.name], parts, self.values[0])

    def sparse_read(self, indices: Any) -> Any:
        """Read rows of :meth:`read_value`."""
        if self._is_one_copy():
            return self._here().sparse_read(indices)
        return self[row_numbers(indices, self.shape, self.name)]

    def assign(self, value: Any) -> "SyncOnReadVariable":
        """Assign this replica's copy in replica context; otherwise all, so that reading gives
        ``value``.
        """
        require_own(self._strategy, repr(self.name))
        if self._is_one_copy():
            self._here().assign(value)
            return self
        self._require_aggregation("assign")
        if isinstance(value, Mirrored):
            value = value.values[0]  # one value, as any other
        if isinstance(value, DistributedValues) and not isinstance(value, Variable):
            for component, part in zip(self.values, value.values, strict=True):
                component.assign(part)
            return self
        array = self._given(value)
        with beside(array):
            shares = self.shares(array) if self.aggregation is _SUM else [array] * len(self.values)
        for component, share in zip(self.values, shares, strict=True):
            component.assign(share)
        return self

    def shares(self, value: Any) -> list[Any]:
        """Divide a sum among the copies; the first replicas get the remainder of integers."""
        count = self._strategy.extended.num_replicas_in_sync
        if self.dtype.kind not in "iu":
            return [as_array(value / count).astype(self.dtype)] * len(self.values)
        whole = in_dtype(value, self.dtype, self.name)
        base, rest = whole // count, whole % count
        first = self._strategy.extended.first_replica
        return [
            as_array(base + (first + i < rest)).astype(self.dtype) for i in range(len(self.values))
        ]

    def assign_add(self, delta: Any) -> "SyncOnReadVariable":
        """Add to this replica's copy in replica context; otherwise to the value read.

        Raises:
            ValueError: In cross-replica context, of a variable that is summed: each replica would
                add it.
        """
        return self._assign_changed(delta, 1)

    def assign_sub(self, delta: Any) -> "SyncOnReadVariable":
        """Subtract as :meth:`assign_add` adds."""
        return self._assign_changed(delta, -1)

    def add_here(self, delta: Any) -> None:
        """Add to one copy, so that a sum counts it once: outside of replicas to the first one."""
        require_own(self._strategy, repr(self.name))
        self._here().assign_add(self._given(delta))

    def _assign_changed(self, delta: Any, sign: int) -> "SyncOnReadVariable":
        require_own(self._strategy, repr(self.name))
        operand = self._given(delta)
        if self._is_one_copy():
            here = self._here()
            here.assign_add(operand) if sign > 0 else here.assign_sub(operand)
            return self
        method = "assign_add" if sign > 0 else "assign_sub"
        self._require_aggregation(method)
        if self.aggregation is _SUM:
            raise ValueError(
                f"SyncOnReadVariable does not support `{method}` in cross-replica context when "
                f"aggregation is set to SUM: {self.name!r}. Read it and assign the result"
            )
        device, (value, change) = together([self.read_value(), operand])
        with device:
            return self.assign(value + change if sign > 0 else value - change)

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> "SyncOnReadVariable":
        """Refuse: scattering is not offered."""
        raise NotImplementedError(
            f"scatter_{kind} is not supported for ON_READ variables: {self.name!r}"
        )

    def _require_aggregation(self, doing: str) -> None:
        if self.aggregation is _NONE:
            raise ValueError(
                f"Could not {doing} {self.name!r}: it has synchronization ON_READ and no "
                f"aggregation, so its {len(self.values)} copies do not make one value; create it "
                "with an aggregation, or use it in replica context"
            )


__all__ = ["DistributedVariable", "MirroredVariable", "SyncOnReadVariable"]
