"""A model's own ``train_step`` on JAX, with something else in the place of its optimizer."""

from collections.abc import Callable
from typing import Any

from ...core.errors import ConfigurationError
from ...core.terminal import counted
from .loop_state import plainly

StatelessApply = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Type of Keras' ``stateless_apply``: the optimizer's state, gradients and weights in, new weights
and a new state out.
"""


def train_step_with(
    apply: StatelessApply, model: Any, optimizer: Any, state: Any, data: Any
) -> tuple[Any, tuple[Any, Any, Any, Any]]:
    """Call ``model.train_step``.

    Args:
        apply: Function called in the place of ``optimizer.stateless_apply``.
        model: The Keras model.
        optimizer: Optimizer of the model.
        state: The whole state, as Keras hands it to ``train_step``.
        data: A batch.

    Returns:
        Logs, and the new state, as ``train_step`` returns them.

    Raises:
        ConfigurationError: It does not call ``stateless_apply`` once, or returns other weights.
    """
    weights_made: list[Any] = []

    def once(of_optimizer: Any, gradients: Any, trainable: Any) -> tuple[Any, Any]:
        new, of_optimizer = apply(of_optimizer, gradients, trainable)
        weights_made.append(new)
        return new, of_optimizer

    object.__setattr__(optimizer, "stateless_apply", once)
    try:
        logs, (trainable, *others) = model.train_step(state, data)
    finally:
        object.__delattr__(optimizer, "stateless_apply")
    if len(weights_made) != 1 or trainable is not weights_made[0]:
        raise ConfigurationError(
            f"train_step of {type(model).__name__} has to call "
            "self.optimizer.stateless_apply once and return the weights that it gives; it "
            f"called it {counted(len(weights_made), 'time')}"
        )
    non_trainable, of_optimizer, metrics = others
    return logs, (trainable, non_trainable, of_optimizer, metrics)


def kerases_own(optimizer: Any) -> StatelessApply:
    """Return the optimizer's ``stateless_apply`` as Keras has it, shared or not."""

    def apply(of_optimizer: Any, gradients: Any, trainable: Any) -> tuple[Any, Any]:
        with plainly():
            new: tuple[Any, Any] = type(optimizer).stateless_apply(
                optimizer, of_optimizer, gradients, trainable
            )
        return new

    return apply
