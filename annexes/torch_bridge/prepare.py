"""PyTorch: what a program trains with, each thing as one of several workers needs it."""

import math
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from .loaders import worker_loader
from .optimizer import DistributedOptimizer

torch: Any = require("torch", "torch")


def prepare(strategy: Strategy, *things: Any, train: bool | None = None) -> Any:
    """Make what a PyTorch program trains with one worker's part of a job.

    ::

        strategy = rw.distribute.ParameterServerStrategy()
        module, optimizer, loader = rw.training.torch.prepare(strategy, module, optimizer, loader)

    Without a cluster the program computes what it computed before. The random numbers of PyTorch
    (dropout, augmentation) are seeded anew on every worker but the first: with the program's seed
    and the worker's number added to it.

    Args:
        strategy: Strategy with one replica in this process.
        things: Objects to prepare, in any order and number:

            - a ``torch.nn.Module``, returned as it is: it gives its parameters their names, which
              begin with its number if there are several;
            - an optimizer of their parameters: returned as a :class:`DistributedOptimizer`;
            - a ``DataLoader``: returned as a :class:`WorkerLoader`, whose epoch is this worker's
              part of the dataset: one that shuffles trains, and has as many batches on every
              worker; one in order evaluates, and has each example once;
            - a scheduler of a given optimizer that is stepped once after each step of the
              optimizer: returned as a :class:`JobScheduler`. Keep one that is stepped once per
              epoch as it is: an epoch of all workers is one of the job.
        train: Whether the given loaders train (True), or evaluate (False), whether they shuffle or
            not; None: by that.

    Returns:
        Objects in the place of those that were given, in that order; for one thing, itself.

    Raises:
        TypeError: One of them is none of these.
        ConfigurationError: A loader draws its examples in a way that cannot be divided, or has too
            few for each worker's first batch; or the optimizer cannot be shared:
            :class:`DistributedOptimizer`.
    """
    modules = [thing for thing in things if isinstance(thing, torch.nn.Module)]
    optimizers = {
        id(thing): _shared(thing, strategy, modules)
        for thing in things
        if isinstance(thing, torch.optim.Optimizer)
    }
    prepared = [_prepared(thing, strategy, optimizers, train) for thing in things]
    worker = strategy.extended.input_pipeline_id
    if worker:
        torch.manual_seed((torch.initial_seed() + worker) % 2**63)
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def _shared(optimizer: Any, strategy: Strategy, modules: list[Any]) -> DistributedOptimizer:
    if len(modules) <= 1:
        return DistributedOptimizer(optimizer, strategy, module=next(iter(modules), None))
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for number, module in enumerate(modules):
        if trained <= {id(parameter) for parameter in module.parameters()}:
            return DistributedOptimizer(optimizer, strategy, module=module, name=str(number))
    return DistributedOptimizer(optimizer, strategy, module=torch.nn.ModuleList(modules))


def _prepared(
    thing: Any,
    strategy: Strategy,
    optimizers: dict[int, DistributedOptimizer],
    train: bool | None,
) -> Any:
    if isinstance(thing, torch.nn.Module):
        return thing
    if id(thing) in optimizers:
        return optimizers[id(thing)]
    if isinstance(thing, torch.utils.data.DataLoader):
        return worker_loader(thing, strategy, train=train)
    if isinstance(thing, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise TypeError(
            "prepare takes no ReduceLROnPlateau, which looks at this worker's own metric: keep it "
            "as it is, and give every worker the same metric"
        )
    if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        optimizer = optimizers.get(id(thing.optimizer))
        if optimizer is None:
            raise TypeError(
                f"prepare was given a {type(thing).__name__} without its optimizer; give both, "
                "the optimizer as torch made it"
            )
        return JobScheduler(thing, optimizer)
    raise TypeError(
        f"prepare takes modules, optimizers, DataLoaders and schedulers of PyTorch, not "
        f"{type(thing).__name__}"
    )


class JobScheduler:
    """A scheduler that counts the updates of its optimizer, by all workers and in earlier runs.

    Anything but :meth:`step` is an attribute of the scheduler.

    Args:
        scheduler: Made with the optimizer before it was shared.
        optimizer: The shared one.

    Raises:
        ValueError: The scheduler was made after the optimizer was shared.
    """

    def __init__(self, scheduler: Any, optimizer: DistributedOptimizer) -> None:
        if optimizer.updates is None:
            raise ValueError(
                f"this {type(scheduler).__name__} was made after its optimizer was shared, which "
                "counts no updates for it: make it before, or step it as it is"
            )
        self._scheduler, self._updates = scheduler, optimizer.updates
        self._own = self._updates.own
        self._total = getattr(scheduler, "last_epoch", 0)
        self._follow()

    def step(self) -> None:
        """Go on by the updates that were made since.

        Raises:
            ConfigurationError: The optimizer has not stepped exactly once since the last call.
        """
        updates = self._updates
        steps = updates.own - self._own
        if not steps and updates.is_scaled:  # PyTorch, too, counts a step that is left out
            updates.add()
        elif steps != 1:
            kind = type(self._scheduler).__name__
            raise ConfigurationError(
                f"{kind}.step() was called after {steps} steps of its optimizer, and a scheduler "
                "that prepare was given counts its steps by all workers: call it after each one, "
                "or, where its unit is the epoch, leave it out of prepare"
            )
        self._own = updates.own
        self._follow()

    def _follow(self) -> None:
        total = int(self._updates.total)
        last = getattr(self._scheduler, "total_steps", math.inf)  # some refuse to go beyond
        for _ in range(self._total, total):
            if getattr(self._scheduler, "last_epoch", 0) < last:
                self._scheduler.step()
        self._total = max(self._total, total)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
