"""The model, the batches and the timing of the comparison of ``fit``: the same for every system.

It imports no system: the programs of :mod:`benchmarks.fits` give it the Keras that they have.

A step is one batch of each worker. Asynchronous workers make them beside each other, so there it is
the time in which the job makes as many batches as it has workers. Epochs are timed, since a
strategy may hand steps out long before they are made; the first ones are not counted.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORKERS = 2
WARM_UP, EPOCHS = 2, 6


@dataclass(frozen=True)
class FitCase:
    """A network of one hidden layer and Adam.

    Attributes:
        id: Its name in results.
        examples: In a batch of one worker.
        steps: Steps of each worker in an epoch.
    """

    id: str
    examples: int
    inputs: int
    hidden: int
    steps: int


FIT_CASES = [FitCase("fit-small", 64, 64, 64, 200), FitCase("fit-5ms", 512, 256, 768, 40)]


def arrays(case: FitCase) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Random examples of one worker's epoch."""
    rng = np.random.default_rng(0)
    count = case.examples * case.steps
    x, y = rng.standard_normal((count, case.inputs)), rng.standard_normal((count, 10))
    return x.astype(np.float32), y.astype(np.float32)


def compiled(keras: Any, case: FitCase) -> Any:
    """The model, made by any Keras; the same first values everywhere."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((case.inputs,)),
            keras.layers.Dense(case.hidden, "tanh"),
            keras.layers.Dense(10),
        ],
        name=case.id.replace("-", "_"),
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def timer(keras: Any) -> Any:
    """A callback whose ``epochs_s`` are the times of the epochs."""

    class Timer(keras.callbacks.Callback):  # type: ignore[misc]
        """Notes when epochs began and ended."""

        def __init__(self) -> None:
            super().__init__()
            self.epochs_s: list[float] = []
            self._began = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self._began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.epochs_s.append(time.perf_counter() - self._began)

    return Timer()


def result(case: FitCase, epochs_s: list[float], loss: float) -> dict[str, Any]:
    """The figures of a fit; ``loss`` shows that it learned."""
    return {
        "case": case.id,
        "median_ms": statistics.median(epochs_s[WARM_UP:]) / case.steps * 1000,
        "loss": loss,
    }
