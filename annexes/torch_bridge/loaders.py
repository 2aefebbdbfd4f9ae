"""PyTorch: a worker's part of a ``DataLoader``, and what puts the parts together again.

What trains has as many batches on every worker, so that those in sync make as many steps: where the
examples cannot be divided evenly, some come twice. What evaluates has each example once, since a
metric over some examples twice is another number.
"""

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.errors import ConfigurationError
from ...core.step_times import timed
from ...distribute.base.values import map_structure
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from ...training.in_sync import workers_in_sync
from .tensors import to_array, to_tensor

torch: Any = require("torch", "torch")

log = logging.getLogger(__name__)


class WorkerLoader(torch.utils.data.DataLoader):  # type: ignore[misc]
    """A worker's part of a ``DataLoader``.

    One that trains has in each epoch another permutation, divided by workers, and as many batches
    on every worker; if the dataset cannot be divided evenly, a few examples come twice
    (``torch.utils.data.DistributedSampler``), which a line of the log says. One that evaluates has
    each example on one worker and once, so workers' numbers of batches may differ by one.

    The sampler goes on to the next permutation by itself, so a loader that another library makes of
    this one divides its epochs alike.

    Args:
        loader: Loader of a map-style dataset, in order or with ``shuffle=True``.
        workers: Parts.
        worker: Number of this worker's part.
        train: Whether it trains; False: it evaluates. None: it trains if it shuffles.

    Raises:
        ConfigurationError: The loader has a sampler of its own, or an iterable dataset; or
            ``drop_last`` would leave a worker without a batch.
    """

    def __init__(
        self, loader: Any, workers: int, worker: int, *, train: bool | None = None
    ) -> None:
        refused = _why_not(loader)
        if refused:
            raise ConfigurationError(
                f"this DataLoader cannot be divided by workers: {refused}. Divide it yourself by "
                "strategy.extended.input_pipeline_id of strategy.extended.num_input_pipelines, and "
                "leave it out of prepare"
            )
        generator = loader.generator
        shuffles = isinstance(loader.sampler, torch.utils.data.RandomSampler)
        sampler = _WorkerSampler(
            loader.dataset,
            num_replicas=workers,
            rank=worker,
            shuffle=shuffles,
            seed=0 if generator is None else generator.initial_seed() % 2**62,
            drop_last=bool(loader.drop_last),
        )
        if not (shuffles if train is None else train):
            sampler.give_each_once()
        kept = (
            "dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last",
            "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
            "persistent_workers",
        )  # fmt: skip
        super().__init__(sampler=sampler, **{name: getattr(loader, name) for name in kept})
        self._require_batches()

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, of which each step measures how long it waits for its batch."""
        return timed(super().__iter__())

    @property
    def fewest_batches(self) -> int:
        """Number of batches of the worker with the smallest part."""
        return self._batches_of(self.sampler.smallest_part)

    @property
    def most_batches(self) -> int:
        """Number of batches of the worker with the largest part."""
        return self._batches_of(self.sampler.largest_part)

    def _batches_of(self, examples: int) -> int:
        batch = self.batch_size or 1
        return examples // batch if self.drop_last else math.ceil(examples / batch)

    def _require_batches(self) -> None:
        """Refuse that ``drop_last`` leaves a worker nothing; tell what cannot be divided evenly.

        Raises:
            ConfigurationError: It does.
        """
        sampler = self.sampler
        examples, workers = len(self.dataset), sampler.num_replicas
        if self.drop_last and examples and not self.fewest_batches:
            raise ConfigurationError(
                f"of {examples} examples for {workers} workers one has {sampler.smallest_part}, "
                f"fewer than a batch of {self.batch_size}, and drop_last=True leaves out what "
                "fills no batch: this loader would be empty. Take a smaller batch_size, fewer "
                "workers, or drop_last=False"
            )
        if sampler.total_size > examples:
            log.info(
                "of %d examples for %d workers each has %d in an epoch, so that all make as many "
                "steps; repeated: %d",
                examples, workers, len(sampler), sampler.total_size - examples,
            )  # fmt: skip
        elif examples and not len(sampler):
            log.warning(
                "this worker has none of %d examples for %d workers: its loader has no batch",
                examples, workers,
            )  # fmt: skip


class _WorkerSampler(torch.utils.data.DistributedSampler):  # type: ignore[misc]
    """A sampler of another permutation each time, without a call of ``set_epoch``."""

    def give_each_once(self) -> None:
        """Give each example once, also where the workers' parts differ in length."""
        self.drop_last = True  # of nothing: all of them are divided
        self.total_size = len(self.dataset)
        self.num_samples = len(range(self.rank, self.total_size, self.num_replicas))

    @property
    def smallest_part(self) -> int:
        """Number of examples of the worker that has the fewest."""
        return int(self.total_size // self.num_replicas)

    @property
    def largest_part(self) -> int:
        """Number of examples of the worker that has the most."""
        return -int(-self.total_size // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Begin the next epoch."""
        indices: Iterator[int] = super().__iter__()
        self.epoch += 1
        return indices


def _why_not(loader: Any) -> str:
    """Say why a loader cannot be divided; empty: it can."""
    data = torch.utils.data
    if isinstance(loader.dataset, data.IterableDataset):
        return "its dataset is iterable, and nobody knows how much it holds"
    if loader.batch_size is not None and type(loader.batch_sampler) is not data.BatchSampler:
        return f"it has a batch_sampler of its own ({type(loader.batch_sampler).__name__})"
    if loader.batch_size is None and loader.batch_sampler is not None:
        return f"it has a batch_sampler of its own ({type(loader.batch_sampler).__name__})"
    sampler = loader.sampler
    if type(sampler) is data.SequentialSampler:
        return ""
    if type(sampler) is not data.RandomSampler:
        return f"it has a sampler of its own ({type(sampler).__name__})"
    if sampler.replacement or sampler.num_samples != len(loader.dataset):
        return "its RandomSampler draws with replacement, or not as many as there are"
    return ""


def worker_loader(loader: Any, strategy: Strategy, *, train: bool | None) -> Any:
    """Make this worker's part of a loader; the loader itself if there is one worker."""
    extended = strategy.extended
    workers, worker = extended.num_input_pipelines, extended.input_pipeline_id
    if workers == 1:
        return loader
    part = WorkerLoader(loader, workers, worker, train=train)
    fewest, most = part.fewest_batches, part.most_batches
    if workers_in_sync(strategy) > 1 and fewest < most:
        log.info(
            "each of %d examples comes once, so some workers in sync have %d batches and others "
            "%d: in the last one, what all workers do together (optimizer.step, gather) would wait "
            "for those that are through. Do it after the loop; a loader that trains is given as "
            "many batches everywhere by prepare(…, train=True)",
            len(part.dataset), most, fewest,
        )  # fmt: skip
    return part


def gather_for_metrics(strategy: Strategy, values: Any) -> Any:
    """Gather the rows of all workers in sync, each example's once, on every one of them.

    ::

        predicted = torch.cat([module(x).argmax(1) for x, _ in loader])  # prepared, not shuffled
        predicted = rw.training.torch.gather_for_metrics(strategy, predicted)

    As ``gather_for_metrics`` of Hugging Face's Accelerate, but once, after the loop: workers may
    have different numbers of batches. Each of them calls it. Asynchronous workers, which wait for
    nobody, count with ``rw.metrics``.

    Args:
        strategy: The strategy that was given to :func:`prepare`.
        values: Tensors, also nested ones, with a row for each example of this worker's part.

    Returns:
        Tensors with the rows of all workers, in the order of the dataset if the loader does not
        shuffle.
        shuffle.

    Raises:
        ConfigurationError: The workers are asynchronous.
        RopewalkError: What the other workers, or the links to them, raise.
    """
    if strategy.extended.num_input_pipelines == 1:
        return values
    if workers_in_sync(strategy) == 1:
        raise ConfigurationError(
            "gather_for_metrics puts together what workers in sync have, and the "
            f"{strategy.num_training_tasks} workers of this job are asynchronous: count with "
            "rw.metrics, made in strategy.scope(), and read them after strategy.barrier()"
        )
    return map_structure(lambda tensor: _gathered(strategy, tensor), values)


def _gathered(strategy: Strategy, tensor: Any) -> Any:
    lengths = strategy.gather(np.array([len(tensor)]), 0)
    rows = strategy.gather(to_array(tensor), 0)
    # The first rows of all workers, then the second ones: as the examples were dealt out.
    place = np.concatenate([np.arange(length) for length in lengths])
    return to_tensor(rows[np.argsort(place, kind="stable")]).to(tensor.device)
