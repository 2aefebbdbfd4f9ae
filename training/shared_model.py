"""The arrays of a model under a strategy, as every bridge shares them.

A bridge converts: arrays of its framework to arrays by name and back, its gradients, and the state
of its optimizer. Which variables a model is, and what of them is read back when, is decided here:
its arrays, the count that a schedule on the servers goes by, and the state of an optimizer on this
worker.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.arrays.dtypes import Array
from ..distribute.optimizer import Optimizer
from ..distribute.strategies.strategy import Strategy
from ..distribute.variables.variable import Variable
from .array_store import ArrayStore, ModelStep
from .kept_state import KeptState
from .update_count import UpdateCount


class SharedModel:
    """A store of a model's arrays, and of what its optimizer knows besides.

    Args:
        arrays: First values by name, or variables that are there already.
        optimizer: Optimizer, as a store takes it; None: it runs on this worker.
        strategy: Strategy under which the arrays live.
        kept: State of an optimizer on this worker; None: there is nothing to keep.
        count: Count that a schedule on the servers goes by; None: there is none.
        mean, of_worker, tables: Arguments of the store.

    Attributes:
        store: The arrays; it has the variables of ``kept`` and ``count``, too.
        kept: State that was given.
        count: Count that was given.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        optimizer: Optimizer | Mapping[str, Optimizer] | None,
        strategy: Strategy,
        *,
        kept: KeptState | None,
        count: UpdateCount | None = None,
        mean: bool,
        of_worker: bool = False,
        tables: Mapping[str, Variable] | None = None,
    ) -> None:
        self.kept, self.count = kept, count
        self.store = ArrayStore(
            {**arrays, **({} if count is None else count.first)},
            optimizer,
            strategy,
            mean=mean,
            of_worker=of_worker,
            tables={**(tables or {}), **({} if kept is None else kept.variables())},
        )

    def pull(self) -> dict[str, Array]:
        """Pull the arrays as they are now, by name."""
        values: dict[str, Array] = self.store.pull()
        if self.count is not None:
            self.count.known = 0  # there may be an older state now, which was restored
            self.count.take_out(values)
        return values

    def refresh(self) -> dict[str, Array]:
        """Pull as :meth:`pull` does; and an optimizer on this worker has the job's state
        (``KeptState``).
        """
        values = self.pull()
        if self.kept is not None:
            self.kept.refresh(self.store)
        return values

    def exchange(self, step: ModelStep, *, in_run: bool = False) -> dict[str, Array]:
        """Push a step; the arrays that come back, by name.

        Args:
            step: The step, without the count of updates.
            in_run: Whether it is a part of ``strategy.run``.
        """
        count = self.count
        if count is None:
            arrived: dict[str, Array] = self.store.exchange(step, in_run=in_run)
            return arrived
        counted = replace(step, averages={**step.averages, **count.one_more})
        arrived = self.store.exchange(counted, in_run=in_run)
        count.added()
        count.take_out(arrived)
        return arrived
