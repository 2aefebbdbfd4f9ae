"""Keras 3: a compiled model whose weights all workers share.

The model stays the object it was: ``fit``, ``evaluate``, ``predict`` and ``train_on_batch`` are
Keras' own, callbacks see the model, files are Keras'.
"""

from typing import Any

from ..core.errors import ConfigurationError
from ..distribute.strategies.strategy import Strategy
from .keras_weights import ATTRIBUTE, SharedWeights
from .own_optimizer import Deltas

__all__ = ["SharedWeights", "distribute", "shared_weights"]


def distribute(
    model: Any,
    strategy: Strategy | None = None,
    *,
    deltas: Deltas = "allow",
    mean: bool = True,
    name: str = "",
) -> Any:
    """Share the weights of a compiled model between all workers of a job.

    ::

        strategy = wl.distribute.ParameterServerStrategy()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model = wl.training.keras.distribute(model, strategy)
        model.fit(images, labels, epochs=5)

    The model begins with the chief's weights. Every step of ``fit`` and ``train_on_batch`` pushes
    its gradients and goes on with the values that come back; ``evaluate`` and ``predict`` use the
    values of now. An optimizer that has a rule (docs/bridges.md) runs on the servers, any other on
    this worker, whose changes are pushed as deltas.

    Args:
        model: Built and compiled: sequential, functional or subclassed.
        strategy: With one replica in this process; None: the current one.
        deltas: Whether the optimizer may run on the worker: ``allow`` it if it has no rule,
            ``forbid`` it, or ``always``.
        mean: Gradients of workers in sync are averaged; False: added up.
        name: Comes first in the names of the weights; two models with weights of the same path need
            it.

    Returns:
        The same model.

    Raises:
        MissingExtraError: Keras or JAX is not installed.
        ConfigurationError: The model is not built or not compiled; Keras does not run on JAX; the
            strategy has several replicas in this process; the optimizer has no rule, and deltas are
            forbidden, or has made steps already.
        DefinitionMismatchError: Another task's model has a weight of this name and another shape,
            or another optimizer.
        JoinTimeoutError: The chief's model has not a weight of this name.
    """
    SharedWeights(model, strategy, deltas=deltas, mean=mean, name=name)
    return model


def shared_weights(model: Any) -> SharedWeights:
    """What ``distribute`` made of a model.

    Raises:
        ConfigurationError: The model was not given to it.
    """
    found = getattr(model, ATTRIBUTE, None)
    if found is None:
        raise ConfigurationError(
            f"{model.name!r} shares no weights; give it to wl.training.keras.distribute first"
        )
    return found  # type: ignore[no-any-return]
