"""A compiled Keras model whose weights all workers share: what programs call."""

from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.strategies.default import get_strategy
from ...distribute.strategies.strategy import Strategy
from ...training.own_optimizer import Deltas
from .frameworks import framework_of_keras
from .methods import ATTRIBUTE, DistributedMethods, is_built
from .weights import SharedWeights


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

        strategy = rw.distribute.ParameterServerStrategy()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model = rw.training.keras.distribute(model, strategy)
        model.fit(images, labels, epochs=5)

    The model begins with the chief's weights. Every step of ``fit`` and ``train_on_batch`` pushes
    its gradients and goes on with the values that come back; ``evaluate`` and ``predict`` use the
    values of now. An optimizer that has a rule (docs/bridges.md) runs on the servers, any other on
    this worker, whose changes are pushed as deltas.

    Args:
        model: Compiled: sequential, functional or subclassed. One that is not built shares its
            weights as soon as its first batch has built it.
        strategy: Strategy of the job; None: the current one. Its replicas of this process share a
            batch.
        deltas: Whether the optimizer may run on the worker: ``allow`` it if it has no rule,
            ``forbid`` it, or ``always``.
        mean: Gradients of workers in sync are averaged; False: added up.
        name: Comes first in the names of the weights that no other model shares already.

    Returns:
        The model itself.

    Raises:
        MissingExtraError: Keras or the framework below it is not installed.
        ConfigurationError: The model is not compiled, or distributed already; Keras runs on a
            framework without gradients, or without a device that the strategy names; the
            optimizer has no rule, and deltas are forbidden, or has made steps already.
        DefinitionMismatchError: Another task's model has a weight of this name and another shape,
            or another optimizer.
        JoinTimeoutError: The chief's model has not a weight of this name.
    """
    strategy = strategy if strategy is not None else get_strategy()
    methods = getattr(model, ATTRIBUTE, None)
    options: dict[str, Any] = {"deltas": deltas, "mean": mean, "name": name}
    if methods is not None and methods.strategy is strategy and methods.options == options:
        return model  # by compile, in the strategy's scope
    _check(model)
    DistributedMethods(model, strategy, **options)
    return model


def shared_weights(model: Any) -> SharedWeights:
    """Find what ``distribute`` made of a model.

    Raises:
        ConfigurationError: The model was not given to it, or is not built.
    """
    methods = getattr(model, ATTRIBUTE, None)
    if methods is None:
        raise ConfigurationError(
            f"{model.name!r} shares no weights; give it to rw.training.keras.distribute first"
        )
    if methods.weights is None and is_built(model):
        methods.share()
    if methods.weights is None:
        raise ConfigurationError(
            f"{model.name!r} is not built, so it shares no weights yet; give it a keras.Input, or "
            "train on one batch first"
        )
    return methods.weights  # type: ignore[no-any-return]


def _check(model: Any) -> None:
    """Check that a model can share its weights.

    Raises:
        ConfigurationError: It cannot; says why and what to do.
    """
    framework_of_keras()
    if getattr(model, ATTRIBUTE, None) is not None:
        raise ConfigurationError(
            f"{model.name!r} is distributed already, with other options; a model made in a scope "
            "is distributed by compile: to choose options make it outside of the scope"
        )
    if not model.compiled or model.optimizer is None:
        raise ConfigurationError(
            f"{model.name!r} is not compiled; call compile with an optimizer before it is "
            "distributed"
        )
