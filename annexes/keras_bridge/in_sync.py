"""Exchange between workers in sync, however many replicas each has in its process."""

import logging
from typing import Any

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...distribute.base.reductions import ReduceOp
from ...distribute.strategies.strategy import Strategy
from ...training.in_sync import workers_in_sync
from .frameworks import keras
from .loss_of_sum import warn_of_sum

log = logging.getLogger(__name__)


def sum_over_workers(strategy: Strategy, mine: Array) -> Array:
    """Sum one float64 array of each worker; all of them call this."""
    extended = strategy.extended
    total: Array = to_host(extended.reduce_to_all(ReduceOp.SUM, mine))  # of every replica the same
    return total / len(extended.replica_devices)


def of_all_workers(strategy: Strategy, mine: Array) -> Array:
    """Gather a row of each worker, shape ``(1, n)`` in and ``(workers, n)`` out; all call this."""
    extended = strategy.extended
    every: Array = to_host(extended.gather_to_all(mine, 0))
    return every[:: len(extended.replica_devices)]


def refuse_sums(model: Any, strategy: Strategy) -> None:
    """Refuse a loss that is a sum over examples, where workers in sync average their gradients.

    One that the program wrote is tried before the first step, and warned of, as is one of Keras
    that is divided by the weights of each worker's examples.

    Args:
        model: Compiled model whose gradients are averaged.
        strategy: Strategy of the model.

    Raises:
        ConfigurationError: A step would be that of one process divided by the number of workers.
    """
    workers = workers_in_sync(strategy)
    if workers < 2:
        return
    is_chief = strategy.extended.should_checkpoint
    for loss in keras.tree.flatten(getattr(model._compile_loss, "_user_loss", None)):
        if getattr(loss, "reduction", None) == "mean_with_sample_weight" and is_chief:
            log.warning(
                "the loss %r of %r is divided by the sum of the weights of each worker's part of a "
                "batch (reduction='mean_with_sample_weight'), so where these sums differ a step is "
                "not quite that of one process; 'sum_over_batch_size' divides by the examples",
                loss.name,
                model.name,
            )
        if getattr(loss, "reduction", None) == "sum":
            raise ConfigurationError(
                f"the loss {loss.name!r} of {model.name!r} is a sum over the examples of a batch "
                f"(reduction='sum'), and {workers} workers in sync average their gradients, so a "
                f"step would be 1/{workers} of that of one process. Take "
                "reduction='sum_over_batch_size' and a larger learning rate, or have gradients "
                "added up: make and compile the model outside of the scope, and call "
                "rw.training.keras.distribute(model, strategy, mean=False)"
            )
    if is_chief:
        warn_of_sum(model, workers)
