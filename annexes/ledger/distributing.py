"""Distributed datasets with a ledger: ``experimental_distribute_dataset(data, ledger="train")``.

A thread of the iterator asks for ranges and reads their batches ahead; the program's thread says,
when it takes the next batch, that the step of the last one is made. In between, all that the
program pushes advances the range's mark on every ps, and so counts once.
"""

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from ...client.ps.step import Advance
from ...core.errors import ConfigurationError
from ...distribute.base.interface import ExtendedInterface
from ...distribute.data.dataset import Dataset
from ...distribute.data.distributed import (
    DistributedDataset,
    DistributedIterator,
    Input,
    to_devices,
)
from ...distribute.data.node import Index
from ...distribute.data.options import InputOptions
from ...distribute.data.sharding import cut
from ...distribute.strategies.parameter_server import ParameterServerExtended
from .asking import Closed, RangeAsker, WorkerNews
from .leases import Leases, RangeLease
from .plan import Plan, RangePlace, shuffled
from .progress import Leased, PsProgress

_DEFAULT = InputOptions()


class LedgerStep(list[Any]):
    """Batches of one step, one for each replica.

    Attributes:
        lease: Range that they are of.
        start: Number of examples of the range before them.
        is_last: Whether no step of the range follows.
    """

    lease: RangeLease
    start: int
    is_last: bool


def distribute(
    extended: ExtendedInterface, dataset: Dataset, options: InputOptions | None, name: str
) -> "LedgerDataset":
    """Distribute a dataset whose examples are each trained once; see ``docs/ledger.md``.

    Args:
        extended: Algorithms of the strategy.
        dataset: Batches of ``from_arrays`` or ``from_index``, of which each may be mapped.
        options: Options of how it is prepared ahead.
        name: Name of the ledger.

    Raises:
        ConfigurationError: The strategy has no parameter servers, or the dataset no index.
    """
    if not isinstance(extended, ParameterServerExtended):
        raise ConfigurationError(
            f"the ledger {name!r} is kept on parameter servers: it is for ParameterServerStrategy"
        )
    index = dataset.node.index
    if index is None:
        raise ConfigurationError(
            f"the ledger {name!r} leases examples by their numbers, and this dataset has none; "
            "make it with rw.data.from_arrays or rw.data.from_index, and map its batches at most"
        )
    if not name.isprintable() or "/" in name:
        raise ConfigurationError(f"a ledger cannot be called {name!r}: '/' separates its parts")
    return LedgerDataset(extended, dataset, index, options or _DEFAULT, name)


class LedgerDataset(DistributedDataset):
    """A dataset of which each example is trained once in each epoch, by whichever worker.

    Args:
        extended: Algorithms of the strategy.
        dataset: The program's dataset.
        index: Index of the dataset.
        options: Options of how it is prepared ahead.
        name: Name of the ledger.
    """

    def __init__(
        self,
        extended: ParameterServerExtended,
        dataset: Dataset,
        index: Index,
        options: InputOptions,
        name: str,
    ) -> None:
        super().__init__(extended, Input(_not_opened, [dataset], options), distribute, dataset)
        self._servers, self._index, self._name = extended, index, name
        self._passes = count()
        self._last: LedgerIterator | None = None
        examples = index.examples
        if index.drop_remainder:
            examples -= examples % index.batch
        if examples < 1:
            raise ConfigurationError(f"the ledger {name!r} has no batch to train")
        self._plan = Plan(examples, index.batch, index.seed, index.shuffle)
        self._progress: PsProgress | None = None
        self._alone = Leases(self._plan.ranges)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the ledger {self._name!r} leases examples to the workers that run the program; the "
            "workers of a coordinator have none"
        )

    def __iter__(self) -> "LedgerIterator":
        if self._last is not None:
            self._last.close()
        if self._progress is None:
            self._servers.created.define()
            self._progress = PsProgress(self._servers.runtime, self._name, self._plan)
        closing = threading.Event()
        asker = RangeAsker(
            self._servers.runtime, self._name, self._plan, self._progress.read, closing, self._alone
        )
        work = LedgerWork(self._servers, self._plan, self._index, self._progress, asker, closing)
        options = self._source.options
        source = replace(self._source, open=lambda _, number: work.steps(number, options))
        self._last = LedgerIterator(self._servers, source, work, next(self._passes))
        return self._last


def _not_opened(start: int, number: int) -> Iterator[list[Any]]:  # noqa: ARG001
    raise ConfigurationError(
        "a dataset with a ledger is for a loop of your own, which makes the step of a batch before "
        "it takes the next one; a framework that goes through its input in a thread of its own, as "
        "fit of Keras does, cannot say which examples a push is of"
    )


@dataclass(slots=True)
class _Current:
    """The step that the program makes now.

    Attributes:
        pushes: Number of pushes that it has made.
    """

    step: LedgerStep
    pushes: int = 0


class LedgerWork:
    """The work of one iterator: ranges that are asked for, read, trained and told of.

    Args:
        servers: Algorithms of the strategy.
        plan: The plan.
        index: Reads the examples.
        progress: Progress on the ps.
        asker: Asks for ranges.
        closing: Set when nothing is wanted any more.
    """

    def __init__(
        self,
        servers: ParameterServerExtended,
        plan: Plan,
        index: Index,
        progress: PsProgress,
        asker: RangeAsker,
        closing: threading.Event,
    ) -> None:
        self._servers, self._plan, self._index, self._progress = servers, plan, index, progress
        self._asker, self.closing = asker, closing
        self._lock = threading.Lock()
        self._held: dict[Leased, None] = {}
        self._done: list[Leased] = []
        self._settled: Leased | None = None  # told to the ps with the next push
        self._current: _Current | None = None
        self._advances = False

    # -- the thread that reads ahead ---------------------------------------------------------

    def steps(self, number: int, options: InputOptions) -> Iterator[list[Any]]:
        """Iterate over the steps of a pass, as ranges are leased to this worker."""
        epochs = self._index.epochs
        first = 0 if epochs is None else number * epochs
        try:
            for epoch in count(first) if epochs is None else range(first, first + epochs):
                while (lease := self._asker.take(epoch, self._news)) is not None:
                    with self._lock:
                        self._held[lease[:2]] = None
                    yield from self._steps_of(lease, options)
        except Closed:
            return
        finally:
            self._asker.give_back(WorkerNews(done=self._news().done, given_back=list(self._held)))

    def _news(self) -> WorkerNews:
        with self._lock:
            done, self._done = self._done, []
            return WorkerNews(done, list(self._held))

    def _steps_of(self, lease: RangeLease, options: InputOptions) -> Iterator[LedgerStep]:
        start = self._progress.start_of(lease.epoch, lease.number) if lease.begun else 0
        numbers = np.array(self._plan.positions(lease.number), np.int64)
        if start >= numbers.size:
            self._finish(lease[:2])
            return
        if self._plan.shuffle:
            key = (self._plan.seed % 2**64, lease.epoch)
            numbers = shuffled(numbers, self._plan.examples, key)
        move, replicas = to_devices(self._servers, options), len(self._servers.replica_devices)
        for first in range(start, numbers.size, self._plan.batch):
            batch = self._index.read(numbers[first : first + self._plan.batch])
            pieces = cut(batch, replicas) if replicas > 1 else [batch]
            step = LedgerStep(move(replica, piece) for replica, piece in enumerate(pieces))
            step.lease, step.start = lease, first
            step.is_last = first + self._plan.batch >= numbers.size
            yield step

    # -- the program's thread ----------------------------------------------------------------

    def end_step(self) -> None:
        """Note that the program has made the step of the batch that it was given last."""
        current, self._current = self._current, None
        if current is not None and current.step.is_last:
            self._servers.wait_for_push()
            self._settled = current.step.lease[:2]
            self._finish(self._settled)

    def begin_step(self, step: LedgerStep) -> None:
        """Have all that the program pushes from now on count as a step."""
        self._current = _Current(step)
        if not self._advances:
            self._advances = True
            self._servers.advance_with(self._next_advance)

    def _next_advance(self) -> Advance | None:
        if (current := self._current) is None:
            return None
        current.pushes += 1
        lease, settled = current.step.lease, self._settled
        self._settled = None
        place = RangePlace(lease.epoch, current.step.start)
        return self._progress.advance(lease.number, place, current.pushes, settled)

    def end(self) -> None:
        """Have pushes count nothing any more."""
        self._current = None
        if self._advances:
            self._advances = False
            self._servers.advance_with(None)

    def _finish(self, leased: Leased) -> None:
        with self._lock:
            self._held.pop(leased, None)
            self._done.append(leased)


class LedgerIterator(DistributedIterator):
    """Iterates over the steps that this worker makes of an epoch, and ends when all are made.

    The step of a batch is to be made before the next batch is taken. Not thread-safe.

    Args:
        extended: Algorithms of the strategy.
        source: Source of the steps.
        work: The work behind them.
        number: Number of the pass.
    """

    def __init__(
        self, extended: ExtendedInterface, source: Input, work: LedgerWork, number: int
    ) -> None:
        super().__init__(extended, source, agrees=False)
        self._pass, self._work = number, work
        weakref.finalize(self, work.closing.set)

    def _next_batches(self) -> list[Any]:
        self._work.end_step()
        batches = super()._next_batches()
        if isinstance(batches, LedgerStep):
            self._work.begin_step(batches)
        else:
            self._work.end()
        return batches

    def close(self) -> None:
        """Give back what was not trained. Of the batch that was taken last the ps know that."""
        self._work.closing.set()
        if not self._ended:
            self._work.end()
            self._ended = True
        self._close_steps()

    def state_dict(self) -> dict[str, int]:
        """Return nothing: the ledger knows the place."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the ledger knows the place."""
