"""PyTorch: the state of an optimizer that runs on this worker, through steps that may be refused.

A step on this worker changes the optimizer's state before it is known whether it counts, and steps
in place push nothing: the store asks for the state when it needs it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.finite_updates import not_finite
from ...distribute.strategies.strategy import Strategy
from ..array_store import ArrayStore
from .kept_state import KeptTorchState
from .rules import step_without_hooks
from .state import StateCopy

if TYPE_CHECKING:
    from ...distribute.own_arrays import OwnValues


class StateOnWorker(KeptTorchState):
    """The state that an optimizer's own steps on this worker make."""

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy, prefix: str
    ) -> None:
        super().__init__(optimizer, parameters, strategy, prefix)
        self._optimizer = optimizer
        self._in_place: OwnValues | None = None
        self._steps_unkept = 0  # made in place
        self._before: StateCopy | None = None  # during a step that may be refused

    def begin(self, store: ArrayStore, *, in_place: bool) -> None:
        """Go on with the state that the job has, if it has one.

        Args:
            store: The variables of :meth:`variables`, among others.
            in_place: Whether steps may be made where no other process has the parameters.
        """
        self.take(store)
        if self.pushes and in_place and store.alone is not None:
            variables = {name: store.variables[name] for name in self.names()}
            self._in_place = store.alone.values(variables, self._pushed_in_place)

    def refresh(self, store: ArrayStore) -> None:
        """Have the job's state, if one was restored since."""
        if self.is_other(store):
            self.take(store)

    def step(self, gradients: Mapping[str, Any]) -> None:
        """The optimizer's own step, after which :meth:`undo_refused` can undo what NaN does."""
        if not_finite(gradients) is not None:
            self._before = StateCopy(self._optimizer)
        step_without_hooks(self._optimizer)  # which are called around the whole step

    def pushed(self) -> Mapping[str, Any]:
        """What to push with a step that counts."""
        self._before = None
        steps, self._steps_unkept = self._steps_unkept + 1, 0
        return self.after(steps)

    def keep_in_place(self) -> None:
        """A step in place counts: the store asks for its state when it needs it."""
        self._before = None
        if self._in_place is not None:
            self._in_place.keep()
            self._steps_unkept += 1

    def undo_refused(self) -> None:
        """Put the state back that the optimizer had before a step, if it was refused."""
        if self._before is not None:
            self._before.put_back()
            self._before = None

    def _pushed_in_place(self) -> Mapping[str, Any]:
        """What the steps in place have made of the state, when the store is asked for it."""
        steps, self._steps_unkept = self._steps_unkept, 0
        return self.after(steps)
