"""Variables of which there is one value, whatever the number of replicas that write it.

Writes of a replica are aggregated over the replicas of the strategy first, as the variable's
``aggregation`` says, and carried out once. (Mirrored variables are written on every device, by the
same rule.)
"""

from typing import Any

from ...core.arrays.indexed_slices import IndexedSlices
from ...core.terminal import counted
from ..base.contexts import require_own, update_component
from ..base.devices import current_device, is_gpu, place
from ..base.interface import StrategyInterface
from ..base.reductions import ReduceOp, VariableAggregation, VariableSynchronization
from ..base.values import DistributedValues, PerReplica, on_every_replica
from .local import LocalVariable
from .scatter import Scatter
from .spec import VariableSpec
from .variable import Variable

_NONE = VariableAggregation.NONE
_FIRST = VariableAggregation.ONLY_FIRST_REPLICA
_NOT_SUMS = (Scatter.MIN, Scatter.MAX, Scatter.UPDATE)
# The very same string from every replica: a merge sees by that, that they make the same call.
_SCATTERS = {kind: f"scatter_{kind}" for kind in Scatter}


class AggregatedVariable(Variable):
    """A variable that combines the writes of all replicas.

    Without an ``aggregation`` several replicas may not write it: copies, or whose write comes last,
    would go their own ways (TensorFlow before 2.4 refused it, too).
    """

    def _write_all(self, method: str, value: Any) -> None:
        """Write, after aggregation. ``method`` is the name of one of Variable's."""
        raise TypeError(f"{type(self).__name__} must define _write_all({method}, {value!r})")

    def _write_each(self, method: str, value: PerReplica) -> None:
        """Write what differs between replicas, in cross-replica context."""
        raise ValueError(
            f"{method} of {self.name!r} with {counted(len(value.values), 'value')}, one per "
            "replica: there is one variable; reduce them first, or write in replica context"
        )

    def _write_component(self, component: int, method: str, value: Any) -> None:  # noqa: ARG002
        """Write in an update context."""
        self._write_all(method, value)

    def assign(self, value: Any) -> "AggregatedVariable":
        """Overwrite the value."""
        return self._write("assign", self._not_rows(value))

    def assign_add(self, delta: Any) -> "AggregatedVariable":
        """Add to the value."""
        return self._write("assign_add", self._not_rows(delta))

    def assign_sub(self, delta: Any) -> "AggregatedVariable":
        """Subtract from the value."""
        return self._write("assign_sub", self._not_rows(delta))

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> "AggregatedVariable":
        """Change rows.

        Raises:
            RuntimeError: Under another strategy.
            NotImplementedError: The replicas' rows would be summed, and the change is no sum.
            TypeError: They are no IndexedSlices.
        """
        if not isinstance(delta, IndexedSlices | DistributedValues):
            raise TypeError(
                f"scatter_{kind} of {self.name!r} takes IndexedSlices, got {type(delta).__name__}"
            )
        if (
            kind in _NOT_SUMS
            and self._own_replica() is not None
            and self.aggregation not in (_NONE, _FIRST)
        ):
            raise NotImplementedError(
                f"scatter_{kind} of {self.name!r} in replica context needs aggregation "
                "ONLY_FIRST_REPLICA, it has "
                f"{self.aggregation.name}: rows of several replicas do not add up to one"
            )
        return self._write(_SCATTERS[kind], delta)

    def _write(self, method: str, value: Any) -> "AggregatedVariable":
        require_own(self._strategy, repr(self.name))
        if isinstance(value, Variable):
            value = value.read_value()  # its components are not what replicas give
        if not isinstance(value, IndexedSlices | DistributedValues):
            value = self._given(value)
        component = update_component()
        context = self._own_replica()
        replicas = self._strategy.extended.num_replicas_in_sync
        if component is not None:
            self._write_component(component, method, value)
        elif context is None or replicas == 1:
            if isinstance(value, PerReplica) and len(value.values) > 1:
                self._write_each(method, value)
                return self
            self._write_all(method, value)
        elif self.aggregation is _NONE:
            raise ValueError(
                f"You must specify an aggregation method to update variable {self.name!r} from "
                f"{replicas} replicas: create it with aggregation=rw.VariableAggregation.SUM, MEAN "
                "or ONLY_FIRST_REPLICA (for counters)"
            )
        else:
            context.merge_call(self._merged_write, (method, value))
        return self

    def _merged_write(self, strategy: StrategyInterface, method: Any, value: Any) -> None:
        if isinstance(method, DistributedValues):
            raise RuntimeError(
                f"replicas disagree: they write {self.name!r} by {', '.join(method.values)}; every "
                "replica must make the same calls in the same order"
            )
        extended = strategy.extended
        # The very same object from every replica: a sum counts it once for each.
        everyones = on_every_replica(value, len(extended.replica_devices))
        if self.aggregation is _FIRST:
            self._write_all(method, extended.of_first_replica(everyones))
        else:
            op = ReduceOp[self.aggregation.name]
            self._write_all(method, extended.reduce_to(op, everyones, self))


class AggregatingVariable(AggregatedVariable):
    """A variable of this process that several replicas use, as TensorFlow's class of this name. As
    TensorFlow's class of this name.

    Args:
        spec: Spec that was asked for.
        variable: Holds the value.
    """

    def __init__(self, spec: VariableSpec, variable: LocalVariable) -> None:
        self._set_up(spec, variable.name, variable.strategy)
        self._variable = variable
        variable.container = self

    @property
    def device(self) -> str:
        """Device of the value."""
        return self._variable.device

    def read_value(self) -> Any:
        """Read the value, as it is now."""
        return _here(self._variable.read_value())

    def sparse_read(self, indices: Any) -> Any:
        """Read rows by number."""
        return _here(self._variable.sparse_read(indices))

    def component(self) -> LocalVariable:
        """Return the variable that holds the value."""
        return self._variable

    def _shown_value(self) -> str:
        return self._variable._shown_value()

    def _write_all(self, method: str, value: Any) -> None:
        if self.synchronization is not VariableSynchronization.ON_READ:  # a metric
            self._strategy.extended.note_write()
        getattr(self._variable, method)(value)


def _here(value: Any) -> Any:
    """Put a value where the replica is that reads it: on its GPU, if it has one."""
    device = current_device()
    return place(value, device) if is_gpu(device) else value
