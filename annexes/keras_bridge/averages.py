"""State that layers of a Keras model compute while it trains, beside its weights.

Batch norm keeps moving averages, and says by which momentum: all workers share them, and the steps
of all count (``distribute/base/moved_average.py``). What other layers keep (the vector of a
spectral norm, codes of a codebook) is not known to be an average, so it is never mixed while steps
are made: each worker goes on with its own.
"""

from collections.abc import Mapping
from typing import Any

from ...core.arrays.dtypes import Array
from ...distribute.base.moved_average import MovedAverage
from .frameworks import keras

_AVERAGES = ("moving_", "running_")


def state_of(model: Any) -> list[Any]:
    """List the floating-point variables that a model's layers change while it trains.

    Weights that were frozen are not among them.
    """
    variables = {
        id(variable): variable
        for layer in model._flatten_layers()
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    }
    return list(variables.values())


def decays_of(model: Any) -> dict[int, float]:
    """Find the weight of a batch in each moving average, in [0, 1], by the id of its variable."""
    decays: dict[int, float] = {}
    for layer in model._flatten_layers():
        momentum = getattr(layer, "momentum", None)
        if not isinstance(momentum, int | float) or not 0 <= momentum <= 1:
            continue
        decays |= {
            id(variable): 1.0 - momentum
            for variable in layer._non_trainable_variables
            if variable.name.startswith(_AVERAGES) and keras.backend.is_float_dtype(variable.dtype)
        }
    return decays


def moved_and_assigned(
    changed: Mapping[str, Array], before: Mapping[str, Array], averages: Mapping[str, float]
) -> tuple[dict[str, MovedAverage], dict[str, Array]]:
    """Split what a step has changed into averages, of layers that it has trained, and the rest.

    Args:
        changed: Values after the step, by name.
        before: Values before it, by name.
        averages: Weight of a batch in each moving average, by name.
    """
    moved: dict[str, MovedAverage] = {}
    assigned: dict[str, Array] = {}
    for name, after in changed.items():
        decay = averages.get(name)
        if decay is None:
            assigned[name] = after
        else:
            moved[name] = MovedAverage(before[name], after, decay)
    return moved, assigned
