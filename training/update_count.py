"""Number of times that an optimizer on the servers was applied: what a schedule of its own goes by.

The job's global step counts the steps of every model, and those before this one was made. A
schedule of optax or Keras goes by the updates of its own optimizer, so these are counted in a
variable, to which each worker adds one with its gradients: it comes back with the values, it has
the updates of all workers, and checkpoints have it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array
from ..core.checkpoint.export import OPTIMIZER_STATE
from ..distribute.base.moved_average import MovedAverage
from ..distribute.optimizer import Optimizer
from ..distribute.strategies.parameter_server import ParameterServerExtended
from ..distribute.strategies.strategy import Strategy
from .named_arrays import NamedArrays


def counted_by(
    strategy: Strategy, prefix: str, rule: Optimizer, schedule: Callable[[int], Any]
) -> "UpdateCount | None":
    """Make what a schedule goes by; None: the strategy itself counts the updates of each variable.

    Args:
        strategy: Strategy of the store.
        prefix: Prefix of the names of the store: empty, or with a slash at its end.
        rule: Optimizer of the store, whose rate is that of the schedule from then on.
        schedule: Returns the rate after so many updates.
    """
    if not isinstance(strategy.extended, ParameterServerExtended):
        return None
    count = UpdateCount(prefix, strategy)
    rule.learning_rate = count.rate(schedule)
    return count


class UpdateCount:
    """Counts the updates of one store.

    Args:
        prefix: Prefix of the names of the store: empty, or with a slash at its end.
        strategy: Strategy of the store.

    Attributes:
        known: Updates so far, as far as this worker knows.
        first: The variable's first value, by its name: a part of the store's arrays.
        one_more: Number that a step adds to it with its gradients.
    """

    def __init__(self, prefix: str, strategy: Strategy) -> None:
        self.known = 0
        self._name = f"{prefix}{OPTIMIZER_STATE}/updates"
        self._replicas = strategy.extended.num_replicas_in_sync
        self.first: Mapping[str, Array] = {self._name: np.zeros((), np.float64)}
        none, one = np.zeros((), np.float64), np.ones((), np.float64)
        self.one_more: Mapping[str, MovedAverage] = {self._name: MovedAverage(none, one, 0.0)}

    def rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """Compute the schedule's rate for the next update, in the place of that of the global
        step.
        """
        return lambda _: schedule(self.known)

    def set(self, store: NamedArrays, number: int) -> None:
        """Go on from so many updates, on all workers."""
        store.assign({self._name: np.float64(number)})
        self.known = number

    def take_out(self, values: dict[str, Any]) -> None:
        """Learn from values of the store, which then are those of the model's arrays alone."""
        # With prefetch they lack this worker's last update.
        self.known = max(self.known, round(float(to_host(values.pop(self._name)))))

    def added(self) -> None:
        """Note that a step's gradients were given to the store."""
        if self._replicas == 1:
            self.known += 1
