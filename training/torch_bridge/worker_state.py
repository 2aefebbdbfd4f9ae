"""PyTorch: the state of an optimizer that runs on this worker, through steps that may be refused.

A step on this worker changes the optimizer's state before it is known whether it counts, and steps
in place push nothing: the store asks for the state when it needs it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.finite_updates import not_finite
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ..array_store import ArrayStore
from .rules import step_without_hooks
from .state import StateCopy, TorchState

if TYPE_CHECKING:
    from ...distribute.own_arrays import OwnValues


class StateOnWorker:
    """The state that an optimizer's own steps on this worker make.

    Args:
        optimizer: The optimizer.
        parameters: Its parameters, by name.
        strategy: Strategy under which the state is kept.
        prefix: Prefix of the state's names.
    """

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy, prefix: str
    ) -> None:
        self._optimizer = optimizer
        self._state = TorchState(optimizer, parameters)
        self._kept = self._state.kept(strategy, prefix)
        self._in_place: OwnValues | None = None
        self._before: StateCopy | None = None  # during a step that may be refused

    def variables(self) -> dict[str, Variable]:
        """The variables that keep it, for the tables of a store."""
        return {} if self._kept is None else self._kept.variables()

    def begin(self, store: ArrayStore, *, in_place: bool) -> None:
        """Go on with the state that the job has, if it has one.

        Args:
            store: The variables of :meth:`variables`, among others.
            in_place: Whether steps may be made where no other process has the parameters.
        """
        kept, alone = self._kept, store.alone
        if kept is None:
            return
        kept.restore(store)
        if in_place and alone is not None:
            variables = {name: store.variables[name] for name in kept.names}
            self._in_place = alone.values(variables, lambda: kept.pushed(self._state.now))

    def refresh(self, store: ArrayStore) -> None:
        """Have the job's state, if one was restored since."""
        if self._kept is not None:
            self._kept.refresh(store)

    def step(self, gradients: Mapping[str, Any]) -> None:
        """The optimizer's own step, after which :meth:`undo_refused` can undo what NaN does."""
        if not_finite(gradients) is not None:
            self._before = StateCopy(self._optimizer)
        step_without_hooks(self._optimizer)  # which are called around the whole step

    def step_by(self, closure: Callable[[], Any]) -> Any:
        """As :meth:`step`, of an optimizer that computes losses and gradients by a closure."""
        self._before = StateCopy(self._optimizer)
        return step_without_hooks(self._optimizer, closure)

    def pushed(self) -> Mapping[str, Any]:
        """What to push with a step that counts."""
        self._before = None
        if self._kept is None:
            return {}
        self._kept.steps += 1
        return self._kept.pushed(self._state.now)

    def keep_in_place(self) -> None:
        """A step in place counts: the store asks for its state when it needs it."""
        self._before = None
        if self._kept is not None and self._in_place is not None:
            self._kept.steps += 1
            self._in_place.keep()

    def undo_refused(self) -> None:
        """Put the state back that the optimizer had before a step, if it was refused."""
        if self._before is not None:
            self._before.put_back()
            self._before = None
