"""Values that the workers in sync have one of each, added up or averaged over them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.arrays.any_framework import as_array
from ..core.arrays.indexed_slices import IndexedSlices
from ..distribute.base.devices import HOST
from ..distribute.base.reductions import ReduceOp
from ..distribute.base.values import DistributedValues, PerReplica, on_every_replica
from ..distribute.strategies.strategy import Strategy
from .in_sync import workers_in_sync


def sum_over_workers(
    strategy: Strategy, named: Mapping[str, Any], means: Mapping[str, Any], *, mean: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reduce what each worker in sync has one of, in one reduction, in a merge of the replicas.

    Args:
        strategy: The workers' strategy.
        named: Arrays or IndexedSlices by name.
        means: Arrays by name, which are averaged.
        mean: Whether ``named`` are averaged, too; else they are added up.

    Returns:
        (``named``, ``means``), reduced
    """
    extended = strategy.extended
    replicas = len(extended.replica_devices)
    workers = workers_in_sync(strategy)
    if workers == 1:
        return dict(named), dict(means)
    # The first replica has it all, the others have nothing to add.
    factor = 1 / workers if mean else 1
    every = [scaled(value, factor) for value in named.values()]
    every += [scaled(value, 1 / workers) for value in means.values()]
    pairs = []
    for value in every:
        nothing = _none(value) if isinstance(value, IndexedSlices) else np.zeros_like(value)
        everyones = PerReplica([value, *[nothing] * (replicas - 1)])
        pairs.append((everyones, HOST))
    reduced = list(map(first_of, extended.batch_reduce_to(ReduceOp.SUM, pairs)))
    count = len(named)
    return (
        dict(zip(named, reduced[:count], strict=True)),
        dict(zip(means, reduced[count:], strict=True)),
    )


def reduce_replicas(
    strategy: Strategy, op: ReduceOp, names: Iterable[str], columns: Sequence[Any]
) -> dict[str, Any]:
    """Reduce what each replica in sync has one of, in a merge of the replicas.

    Args:
        strategy: The replicas' strategy.
        op: Operation of the reduction.
        names: Names of the values.
        columns: Values of all replicas of this process, in the order of names.
    """
    replicas = len(strategy.extended.replica_devices)
    pairs = [(on_every_replica(column, replicas), HOST) for column in columns]
    return dict(
        zip(names, map(first_of, strategy.extended.batch_reduce_to(op, pairs)), strict=True)
    )


def scaled(gradient: Any, factor: float) -> Any:
    """Scale a gradient by a number, in its own dtype and form."""
    if isinstance(gradient, IndexedSlices):
        rows = gradient.values * gradient.values.dtype.type(factor)
        return IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    if isinstance(gradient, DistributedValues):
        return PerReplica(scaled(gradient, factor) for gradient in gradient.values)
    array = as_array(gradient)
    return array * array.dtype.type(factor)


def _none(slices: IndexedSlices) -> IndexedSlices:
    """Take no rows of the same table."""
    return IndexedSlices(slices.values[:0], slices.indices[:0], slices.dense_shape)


def first_of(value: Any) -> Any:
    """Take a reduced value, of which every replica of this worker has the same."""
    return value.values[0] if isinstance(value, DistributedValues) else value
