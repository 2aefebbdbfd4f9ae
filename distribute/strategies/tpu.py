"""TPUStrategy: not here, and what to use instead."""

from typing import NoReturn


def explain(name: str) -> NoReturn:
    """Raise what importing the name says.

    Raises:
        ImportError: Always.
    """
    raise ImportError(
        f"windlass.distribute has no {name}: nobody here has a TPU to test it on. On TPUs use JAX "
        "(jax.sharding, or Keras 3 with keras.distribution.DataParallel); for several CPUs or GPUs "
        "MirroredStrategy, on several machines MultiWorkerMirroredStrategy"
    )
