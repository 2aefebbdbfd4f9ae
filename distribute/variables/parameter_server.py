"""Variables on parameter servers: whole, or cut into shards on several of them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...cluster.spec import PS
from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ShapeMismatchError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.wire.steps import Operation
from ..base.contexts import top_frame
from ..base.devices import HOST, in_task, task_name
from ..base.interface import StrategyInterface
from ..base.values import DistributedValues
from .aggregating import AggregatedVariable
from .conversions import in_dtype, row_numbers
from .scatter import Scatter
from .sharded import ShardedVariable
from .spec import VariableSpec
from .variable import Variable

OPERATIONS = {"assign": Operation.ASSIGN, "assign_add": Operation.ASSIGN_ADD}
# What a ps does to rows, and what makes one of repeated ones: dividing by two is by their product.
_ROW_OPERATIONS: dict[str, tuple[Operation, np.ufunc]] = {
    Scatter.MUL: (Operation.MULTIPLY, np.multiply),
    Scatter.DIV: (Operation.DIVIDE, np.multiply),
    Scatter.MIN: (Operation.MINIMUM, np.minimum),
    Scatter.MAX: (Operation.MAXIMUM, np.maximum),
}


def ps_device(ps: int) -> str:
    """Name the device of a parameter server, as TensorFlow does."""
    return in_task(task_name(PS, ps), HOST)


class ServerVariables(Protocol):
    """The parameter servers, as the variables of a strategy ask them.

    Attributes:
        assign_in_step: Assigns to the variable of a name a value of its shape and dtype, if this
            thread runs the only replica of a step; False: it was not.
    """

    assign_in_step: Callable[[str, Array], bool]

    def shards_of(self, variable: "PsVariable") -> Sequence[tuple[int, ShardDefinition]]:
        """List the shards in order, as (index of the ps, shard)."""

    def read(self, variable: "PsVariable") -> Array:
        """Read the value: of the step's pull in ``run``, current outside."""

    def read_rows(self, variable: "PsVariable", indices: Array) -> Array:
        """Read rows by number, as they are now; shape ``(*indices.shape, *variable.shape[1:])``."""

    def write(
        self, variable: "PsVariable", operation: Operation, value: Array | IndexedSlices
    ) -> None:
        """Assign or add: in ``run`` with the step's push, outside at once."""


class PsVariable(AggregatedVariable):
    """See :class:`~ropewalk.distribute.variables.variable.Variable`.

    In ``run``, reads give the value of the step's pull, and do not change until the next step but
    by what the step itself assigns. Assignments travel together, with the step's push, and in the
    order of the program; outside of ``run`` each is on the servers when it returns. With several
    replicas they are aggregated over them first.
    """

    def __init__(
        self,
        spec: VariableSpec,
        name: str,
        strategy: StrategyInterface,
        servers: ServerVariables,
    ) -> None:
        self._set_up(spec, name, strategy)
        self.first_value = spec.initial  # until the servers have it
        self._servers = servers

    @property
    def definition(self) -> VariableDefinition:
        """Definition of the variable on the servers."""
        return self._spec.definition(self._name)

    @property
    def device(self) -> str:
        """The ps that holds it, or its first shard."""
        return ps_device(self._servers.shards_of(self)[0][0])

    def read_value(self) -> Array:
        """Read the value: in ``run`` as of the step's pull, outside as it is now. Outside: as it is
        now.
        """
        return self._servers.read(self)

    def sparse_read(self, indices: Any) -> Array:
        """Read rows by number, in order; only these travel, and only from the ps that hold them."""
        return self._servers.read_rows(self, row_numbers(indices, self.shape, self.name))

    def assign(self, value: Any) -> "AggregatedVariable":
        """Overwrite the value."""
        spec = self._spec
        # What most writes are, and a step may have hundreds: there is nothing to convert or to
        # aggregate.
        if (
            type(value) is np.ndarray
            and value.dtype == spec.dtype
            and value.shape == spec.shape
            and self._servers.assign_in_step(self._name, value)
        ):
            return self
        return super().assign(value)

    def _write(self, method: str, value: Any) -> "AggregatedVariable":
        # The same for what is added.
        frame = top_frame()
        if (
            type(value) is not np.ndarray
            or frame is None
            or frame.replica is None
            or frame.strategy is not self._strategy
            or self._strategy.extended.num_replicas_in_sync != 1
        ):
            return super()._write(method, value)
        self._write_all(method, value)
        return self

    def _write_all(self, method: str, value: Any) -> None:
        if type(value) is not np.ndarray:
            if isinstance(value, DistributedValues):
                value = value.values[0]
            if isinstance(value, IndexedSlices):
                self._scatter(method.removeprefix("scatter_"), value)
                return
        array = self.as_sent(method, value)
        if method == "assign_sub":
            method, array = "assign_add", -array
        self._servers.write(self, OPERATIONS[method], array)

    def as_sent(self, method: str, value: Any) -> Any:
        """Convert a value that is assigned or added, to the host and to this variable's dtype.

        Args:
            method: Name of the method, for errors.
            value: An array, or IndexedSlices that are added.

        Raises:
            ShapeMismatchError: It is of another shape, or of a dtype that does not fit.
        """
        if isinstance(value, IndexedSlices):
            return IndexedSlices(*self._rows(Scatter.ADD, value))
        spec = self._spec
        array = in_dtype(to_host(value), spec.dtype, self._name)
        if array.shape != spec.shape:
            what = f"{method} of {self.name!r} with a value"
            raise self._other_shape(what, array.shape, "the variable has", self.shape)
        return array

    def _rows(self, kind: str, delta: IndexedSlices) -> tuple[Array, Array]:
        values = in_dtype(delta.values, self.dtype, self.name)
        indices = row_numbers(delta.indices, self.shape, self.name)
        if values.shape[1:] != self.shape[1:]:
            what = f"scatter_{kind} of {self.name!r} with rows"
            row = self.shape[1:]
            raise self._other_shape(what, values.shape[1:], "the variable's have", row)
        return values, indices

    def _other_shape(
        self, what: str, pushed: tuple[int, ...], whose: str, expected: tuple[int, ...]
    ) -> ShapeMismatchError:
        message = f"{what} of shape {pushed}, {whose} {expected}"
        return ShapeMismatchError(message, variable=self.name, pushed=pushed, expected=expected)

    def _scatter(self, kind: str, delta: IndexedSlices) -> None:
        values_of_rows, indices = self._rows(kind, delta)
        if kind == Scatter.UPDATE:
            # Of repeated rows the last counts; a push adds them up.
            rows, last = np.unique(indices[::-1], return_index=True)
            values = values_of_rows[::-1][last]
            self._servers.write(self, Operation.ASSIGN, IndexedSlices(values, rows))
        elif kind in (Scatter.ADD, Scatter.SUB):
            values = values_of_rows if kind == Scatter.ADD else -values_of_rows
            self._servers.write(self, Operation.ASSIGN_ADD, IndexedSlices(values, indices))
        else:
            self._combine_rows(kind, values_of_rows, delta.indices)

    def _combine_rows(self, kind: str, values_of_rows: Array, indices: Array) -> None:
        operation, combine = _ROW_OPERATIONS[kind]
        order = np.argsort(indices, kind="stable")
        rows, starts = np.unique(indices[order], return_index=True)
        values = (
            combine.reduceat(values_of_rows[order], starts, axis=0) if rows.size else values_of_rows
        )
        self._servers.write(self, operation, IndexedSlices(values.astype(self.dtype), rows))


class PsShard(Variable):
    """A shard of a variable on parameter servers, with the whole variable's rules."""

    def __init__(self, whole: "PsShardedVariable", shard: ShardDefinition, ps: int) -> None:
        spec = whole._spec
        self._whole = whole
        self._start, self._rows = shard.row_offset, shard.rows
        self.part = shard.part
        self.ps = ps
        own = VariableSpec(
            None, f"{whole.name}/part_{shard.part}", (shard.rows, *spec.shape[1:]), spec.dtype,
            spec.trainable, spec.synchronization, spec.aggregation, None,
        )  # fmt: skip
        self._set_up(own, own.name, whole.strategy)

    @property
    def device(self) -> str:
        """The ps that holds it."""
        return ps_device(self.ps)

    def _numbers(self) -> Array:
        return np.arange(self._start, self._start + self._rows)

    def read_value(self) -> Any:
        """Read the shard, from its ps alone."""
        return self._whole.sparse_read(self._numbers())

    def sparse_read(self, indices: Any) -> Any:
        """Read rows of the shard."""
        return self._whole.sparse_read(row_numbers(indices, self.shape, self.name) + self._start)

    def assign(self, value: Any) -> "PsShard":
        """Overwrite the shard."""
        return self._write(Scatter.UPDATE, value)

    def assign_add(self, delta: Any) -> "PsShard":
        """Add to the shard."""
        return self._write(Scatter.ADD, delta)

    def _write(self, kind: Scatter, value: Any) -> "PsShard":
        array = to_host(value).astype(self.dtype, copy=False)
        self._require_shape(array)
        self._whole.scatter(kind, IndexedSlices(array, self._numbers()))
        return self

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> "PsShard":
        """Change rows of the shard."""
        rows = row_numbers(delta.indices, self.shape, self.name)
        self._whole.scatter(kind, IndexedSlices(delta.values, rows + self._start))
        return self


class PsShardedVariable(PsVariable, ShardedVariable):
    """A variable sharded over several parameter servers.

    Reads and writes as :class:`PsVariable`.
    """

    @property
    def variables(self) -> Sequence[Variable]:
        """The shards, in order."""
        return [PsShard(self, shard, ps) for ps, shard in self._servers.shards_of(self)]
