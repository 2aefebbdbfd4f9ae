"""The state of a Keras optimizer that runs on the worker, by name, for the job's checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...training.kept_state import KeptState
from .loop_state import plainly


class OwnState:
    """Moments, velocities and the number of steps; not the rate, which the program says.

    Args:
        optimizer: The optimizer; it is built here if it was not.
        weights: Weights that it trains.
        array: Returns a variable's value on the host.

    Attributes:
        optimizer: Optimizer whose state it is now.
    """

    def __init__(
        self, optimizer: Any, weights: Sequence[Any], array: Callable[[Any], Array]
    ) -> None:
        if not optimizer.built:
            with plainly():
                optimizer.build(weights)
        self.optimizer = optimizer
        self._array = array
        self._shapes = {n: tuple(v.shape) for n, v in _entries(optimizer).items()}

    def kept(self, strategy: Strategy, prefix: str) -> KeptState:
        """Make the state as the job's checkpoints have it.

        Args:
            strategy: Strategy under which it is kept.
            prefix: Prefix of its names.
        """
        entries = {name: self._array(v) for name, v in _entries(self.optimizer).items()}
        kind = type(self.optimizer).__name__
        return KeptState(entries, self._load, strategy, kind=kind, prefix=prefix)

    def _load(self, entries: Mapping[str, Array]) -> None:
        for name, variable in _entries(self.optimizer).items():
            if name in entries:
                variable.assign(entries[name])

    def now(self, values: Callable[[], Sequence[Any]] | None) -> Mapping[str, Any] | None:
        """Read what the optimizer has, by name; None: its state has another form than it had at
        first.

        Args:
            values: Returns the values of all its variables; None: they are read.
        """
        variables = _entries(self.optimizer)
        if self._shapes != {n: tuple(v.shape) for n, v in variables.items()}:
            return None
        if values is None:
            return {name: self._array(v) for name, v in variables.items()}
        every = dict(zip(map(id, self.optimizer.variables), values(), strict=True))
        return {name: every[id(v)] for name, v in variables.items()}


def _entries(optimizer: Any) -> dict[str, Any]:
    """List its variables by name, in its own order; names alone may repeat.

    Within an epoch on JAX they have no values: what they are is asked, not what they have.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return {
        f"{number}-{variable.name}": variable
        for number, variable in enumerate(optimizer.variables)
        if variable is not rate and variable.dtype != "string"
    }
