"""A variable whose shards live on parameter servers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import Array
from ..core.steps import Operation
from .context import get_replica_context
from .reduce_op import ReduceOp, VariableAggregation
from .values import DistributedValues
from .variable import Variable, VariableSpec, row_numbers

if TYPE_CHECKING:
    from .parameter_server import ParameterServerExtended
    from .strategy import Strategy


class PsVariable(Variable):
    """See :class:`~windlass.distribute.variable.Variable`.

    In ``run``, reads give the value of the step's pull, and do not change until the next step. Assignments go
    to the servers at once; with several replicas they are aggregated over them first.
    """

    def __init__(
        self,
        spec: VariableSpec,
        name: str,
        strategy: "Strategy",
        extended: "ParameterServerExtended",
    ) -> None:
        self._set_up(spec, name, strategy)
        self._extended = extended

    def read_value(self) -> Array:
        """In ``run``: as of the step's pull. Outside: as it is now."""
        return self._extended.read(self)

    def sparse_read(self, indices: Any) -> Array:
        """Rows by number, in order; only these travel, and only from the ps that hold them."""
        return self._extended.read_rows(self, row_numbers(indices, self.shape, self.name))

    def assign(self, value: Any) -> "PsVariable":
        """Overwrite the value on the servers."""
        self._write(Operation.ASSIGN, value)
        return self

    def assign_add(self, delta: Any) -> "PsVariable":
        """Add to the value on the servers."""
        self._write(Operation.ASSIGN_ADD, delta)
        return self

    def _write(self, operation: Operation, value: Any) -> None:
        value = value if isinstance(value, DistributedValues) else self._given(value)
        context = get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._extended.write(self, operation, np.asarray(value))
            return
        if self.aggregation is VariableAggregation.NONE:
            raise ValueError(
                f"You must specify an aggregation method to update variable {self.name!r} from "
                f"{context.num_replicas_in_sync} replicas: create it with "
                "aggregation=wl.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA (for counters)"
            )
        context.merge_call(self._merged_write, (operation, value))

    def _merged_write(self, strategy: "Strategy", operation: Operation, value: Any) -> None:
        if isinstance(value, DistributedValues):
            if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
                value = value.values[0]
            else:
                value = strategy.reduce(ReduceOp[self.aggregation.name], value, axis=None)
        elif self.aggregation is VariableAggregation.SUM:
            # The very same object from every replica: a sum counts it once for each.
            value = np.asarray(value) * strategy.num_replicas_in_sync
        self._extended.write(self, operation, np.asarray(value))
