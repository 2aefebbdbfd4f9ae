"""A worker's part of the examples of an epoch, for programs that draw their batches themselves."""

from typing import Any

import numpy as np

from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.strategy import Strategy


def worker_part(order: Any, strategy: Strategy | None = None, *, train: bool = True) -> Any:
    """Take this worker's part of an epoch: to train with, as long as every other worker's.

    ::

        rng = np.random.default_rng(0)  # the same permutations on all workers
        for _ in range(epochs):
            order = rw.training.jax.worker_part(rng.permutation(len(x)), strategy)
            for first in range(0, len(order), batch_size):
                batch = x[order[first : first + batch_size]]

    Worker ``i`` of ``n`` has the elements ``i``, ``i + n``, ``i + 2n``, …. If they cannot be
    divided evenly, a few from the beginning come twice, so that workers in sync make as many steps.
    The rule is that of PyTorch's ``torch.utils.data.DistributedSampler``. What evaluates counts
    each once: ``train=False`` repeats none, and parts may differ by one element.

    Args:
        order: Array of NumPy or JAX, shape ``(examples, …)``, the same on all workers: the indices
            of the examples, or the examples.
        strategy: Knows the workers; None: the current one.
        train: Whether elements are repeated to make the parts equal.

    Returns:
        An array of ``ceil(examples / workers)`` elements, of one less on some workers if it is not
        to train with; ``order`` itself if there is one worker.

    Raises:
        ValueError: There are no examples to train with, and several workers.
    """
    extended = (strategy if strategy is not None else get_strategy()).extended
    workers, worker = extended.num_input_pipelines, extended.input_pipeline_id
    if workers == 1:
        return order
    if not train:
        return order[worker::workers]
    examples = len(order)
    if not examples:
        raise ValueError(f"there are no examples to divide among {workers} workers")
    per_worker = -(-examples // workers)
    return order[(worker + workers * np.arange(per_worker)) % examples]
