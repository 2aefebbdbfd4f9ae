"""Distributed datasets: batches of a program's dataset, per replica of this worker."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ..base.contexts import default_strategy, get_replica_context
from ..base.devices import is_gpu, place
from ..base.values import PerReplica, map_structure, regroup
from .dataset import Dataset, as_dataset
from .options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from .prefetch import Prefetcher
from .sharding import as_arrays, batch_sizes, cut, deal, empty_like, fill, recut

if TYPE_CHECKING:
    from ..strategies.strategy import Strategy

_DEFAULT = InputOptions()
_Opener = Callable[[int], Iterator[list[Any]]]
"""Opens the steps from a number on: lists of one batch per replica, shorter when data run out."""


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may not be there. As ``tf.experimental.Optional``."""

    _value: Any = None
    _there: bool = False

    def has_value(self) -> bool:
        """Whether there is one."""
        return self._there

    def get_value(self) -> Any:
        """The value.

        Raises:
            ValueError: There is none.
        """
        if not self._there:
            raise ValueError("the Optional has no value")
        return self._value


@dataclass(frozen=True, slots=True)
class _Input:
    """This worker's part of a dataset.

    Attributes:
        open: Opens the pipeline.
        sources: The datasets it is made of: one, or one per replica.
        options: How far it is prepared ahead.
    """

    open: _Opener
    sources: list[Dataset]
    options: InputOptions

    @property
    def infinite(self) -> bool:
        """It never ends."""
        return all(source.infinite for source in self.sources)

    @property
    def once(self) -> bool:
        """It cannot be opened a second time."""
        return any(source.once for source in self.sources)

    def spec(self, replicas: int) -> Any:
        """ArraySpec per leaf of one replica's batch; PerReplica with several replicas."""
        spec = self.sources[0].element_spec
        if replicas == 1:
            return spec
        return map_structure(lambda leaf: PerReplica([leaf] * replicas), spec)


class DistributedDataset:
    """A dataset split over replicas. As ``tf.distribute.DistributedDataset``. Iterate over it, in a loop.

    Args:
        strategy: Whose replicas.
        source: Where their batches come from.
    """

    def __init__(self, strategy: "Strategy", source: _Input) -> None:
        self._strategy = strategy
        self._source = source

    @property
    def element_spec(self) -> Any:
        """ArraySpec per leaf of one replica's batch; PerReplica with several replicas."""
        return self._source.spec(len(self._strategy.extended.replica_devices))

    def __iter__(self) -> "DistributedIterator":
        return DistributedIterator(self._strategy, self._source)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """``state = reduce_func(state, element)`` over all elements; the last state."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state


class DistributedIterator:
    """Iterates over a distributed dataset. As ``tf.distribute.DistributedIterator``. Not thread-safe.

    Its place can be kept (``state_dict``) and found again (``load_state_dict``), also in another process.
    """

    def __init__(self, strategy: "Strategy", source: _Input) -> None:
        self._extended = strategy.extended
        self._move = _to_devices(strategy, source.options)
        self._source = source
        self._taken = 0
        self._steps: Iterator[list[Any]] | None = None
        self._template: Any = None
        self._ended = False  # this worker's data
        self._over = False  # everybody's

    @property
    def element_spec(self) -> Any:
        """As the dataset's."""
        return self._source.spec(len(self._extended.replica_devices))

    def __iter__(self) -> "DistributedIterator":
        return self

    def __next__(self) -> Any:
        step = self.get_next_as_optional()
        if not step.has_value():
            raise StopIteration
        return step.get_value()

    def get_next(self) -> Any:
        """The next element.

        Raises:
            StopIteration: After the last (TensorFlow: OutOfRangeError).
        """
        return next(self)

    def get_next_as_optional(self) -> Optional:
        """The next element, or an Optional without a value after the last.

        Workers in sync end together: who runs out first goes on with empty batches.

        Raises:
            ValueError: Inside a replica function: iterate outside, and pass the element to ``run``.
        """
        context = get_replica_context()
        if context is not None and context.strategy is not default_strategy():
            raise ValueError(
                "next(iterator) of a distributed dataset inside a replica function; iterate outside of "
                "it and "
                "pass the element to strategy.run"
            )
        if self._over:
            return Optional()  # the others are not there any more to be asked
        batches: list[Any] = [] if self._ended else self._next_batches()
        in_step = self._extended.num_replicas_in_sync > len(self._extended.replica_devices)
        infinite = self._source.infinite
        if infinite and in_step and not batches:
            raise ValueError(
                "this worker's part of an endless dataset ended, and the workers in sync with it do not "
                "look out "
                "for an end. Give every worker at least one batch: check the sharding of the input"
            )
        somebody = bool(batches)
        if in_step and not infinite:
            somebody = self._extended.any_worker(somebody)
        if not somebody:
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
            source = self._source.open(self._taken)
            depth = self._source.options.experimental_per_replica_buffer_size
            fresh = all(dataset.fresh for dataset in self._source.sources)
            self._steps = Prefetcher(source, depth, fresh=fresh) if depth else source
        batches: list[Any] = next(self._steps, [])
        if batches:
            self._template = batches[0]
        self._ended = not batches
        return batches

    def _empty(self) -> Any:
        """A batch without examples, for a replica that gets none."""
        if self._template is None:
            # It never had any, or was resumed after the last one.
            self._template = self._source.sources[0].example()
        if self._template is None:
            raise ValueError(
                "this worker's input is empty while others have data, so nothing is known of its "
                "batches. Give every worker at least one batch: check the sharding of the input"
            )
        return empty_like(self._template)

    def state_dict(self) -> dict[str, int]:
        """Where it is: of use to an iterator of the same dataset and strategy."""
        return {"steps": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where an iterator was when it gave ``state``.

        Raises:
            ValueError: Its dataset can be gone through once, and is beyond that already.
        """
        steps = int(state["steps"])
        if self._source.once and self._steps is not None:
            self._go_on_to(steps)
            return
        if isinstance(self._steps, Prefetcher):
            self._steps.close()
        self._steps = None
        self._ended = self._over = False
        self._taken = steps

    def _go_on_to(self, steps: int) -> None:
        """Leave out steps; opened anew, the source would go on where it is and leave them out again."""
        if steps < self._taken:
            raise ValueError(
                f"the iterator is at step {self._taken} of a dataset that can be gone through once, and "
                f"cannot go back to step {steps}. Make the dataset of a function that returns the "
                "generator, instead of the generator"
            )
        while self._taken < steps and not self._ended:
            self._next_batches()
            self._taken += 1
        self._taken, self._over = steps, False


def distribute_dataset(
    strategy: "Strategy", source: Any, options: InputOptions | None
) -> DistributedDataset:
    """What ``experimental_distribute_dataset`` returns."""
    options = options or _DEFAULT
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "`distribute_datasets_from_function`, not in `experimental_distribute_dataset`"
        )
    dataset = as_dataset(source)
    extended = strategy.extended
    replicas = len(extended.replica_devices)
    in_sync = extended.num_replicas_in_sync
    workers, worker = extended.num_input_pipelines, extended.input_pipeline_id
    policy = _resolve(dataset, extended.default_shard_policy)
    dealt = workers > 1 and policy is AutoShardPolicy.DATA
    if workers > 1 or policy is AutoShardPolicy.HINT:
        dataset = _divide(dataset, policy, workers, worker)

    def pieces(start: int) -> tuple[Iterator[Any], int]:
        """Batches of replicas, and how many of them belong to steps before ``start``."""
        if in_sync == 1:
            elements = dataset.iterate(0 if dealt else start)
            return (deal(elements, workers, worker), start) if dealt else (elements, 0)
        if dealt and in_sync > replicas:
            # Every global batch gives each replica of each worker one part.
            parts = chain.from_iterable(cut(b, in_sync) for b in dataset.iterate(start))
            return deal(parts, workers, worker), 0
        size = dataset.batch_size
        if in_sync == replicas:
            # Every batch fills the replicas once: nothing before `start` has to be read.
            elements = dataset.iterate(0 if dealt else start)
            if dealt:
                elements = islice(deal(elements, workers, worker), start, None)
            sizes = batch_sizes(size, 1, replicas, 0) if size is not None else None
            return chain.from_iterable(fill(batch, sizes, replicas) for batch in elements), 0
        elements = dataset.iterate(0)
        if size is None:
            return chain.from_iterable(cut(batch, in_sync) for batch in elements), start * replicas
        return recut(elements, batch_sizes(size, workers, replicas, worker)), start * replicas

    def open_steps(start: int) -> Iterator[list[Any]]:
        found, behind = pieces(start)
        for _ in range(behind):
            next(found, None)
        return _steps_of(found, replicas, _to_devices(strategy, options))

    return DistributedDataset(strategy, _Input(open_steps, [dataset], options))


def distribute_from_function(
    strategy: "Strategy",
    dataset_fn: Callable[[InputContext], Any],
    options: InputOptions | None,
) -> DistributedDataset:
    """What ``distribute_datasets_from_function`` returns."""
    options = options or _DEFAULT
    extended = strategy.extended
    replicas = len(extended.replica_devices)
    per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    if per_replica:
        count = extended.num_input_pipelines * replicas
        first = extended.input_pipeline_id * replicas
        contexts = [
            InputContext(count, first + i, extended.num_replicas_in_sync) for i in range(replicas)
        ]
    else:
        contexts = [
            InputContext(
                extended.num_input_pipelines,
                extended.input_pipeline_id,
                extended.num_replicas_in_sync,
            )
        ]
    datasets: list[Dataset] = [as_dataset(dataset_fn(context)) for context in contexts]

    def open_steps(start: int) -> Iterator[list[Any]]:
        move = _to_devices(strategy, options)
        if not per_replica:
            return _steps_of(datasets[0].iterate(start * replicas), replicas, move)
        return _side_by_side([dataset.iterate(start) for dataset in datasets], move)

    return DistributedDataset(strategy, _Input(open_steps, datasets, options))


_Move = Callable[[int, Any], Any]


def _to_devices(strategy: "Strategy", options: InputOptions) -> _Move:
    """What takes a batch to its replica: CuPy arrays on a GPU, unless that is not wanted."""
    devices = strategy.extended.replica_devices
    if options.experimental_fetch_to_device is False or not any(map(is_gpu, devices)):
        return lambda _, batch: batch
    return lambda replica, batch: map_structure(
        lambda leaf: place(leaf, devices[replica]), as_arrays(batch)
    )


def _steps_of(elements: Iterator[Any], replicas: int, move: _Move) -> Iterator[list[Any]]:
    """Consecutive elements to consecutive replicas."""
    step: list[Any] = []
    for element in elements:
        step.append(move(len(step), element))
        if len(step) == replicas:
            yield step
            step = []
    if step:
        yield step


def _side_by_side(iterators: list[Iterator[Any]], move: _Move) -> Iterator[list[Any]]:
    """One pipeline per replica; who has run out gets empty batches while others have data."""
    last: list[Any] = [None] * len(iterators)
    while True:
        step = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in step):
            return
        some = next(batch for batch in [*step, *last] if batch is not None)
        for replica, batch in enumerate(step):
            if batch is None:
                step[replica] = empty_like(last[replica] if last[replica] is not None else some)
            last[replica] = step[replica]
        yield [move(replica, batch) for replica, batch in enumerate(step)]


def _resolve(dataset: Dataset, otherwise: AutoShardPolicy) -> AutoShardPolicy:
    policy = dataset.auto_shard_policy
    if policy is AutoShardPolicy.AUTO:
        policy = otherwise
    if policy is AutoShardPolicy.AUTO:
        return AutoShardPolicy.DATA if dataset.files is None else AutoShardPolicy.FILE
    return policy


def _divide(dataset: Dataset, policy: AutoShardPolicy, workers: int, worker: int) -> Dataset:
    if policy is AutoShardPolicy.HINT:
        return dataset.resolve_hint(workers, worker)
    if policy is not AutoShardPolicy.FILE:
        return dataset
    files = dataset.files
    if files is None:
        raise ValueError(
            "AutoShardPolicy.FILE: the dataset does not read files; make it with wl.data.from_files, or "
            "use the "
            "policy DATA"
        )
    if len(files) < workers:
        raise ValueError(
            f"Could not apply FILE based sharding: the dataset only has {len(files)} file(s), which is not "
            f"enough for the required {workers} shards/workers. Use the policy DATA or OFF, or more files"
        )
    return dataset.of_files(files[worker::workers])


__all__ = ["DistributedDataset", "DistributedIterator", "Optional"]
