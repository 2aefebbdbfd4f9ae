"""Number of times that an optimizer of Keras was applied that runs on the servers: its
``iterations``.
"""

from collections.abc import Sequence
from typing import Any

from ...training.array_store import ArrayStore
from ...training.update_count import UpdateCount
from .shared_variables import SharedVariables


class Iterations:
    """Updates of one model's optimizer.

    Args:
        shared: Variables of Keras that are shared.
        store: The model's weights.
        count: Count that a schedule on the servers goes by; None: there is none.
        copies: Copies of the trained weights in this process, which count their updates; none: they
            are on the servers.
    """

    def __init__(
        self,
        shared: SharedVariables,
        store: ArrayStore,
        count: UpdateCount | None,
        copies: Sequence[Any],
    ) -> None:
        self._shared, self._store, self._count, self._copies = shared, store, count, copies
        self._first_step: int | None = None  # of the job's, by the time of this model's first
        self._before = 0  # updates of which the strategy does not know

    @property
    def now(self) -> int:
        """Updates so far, as far as this worker knows.

        On servers without a schedule the job's steps since it began to train, or went on from a
        checkpoint. 0 under strategies that count none.
        """
        if self._count is not None:
            return self._count.known
        return self._counted + self._before if self._counted else 0

    @property
    def _counted(self) -> int:
        steps = max(0, self._store.step - (self._first_step or 0))
        return max((copy.updates for copy in self._copies), default=steps)

    def begin_step(self) -> None:
        """Note that a step of the model begins."""
        if self._first_step is None:
            self._first_step = self._shared.first_step_of_another(self._store.step)

    def go_on_from(self, iterations: int, *, counts: bool) -> int:
        """Count on from so many updates.

        Args:
            iterations: Updates before the next one.
            counts: Whether this worker says so for the job.

        Returns:
            Number of updates beyond those that the strategy counts, by which a schedule is off.
        """
        if self._count is None:
            self.begin_step()
            self._before = iterations - self._counted
        elif counts:
            self._count.set(self._store, iterations)
        return self._before
