"""Random numbers of Keras on several workers: each draws its own, also where all have one seed.

``keras.utils.set_random_seed(0)`` on every worker makes all of them shuffle alike and drop out the
same units, so that several workers learn from the same batches in the same order. Two things are
changed for that, and neither where a process trains alone:

- While ``fit`` runs, the generators that Keras and programs use without naming them (of Python,
  NumPy, PyTorch, TensorFlow) go on from a number that they drew, and the worker's. Afterwards they
  are where they were after that draw, so what a program draws then (folds of its data) is the same
  on all workers again. Python's, of which ``fit`` alone draws nothing, is where it was before: from
  it Keras takes the first values of layers, so a head that is made after a ``fit`` begins as alone.
- A seed generator of a layer has the worker's number in its seed, from when its model is shared.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ...distribute.strategies.strategy import Strategy
from .frameworks import keras

_STEP = 747_796_405  # odd and large: no two workers come to the same numbers by counting
_SEEDS = 2**31
_ATTRIBUTE = "_ropewalk_seed_of_worker"


def seed_of_worker(seed: int, worker: int) -> int:
    """Change the seed on each worker but the first, whose stays. Below 2**31.

    To take it twice gives the seed again.
    """
    return seed ^ (worker * _STEP % _SEEDS)


@contextmanager
def own_numbers(strategy: Strategy) -> Iterator[None]:
    """Let this worker draw other random numbers than the others in here."""
    extended = strategy.extended
    with ExitStack() as stack:
        if extended.num_input_pipelines > 1:
            worker, drawn = extended.input_pipeline_id, np.random.randint(_SEEDS)
            stack.enter_context(_python(worker, drawn))
            stack.enter_context(_numpy(worker, drawn))
            for seeds in (_torch, _tensorflow):
                stack.enter_context(seeds(worker))
        yield


@contextmanager
def _python(worker: int, drawn: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed_of_worker(random.randrange(_SEEDS) ^ drawn, worker))  # noqa: S311 - no secret
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def _numpy(worker: int, drawn: int) -> Iterator[None]:
    state = np.random.get_state()
    np.random.seed(seed_of_worker(drawn, worker))
    try:
        yield
    finally:
        np.random.set_state(state)


@contextmanager
def _torch(worker: int) -> Iterator[None]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    drawn = int(torch.randint(_SEEDS, (), device="cpu"))
    cuda = torch.cuda
    with torch.random.fork_rng([cuda.current_device()] if cuda.is_initialized() else []):
        torch.manual_seed(seed_of_worker(drawn, worker))
        yield


@contextmanager
def _tensorflow(worker: int) -> Iterator[None]:
    """Set the seed of TensorFlow, of which a program can set it and no more: afterwards it is the
    drawn one.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    seed, drawn = (None, None) if tensorflow is None else tensorflow.compat.v1.get_seed(None)
    if seed is None or drawn is None:
        yield  # its numbers differ from process to process
        return
    tensorflow.random.set_seed(seed_of_worker(drawn, worker + 1))
    try:
        yield
    finally:
        tensorflow.random.set_seed(drawn)


def give_own_seeds(layers: Iterable[Any], strategy: Strategy) -> None:
    """Put this worker's number into the seeds of layers; a second call does nothing.

    Args:
        layers: Layers of Keras, whose seed generators have a state ``[seed, count]``.
        strategy: Strategy that knows the worker's number.
    """
    worker = strategy.extended.input_pipeline_id
    if not worker:
        return
    for generator in (generator for layer in layers for generator in layer._seed_generators):
        if not hasattr(generator, _ATTRIBUTE):
            object.__setattr__(generator, _ATTRIBUTE, worker)
            seed, count = keras.ops.convert_to_numpy(generator.state).tolist()
            generator.state.assign([seed_of_worker(seed, worker), count])
