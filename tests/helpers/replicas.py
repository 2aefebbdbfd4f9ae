"""Several replicas in this process, and what a step asks about the one that runs it."""

from functools import partial
from typing import Any

import ropewalk as rw
from ropewalk.distribute import MirroredStrategy, ReplicaContext
from ropewalk.distribute.strategies.replica_barrier import ReplicaBarrier

NONE, SUM, MEAN, FIRST = (
    rw.VariableAggregation.NONE,
    rw.VariableAggregation.SUM,
    rw.VariableAggregation.MEAN,
    rw.VariableAggregation.ONLY_FIRST_REPLICA,
)
ON_WRITE, ON_READ = rw.VariableSynchronization.ON_WRITE, rw.VariableSynchronization.ON_READ


def mirrored(replicas: int) -> MirroredStrategy:
    """A strategy on so many logical CPU devices."""
    rw.config.set_logical_cpu_devices(replicas)
    return MirroredStrategy()


def context() -> ReplicaContext:
    """The replica that runs."""
    found = rw.distribute.get_replica_context()
    assert found is not None
    return found


def replica() -> int:
    """Its number."""
    return context().replica_id_in_sync_group


def barrier_of(current: ReplicaContext) -> ReplicaBarrier:
    """The run that a replica takes part in."""
    merge = current._merge
    assert isinstance(merge, partial)
    barrier = getattr(merge.func, "__self__", None)
    assert isinstance(barrier, ReplicaBarrier)
    return barrier


def copies(variable: Any) -> list[Any]:
    """The value of each component."""
    return [component.read_value().tolist() for component in variable.values]
