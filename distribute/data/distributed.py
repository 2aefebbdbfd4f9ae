"""Distributed datasets: batches of a program's dataset, per replica of this worker."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...core.step_times import DATA, clock_here
from ...core.terminal import Shown
from ..base.contexts import default_strategy, get_replica_context, in_cross_replica_context
from ..base.devices import is_gpu, place
from ..base.interface import ExtendedInterface
from ..base.values import PerReplica, map_structure, regroup
from .dataset import Dataset
from .iterator import Optional
from .options import InputOptions
from .prefetch import Prefetcher
from .sharding import as_arrays, empty_like

Opener = Callable[[int, int], Iterator[list[Any]]]
"""Opens the steps from a number on, in the pass with a number: lists of one batch per replica,
shorter when data run out."""

Move = Callable[[int, Any], Any]
"""Takes a batch to the device of the replica with this number."""


def to_devices(extended: ExtendedInterface, options: InputOptions) -> Move:
    """Make the function that takes a batch to its replica: CuPy arrays on a GPU, unless that is not
    wanted.
    """
    devices = extended.batch_devices
    if not options.experimental_fetch_to_device or not any(map(is_gpu, devices)):
        return lambda _, batch: batch
    return lambda replica, batch: map_structure(
        lambda leaf: place(leaf, devices[replica]), as_arrays(batch)
    )


@dataclass(frozen=True, slots=True)
class Input:
    """The part of a dataset that this worker gets.

    Attributes:
        open: Opens the pipeline.
        datasets: Datasets that it is made of: one, or one per replica.
        options: Options: how far it is prepared ahead.
    """

    open: Opener
    datasets: list[Dataset]
    options: InputOptions

    @property
    def infinite(self) -> bool:
        """Whether it never ends."""
        return all(dataset.node.infinite for dataset in self.datasets)

    @property
    def once(self) -> bool:
        """Whether it cannot be opened a second time."""
        return any(dataset.node.once for dataset in self.datasets)

    def spec(self, replicas: int) -> Any:
        """Describe one replica's batch by an ArraySpec per leaf; PerReplica with several
        replicas.
        """
        spec = self.datasets[0].element_spec
        if replicas == 1:
            return spec
        return map_structure(lambda leaf: PerReplica([leaf] * replicas), spec)


class DistributedDataset(Shown):
    """A dataset split over replicas, to iterate over. As ``tf.distribute.DistributedDataset``.

    Args:
        extended: ``extended`` of the strategy whose replicas share the dataset.
        source: Source of their batches.
        distribute: Makes the dataset from ``extended`` and ``given``; a worker that it is sent to
            makes it again, for its own replicas.
        given: The dataset or function that the program passed to be distributed.
    """

    def __init__(
        self,
        extended: ExtendedInterface,
        source: Input,
        distribute: Callable[..., "DistributedDataset"],
        given: Any,
    ) -> None:
        self._extended = extended
        self._source = source
        self._distribute = distribute
        self._given = given

    def __reduce__(self) -> tuple[Callable[..., "DistributedDataset"], tuple[Any, ...]]:
        return self._distribute, (self._extended, self._given, self._source.options)

    def _shown(self) -> dict[str, Any]:
        return _shown(self._extended, self._source)

    @property
    def element_spec(self) -> Any:
        """ArraySpec per leaf of one replica's batch; PerReplica with several replicas."""
        return self._source.spec(len(self._extended.replica_devices))

    @property
    def cardinality(self) -> int:
        """Number of batches of the dataset of which this worker's steps are made.

        ``INFINITE_CARDINALITY`` or ``UNKNOWN_CARDINALITY`` where there is no such number.
        """
        return min(dataset.cardinality() for dataset in self._source.datasets)

    def __iter__(self) -> "DistributedIterator":
        return DistributedIterator(self._extended, self._source)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Compute ``state = reduce_func(state, element)`` over all elements; the last state."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state


def own_batches(dataset: DistributedDataset) -> "DistributedIterator":
    """Begin a pass over this worker's part, which ends where it ends.

    For a framework that goes through its input in a thread of its own, where a call of all workers
    would come out of turn.
    """
    return DistributedIterator(dataset._extended, dataset._source, agrees=False)


class DistributedIterator(Shown):
    """Iterates over a distributed dataset, as ``tf.distribute.DistributedIterator``. Not
    thread-safe.

    Its place can be kept (``state_dict``) and found again (``load_state_dict``), also in another
    process.

    Args:
        extended: ``extended`` of the strategy.
        source: Source of its replicas' batches.
        agrees: Whether synchronous workers end together, for which each element is a call of all.
    """

    def __init__(self, extended: ExtendedInterface, source: Input, *, agrees: bool = True) -> None:
        self._extended, self._agrees = extended, agrees
        self._move = to_devices(extended, source.options)
        self._source = source
        self._pass = source.datasets[0].passes.next(extended)
        self._taken = 0
        self._steps: Iterator[list[Any]] | None = None
        self._template: Any = None
        self._ended = False  # this worker's data
        self._over = False  # everybody's

    def _shown(self) -> dict[str, Any]:
        return {"taken": self._taken, **_shown(self._extended, self._source)}

    @property
    def element_spec(self) -> Any:
        """Spec of an element, as the dataset's."""
        return self._source.spec(len(self._extended.replica_devices))

    def __iter__(self) -> "DistributedIterator":
        return self

    def __next__(self) -> Any:
        if in_cross_replica_context():
            self._extended.require_scope("next(iterator)")
        step = self.get_next_as_optional()
        if not step.has_value():
            raise StopIteration
        return step.get_value()

    def get_next(self) -> Any:
        """Take the next element.

        Raises:
            StopIteration: After the last (TensorFlow: OutOfRangeError).
            RuntimeError: In the scope of another strategy.
        """
        return next(self)

    def get_next_as_optional(self) -> Optional:
        """Take the next element, or an Optional without a value after the last.

        Synchronous workers end together: one that runs out first goes on with empty batches.

        Raises:
            ValueError: Inside a replica function: iterate outside, and pass the element to ``run``.
        """
        context = get_replica_context()
        if context is not None and context.strategy is not default_strategy():
            raise ValueError(
                "next(iterator) of a distributed dataset inside a replica function; iterate "
                "outside of it and pass the element to strategy.run"
            )
        clock = clock_here()
        began = clock.begin()
        element = self._next_element()
        clock.end(DATA, began)
        return element

    def _next_element(self) -> Optional:
        if self._over:
            return Optional()  # the others are not there any more to be asked
        batches: list[Any] = [] if self._ended else self._next_batches()
        extended = self._extended
        in_step = self._agrees and extended.num_replicas_in_sync > len(extended.replica_devices)
        infinite = self._source.infinite
        if infinite and in_step and not batches:
            raise ValueError(
                "this worker's part of an endless dataset ended, and the workers that train with "
                "it do not expect an end. Give every worker at least one batch: check the sharding "
                "of the input"
            )
        has_data = bool(batches)
        if in_step and not infinite:
            has_data = self._extended.any_worker(has_data)
        if not has_data:
            self._over = True
            return Optional()
        self._taken += 1
        without = range(len(batches), len(self._extended.replica_devices))
        batches = batches + [self._move(replica, self._empty()) for replica in without]
        return Optional(
            regroup(batches, always_wrap=True) if len(batches) > 1 else batches[0], True
        )

    def _next_batches(self) -> list[Any]:
        if self._steps is None:
            source = self._source.open(self._taken, self._pass)
            depth = self._source.options.experimental_per_replica_buffer_size
            fresh = all(dataset.node.fresh for dataset in self._source.datasets)
            self._steps = Prefetcher(source, depth, fresh=fresh) if depth else source
        batches: list[Any] = next(self._steps, [])
        if batches:
            self._template = batches[0]
        self._ended = not batches
        return batches

    def _empty(self) -> Any:
        """Make a batch without examples, for a replica that gets none."""
        if self._template is None:
            # It never had any, or was resumed after the last one.
            self._template = self._source.datasets[0].node.example()
        if self._template is None:
            raise ValueError(
                "this worker's input is empty while others have data, so nothing is known of its "
                "batches. Give every worker at least one batch: check the sharding of the input"
            )
        return empty_like(self._template)

    def state_dict(self) -> dict[str, int]:
        """Return the position and the order: of use to an iterator of the same dataset and
        strategy.
        """
        return {"steps": self._taken, "pass": self._pass}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where an iterator was when it gave ``state``.

        Raises:
            ValueError: Its dataset can be gone through once, and is beyond that already.
        """
        steps = int(state["steps"])
        if self._source.once and self._steps is not None:
            self._go_on_to(steps)
            return
        self._close_steps()
        self._ended = self._over = False
        self._taken = steps
        self._pass = int(state.get("pass", self._pass))

    def _close_steps(self) -> None:
        if isinstance(self._steps, Prefetcher):
            self._steps.close()
        self._steps = None

    def _go_on_to(self, steps: int) -> None:
        """Skip steps of a source that can be read once only, and so cannot be opened anew."""
        if steps < self._taken:
            raise ValueError(
                f"the iterator is at step {self._taken} of a dataset that can be gone through "
                f"once, and cannot go back to step {steps}. Make the dataset of a function that "
                "returns the generator, instead of the generator"
            )
        while self._taken < steps and not self._ended:
            self._next_batches()
            self._taken += 1
        self._taken, self._over = steps, False


__all__ = ["DistributedDataset", "DistributedIterator", "Optional"]


def _shown(extended: ExtendedInterface, source: Input) -> dict[str, Any]:
    return {"replicas": len(extended.replica_devices), "dataset": source.datasets[0]}
