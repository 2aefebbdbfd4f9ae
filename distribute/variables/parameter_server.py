"""A variable whose shards live on parameter servers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arrays import Array
from ...core.indexed_slices import IndexedSlices
from ...core.steps import Operation
from ..base.arrays import to_host
from ..base.values import DistributedValues
from .aggregating import AggregatedVariable
from .variable import Scatter, VariableSpec, in_dtype, row_numbers

if TYPE_CHECKING:
    from ..strategies.parameter_server import ParameterServerExtended
    from ..strategies.strategy import Strategy


def ps_device(ps: int) -> str:
    """The device of a parameter server, as TensorFlow names it."""
    return f"/job:ps/replica:0/task:{ps}/device:CPU:0"


class PsVariable(AggregatedVariable):
    """See :class:`~windlass.distribute.variables.variable.Variable`.

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
        self.first_value = spec.initial  # until the servers have it
        self._extended = extended

    @property
    def device(self) -> str:
        """The ps that holds it, or its first shard."""
        return ps_device(self._extended.shards_of(self)[0][0])

    def read_value(self) -> Array:
        """In ``run``: as of the step's pull. Outside: as it is now."""
        return self._extended.read(self)

    def sparse_read(self, indices: Any) -> Array:
        """Rows by number, in order; only these travel, and only from the ps that hold them."""
        return self._extended.read_rows(self, row_numbers(indices, self.shape, self.name))

    def _write_all(self, method: str, value: Any) -> None:
        if isinstance(value, DistributedValues):
            value = value.values[0]
        if isinstance(value, IndexedSlices):
            self._scatter(method.removeprefix("scatter_"), value)
            return
        given = in_dtype(to_host(value), self.dtype, self.name)
        if method == "assign_sub":
            method, given = "assign_add", -given
        self._extended.write(self, _OPERATIONS[method], given)

    def _scatter(self, kind: str, delta: IndexedSlices) -> None:
        given = in_dtype(delta.values, self.dtype, self.name)
        if kind == Scatter.UPDATE:
            # Of repeated rows the last counts; a push adds them up.
            rows, last = np.unique(delta.indices[::-1], return_index=True)
            values = given[::-1][last]
            self._extended.write(self, Operation.ASSIGN, IndexedSlices(values, rows))
        elif kind in (Scatter.ADD, Scatter.SUB):
            values = given if kind == Scatter.ADD else -given
            self._extended.write(self, Operation.ASSIGN_ADD, IndexedSlices(values, delta.indices))
        else:
            raise NotImplementedError(
                f"scatter_{kind} of {self.name!r}: a ps adds to rows or overwrites them, so that a push "
                "means the "
                "same whichever comes first; use scatter_add, scatter_sub or scatter_update"
            )


_OPERATIONS = {"assign": Operation.ASSIGN, "assign_add": Operation.ASSIGN_ADD}
