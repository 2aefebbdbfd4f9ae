"""PyTorch: the state of an optimizer that runs on this worker, through steps that may be refused.

A step on this worker changes the optimizer's state before it is known whether it counts, and steps
in place push nothing: the store asks for the state when it needs it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.finite_updates import not_finite
from ...distribute.strategies.strategy import Strategy
from ...training.array_store import ArrayStore
from .rules import step_without_hooks
from .state import StateCopy, TorchState

if TYPE_CHECKING:
    from ...distribute.own_arrays import OwnValues


class StateOnWorker:
    """The state that an optimizer's own steps on this worker make.

    Args:
        optimizer: The optimizer.
        parameters: Parameters of the optimizer, by name.
        strategy: Strategy under which the state is kept.
        prefix: Prefix of the state's names.

    Attributes:
        kept: The state as the job's checkpoints have it; None: there is nothing to keep.
    """

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy, prefix: str
    ) -> None:
        self._optimizer = optimizer
        self._state = TorchState(optimizer, parameters)
        self.kept = self._state.kept(strategy, prefix)
        self._in_place: OwnValues | None = None
        self._before: StateCopy | None = None  # during a step that may be refused

    def keep_in_place(self, store: ArrayStore) -> None:
        """Have the store ask for the state, if no other process has the parameters.

        Args:
            store: Store with the variables of ``kept``.
        """
        kept, alone = self.kept, store.alone
        if kept is not None and alone is not None:
            variables = {name: store.variables[name] for name in kept.names}
            self._in_place = alone.values(variables, lambda: kept.pushed(self._state.now))

    def step(self, gradients: Mapping[str, Any]) -> None:
        """Make the optimizer's own step, after which :meth:`undo_refused` can undo what NaN
        does.
        """
        if not_finite(gradients) is not None:
            self._before = StateCopy(self._optimizer)
        step_without_hooks(self._optimizer)  # which are called around the whole step

    def step_by(self, closure: Callable[[], Any]) -> Any:
        """Make a step as :meth:`step` does, of an optimizer that computes losses and gradients by a
        closure.
        """
        self._before = StateCopy(self._optimizer)
        return step_without_hooks(self._optimizer, closure)

    def pushed(self) -> Mapping[str, Any]:
        """Collect what to push with a step that counts."""
        self._before = None
        if self.kept is None:
            return {}
        self.kept.steps += 1
        return self.kept.pushed(self._state.now)

    def count_in_place(self) -> None:
        """Count a step in place: the store asks for its state when it needs it."""
        self._before = None
        if self.kept is not None and self._in_place is not None:
            self.kept.steps += 1
            self._in_place.keep()

    def undo_refused(self) -> None:
        """Put the state back that the optimizer had before a step, if it was refused."""
        if self._before is not None:
            self._before.put_back()
            self._before = None
