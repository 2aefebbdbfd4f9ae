"""Steps that update the parameters of a PyTorch program where they are, where it trains alone."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.arrays.dtypes import Array
from ...training.array_store import ArrayStore
from .tensors import Targets, mark_changed

if TYPE_CHECKING:
    from ...distribute.own_arrays import OwnArrays


class StepsInPlace:
    """Has the store work on the memory of tensors, as long as no other process has its variables.

    What the program does to parameters and buffers between two steps is then part of the model, as
    under PyTorch alone.

    Args:
        store: Store that has the variables.
        parameters: Parameters by name; host memory, or no step is made here.
        buffers: Buffers by name; not changed here.
        on_servers: Whether the servers have the optimizer; False: this worker.
        may_step: Whether steps may be made here; False: each step is one of the session.
    """

    def __init__(
        self,
        store: ArrayStore,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        *,
        on_servers: bool,
        may_step: bool = True,
    ) -> None:
        self._store, self._on_servers = store, on_servers
        self._alone = store.alone if may_step else None
        self._parameters, self._buffers = parameters, buffers
        self._trained, self._others = Targets(parameters), Targets(buffers)
        self._own: OwnArrays | None = None
        self._changed_here = False  # since :meth:`loaded`
        self._may_move: bool | None = None  # whether steps give tensors other memory; None: unknown

    @property
    def keeps_changes(self) -> bool:
        """Whether what the program changes is in the variables by itself."""
        return self._arrays() is not None

    def step(self, gradients: Mapping[str, Any]) -> bool:
        """Make a step, if that can be done here.

        Args:
            gradients: Gradients by name, as the store takes them.

        Returns:
            Whether the parameters have been updated; False: nothing was done.
        """
        own, alone = self._arrays(), self._alone
        if own is None or alone is None or not alone.apply(self._store.updates(gradients), own):
            return False
        for name in gradients:
            mark_changed(self._parameters[name])
        return self._made(own)

    def step_by(self, update: Callable[[], object]) -> bool | None:
        """Make a step of this worker's optimizer, if that can be done here.

        Args:
            update: Changes the parameters.

        Returns:
            Whether the step counts; False: it was refused, and the parameters are what they were;
            None: ``update`` was not called.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        own, alone = self._arrays(), self._alone
        if own is None or alone is None:
            return None

        def step() -> Mapping[str, Array]:
            update()
            if self._may_move is None:
                self._may_move = self._trained.moved
            if self._may_move:  # as by p.data = p.data - change
                self._trained.keep_memory()
            return own.trained

        counts = alone.by_program(step, own)
        if counts is not None:
            self._made(own)
        return counts

    def _made(self, own: "OwnArrays") -> bool:
        self._changed_here, own.paused = True, False
        return True

    def values(self) -> dict[str, Array] | None:
        """Return the values after the last step, where steps were made here since :meth:`loaded`.

        What the program has changed since then is lost with the step that follows, which is one of
        the session.
        """
        if self._own is None or not self._changed_here:
            return None
        self._own.paused = True
        of_variables = self._own.values()
        variables = self._store.variables
        values = {n: of_variables[variables[n].name] for n in (*self._parameters, *self._buffers)}
        if not self._on_servers:  # whose optimizer goes on from what the parameters are
            self._trained.load(values)
        return values

    def loaded(self) -> None:
        """Note that the tensors have the values of the variables."""
        self._changed_here = False
        if self._own is None:
            self._own = self._made_own()
        else:
            self._own.paused = False
            self._own.mark()

    def _arrays(self) -> "OwnArrays | None":
        own = self._own
        if own is not None and (self._trained.moved or self._others.moved):
            # The program has replaced the memory of a tensor, whose values count.
            self._may_move = True
            own = self._own = self._made_own() if own.are_current else None
        return own

    def _made_own(self) -> "OwnArrays | None":
        if self._alone is None:
            return None
        trained, others = self._trained.arrays(), self._others.arrays()
        if trained is None or others is None:
            return None
        variables = self._store.variables
        return self._alone.arrays(
            [(variables[name], array) for name, array in trained.items()],
            [(variables[name], array) for name, array in others.items()],
            adopt=self._on_servers,
        )
