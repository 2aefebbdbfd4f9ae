"""The state of a Keras optimizer that runs on the worker, in the job's checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ..array_store import ArrayStore, Kept
from ..in_sync import copy_counts
from ..kept_state import KeptState
from .loop_state import plainly


class OwnState:
    """Moments, velocities and the number of steps; not the rate, which the program says.

    Args:
        optimizer: The optimizer; it is built here if it was not.
        weights: Weights that it trains.
        strategy: Strategy under which the state is kept.
        prefix: Prefix of the state's names.
        array: Returns a variable's value on the host.
    """

    def __init__(
        self,
        optimizer: Any,
        weights: Sequence[Any],
        strategy: Strategy,
        prefix: str,
        array: Callable[[Any], Array],
    ) -> None:
        if not optimizer.built:
            with plainly():
                optimizer.build(weights)
        self._array = array
        entries = {name: array(v) for name, v in _entries(optimizer).items()}
        self._kept = KeptState(entries, kind=type(optimizer).__name__, prefix=prefix)
        self._shapes = {name: entry.shape for name, entry in entries.items()}
        self._pushes = copy_counts(strategy)

    def variables(self, strategy: Strategy) -> dict[str, Variable]:
        """For the tables of a store."""
        return self._kept.variables(strategy)

    def restore(self, optimizer: Any, store: ArrayStore) -> None:
        """Give the optimizer the state that the job has, if it has one."""
        found = self._kept.found(store.pull(self._kept.names()))
        for name, variable in _entries(optimizer).items():
            if name in found:
                variable.assign(found[name])

    def is_other(self, store: ArrayStore) -> bool:
        """Whether one was restored since."""
        return self._pushes and self._kept.is_other(store.pull)

    def pushed(
        self, optimizer: Any, values: Callable[[], Sequence[Any]] | None, steps: int = 1
    ) -> Kept | None:
        """What a step pushes of it; None: not this worker, or a state of another form.

        Args:
            optimizer: Optimizer whose state it is now.
            values: Returns the values of all its variables after the step; None: they are read.
            steps: Number of steps made since this was called last.
        """
        variables = _entries(optimizer)
        if not self._pushes or self._shapes != {n: tuple(v.shape) for n, v in variables.items()}:
            return None

        def entries() -> Mapping[str, Array]:
            if values is None:
                now = {name: self._array(v) for name, v in variables.items()}
            else:
                every = dict(zip(map(id, optimizer.variables), values(), strict=True))
                now = {name: every[id(v)] for name, v in variables.items()}
            return self._kept.pushed(now, steps)

        return entries


def _entries(optimizer: Any) -> dict[str, Any]:
    """Its variables by name, in its own order; names alone may repeat.

    Within an epoch on JAX they have no values: what they are is asked, not what they have.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return {
        f"{number}-{variable.name}": variable
        for number, variable in enumerate(optimizer.variables)
        if variable is not rate and variable.dtype != "string"
    }
