"""PyTorch: the state of an optimizer on this worker, kept in variables of the job."""

from collections.abc import Mapping
from typing import Any

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ..array_store import ArrayStore
from ..in_sync import copy_counts
from ..kept_state import KeptState
from .state import TorchState


class KeptTorchState:
    """What an optimizer of PyTorch keeps between its steps, in the job's checkpoints, too.

    Args:
        optimizer: The optimizer.
        parameters: Its parameters, by name.
        strategy: Strategy under which the state is kept.
        prefix: Prefix of the state's names.

    Attributes:
        pushes: Whether this worker's steps push it.
    """

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy, prefix: str
    ) -> None:
        self._state = TorchState(optimizer, parameters)
        entries, kind = self._state.entries, type(optimizer).__name__
        self._kept = KeptState(entries, kind=kind, prefix=prefix) if entries else None
        self.pushes = self._kept is not None and copy_counts(strategy)

    def variables(self, strategy: Strategy) -> dict[str, Variable]:
        """The variables that keep it, for the tables of a store."""
        return {} if self._kept is None else self._kept.variables(strategy)

    def names(self) -> list[str]:
        """Names of these variables."""
        return [] if self._kept is None else self._kept.names()

    def take(self, store: ArrayStore) -> None:
        """Have the optimizer go on with the state that the job has, if it has one."""
        if self._kept is not None:
            self._state.load(self._kept.found(store.pull(self._kept.names())))

    def is_other(self, store: ArrayStore) -> bool:
        """Whether the job has another state than this worker has pushed: one was restored."""
        return self._kept is not None and self.pushes and self._kept.is_other(store.pull)

    def after(self, steps: int) -> Mapping[str, Array]:
        """What so many steps have made of it, to be pushed; counts them."""
        if self._kept is None or not self.pushes:
            return {}
        return self._kept.pushed(self._state.now(), steps)
