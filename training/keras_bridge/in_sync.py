"""What workers in sync tell each other, however many replicas each has in its process."""

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...distribute.base.reductions import ReduceOp
from ...distribute.strategies.strategy import Strategy


def workers_in_sync(strategy: Strategy) -> int:
    """Workers whose steps are one; 1: this one alone, be it with several replicas."""
    return strategy.extended.num_replicas_in_sync // len(strategy.extended.replica_devices)


def sum_over_workers(strategy: Strategy, mine: Array) -> Array:
    """The sum of one float64 array of each worker; all of them call this."""
    extended = strategy.extended
    total: Array = to_host(extended.reduce_to_all(ReduceOp.SUM, mine))  # of every replica the same
    return total / len(extended.replica_devices)


def of_all_workers(strategy: Strategy, mine: Array) -> Array:
    """One row of each worker, shape ``(1, n)`` in and ``(workers, n)`` out; all call this."""
    extended = strategy.extended
    every: Array = to_host(extended.gather_to_all(mine, 0))
    return every[:: len(extended.replica_devices)]
