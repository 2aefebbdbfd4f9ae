"""Keras, and which framework it runs on."""

from types import ModuleType
from typing import Any

from ...core.errors import ConfigurationError, MissingExtraError
from ...training.extras import require

EXTRAS = {"jax": "keras", "torch": "keras,torch", "tensorflow": "keras,tensorflow"}
"""The frameworks that Keras trains on here, and the extras that install both."""


def import_keras() -> ModuleType:
    """Keras.

    Raises:
        MissingExtraError: It is not installed, or the framework that it shall run on is not; says
            which extra to install.
    """
    try:
        return require("keras", "keras")
    except MissingExtraError:
        raise
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        raise MissingExtraError(
            f"Keras is to run on {missing} (KERAS_BACKEND), which is not installed: "
            f"pip install 'ropewalk[{EXTRAS[missing]}]', or choose another with KERAS_BACKEND",
            module=missing,
            extra=EXTRAS[missing],
        ) from error


keras: Any = import_keras()


def framework_of_keras() -> str:
    """Name the framework that Keras runs on: ``jax``, ``torch`` or ``tensorflow``.

    Raises:
        ConfigurationError: Another one, which trains nothing.
    """
    name = str(keras.backend.backend())
    if name not in EXTRAS:
        raise ConfigurationError(
            f"Keras runs on {name}, which derives no gradients; set KERAS_BACKEND to "
            f"{', '.join(EXTRAS)} before Keras is imported"
        )
    return name


def looks_for_shapes() -> bool:
    """Return whether Keras calls layers for the shapes of their outputs alone, while it builds a
    model.
    """
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return bool(in_symbolic_scope())


def build_on_first_batch(model: Any) -> None:
    """Have Keras make a model's weights before its first step, rather than in it.

    On TensorFlow it does so under a strategy of tf.distribute; the default one will do.
    """
    if framework_of_keras() == "tensorflow" and model._distribute_strategy is None:
        import tensorflow as tf

        model._distribute_strategy = tf.distribute.get_strategy()
