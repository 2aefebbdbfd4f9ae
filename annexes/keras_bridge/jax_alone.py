"""Keras on JAX with an optimizer on this worker, where no other process has the weights.

A step is then the model's own, compiled as a whole as Keras compiles it: nothing has to leave the
device. The store is given weights and the optimizer's state when it is asked for them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.arrays.dtypes import Array
from ..jax_bridge.on_device import StepsOnDevice

if TYPE_CHECKING:
    from .weights import SharedWeights

CompiledStep = Callable[[Any, Any], tuple[Any, tuple[Any, Any, Any, Any]]]


class WholeSteps:
    """Makes steps that are compiled as a whole.

    Args:
        weights: Shared weights of the model.
    """

    def __init__(self, weights: "SharedWeights") -> None:
        self._weights = weights
        self._of_optimizer: Any = ()  # its state after the last step
        names = [*weights.variables, *([] if weights.kept is None else weights.kept.names)]
        self._steps = StepsOnDevice(weights.store, names, self._values)

    def step(
        self, compiled: CompiledStep, state: Any, data: Any, names: Callable[[Any], dict[str, Any]]
    ) -> tuple[Any, tuple[Any, Any, Any, Any]] | None:
        """Make a step, if that can be done here.

        Args:
            compiled: The model's ``train_step``.
            state: State that Keras hands over.
            data: A batch.
            names: Picks out of a new state what the job shares, by name.

        Returns:
            Logs and the new state; without a change but for metrics, where the weights would be NaN
            or infinite. None: nothing was done, the step is one for the store's ``exchange``.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        shared, logs, new, arrays = self._weights.shared, None, state, {}

        def update() -> Mapping[str, Any]:
            nonlocal logs, new, arrays
            logs, new = compiled(state, data)
            arrays = names(new)
            return arrays

        def commit(on_host: dict[str, Array]) -> None:
            shared.values.update(on_host)
            shared.marks.update(arrays)
            self._of_optimizer = new[2]
            if self._weights.kept is not None:
                self._weights.kept.steps += 1

        counts = self._steps.step(update, commit)
        if counts is None:
            return None
        self._weights.steps += 1
        return logs, new if counts else (*state[:3], new[3])

    def loaded(self) -> None:
        """Note that the model has the values of the store."""
        self._steps.loaded()

    def _values(self) -> Mapping[str, Array]:
        return self._weights.values_now(lambda: self._of_optimizer)
