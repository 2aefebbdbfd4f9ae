"""PyTorch: the state of an optimizer that runs on this worker, and the job's copy of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.finite_updates import not_finite
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ..array_store import ArrayStore
from ..kept_state import KeptState
from .rules import step_without_hooks
from .state import StateCopy, TorchState

if TYPE_CHECKING:
    from ...distribute.own_arrays import OwnValues


class StateOnWorker:
    """What an optimizer of PyTorch keeps between its steps, in the job's checkpoints, too.

    Args:
        optimizer: The optimizer.
        parameters: Its parameters, by name.
        strategy: Under which it runs.
        prefix: Prefix of the names in the job.
    """

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy, prefix: str
    ) -> None:
        self._optimizer = optimizer
        self._state = TorchState(optimizer, parameters)
        entries, kind = self._state.entries, type(optimizer).__name__
        self._kept = KeptState(entries, kind=kind, prefix=prefix) if entries else None
        # In sync all workers push it, and have the same.
        in_sync = strategy.extended.num_replicas_in_sync > 1
        self._pushes = in_sync or bool(strategy.extended.should_checkpoint)
        self._in_place: OwnValues | None = None
        self._steps_unkept = 0  # made in place
        self._before: StateCopy | None = None  # during a step that may be refused

    def variables(self, strategy: Strategy) -> dict[str, Variable]:
        """The variables that keep it, for the tables of a store."""
        return {} if self._kept is None else self._kept.variables(strategy)

    def begin(self, store: ArrayStore, *, in_place: bool) -> None:
        """Go on with the state that the job has, if it has one.

        Args:
            store: The variables of :meth:`variables`, among others.
            in_place: Whether steps may be made where no other process has the parameters.
        """
        self._take(store)
        if self._kept is not None and self._pushes and in_place and store.alone is not None:
            variables = {name: store.variables[name] for name in self._kept.names()}
            self._in_place = store.alone.values(variables, self._pushed_in_place)

    def refresh(self, store: ArrayStore) -> None:
        """Have the job's state, if one was restored since."""
        if self._kept is not None and self._pushes and self._kept.is_other(store.pull):
            self._take(store)

    def _take(self, store: ArrayStore) -> None:
        if self._kept is not None:
            self._state.load(self._kept.found(store.pull(self._kept.names())))

    def step(self, gradients: Mapping[str, Any]) -> None:
        """The optimizer's own step, after which :meth:`undo_refused` can undo what NaN does."""
        if not_finite(gradients) is not None:
            self._before = StateCopy(self._optimizer)
        step_without_hooks(self._optimizer)  # which are called around the whole step

    def pushed(self) -> Mapping[str, Any]:
        """What to push with a step that counts."""
        self._before = None
        return self._pushed() if self._pushes else {}

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

    def _pushed(self) -> Mapping[str, Any]:
        if self._kept is None:
            return {}
        steps, self._steps_unkept = self._steps_unkept + 1, 0
        return self._kept.pushed(self._state.now(), steps)

    def _pushed_in_place(self) -> Mapping[str, Any]:
        """What the steps in place have made of the state, when the store is asked for it."""
        self._steps_unkept -= 1
        return self._pushed()
