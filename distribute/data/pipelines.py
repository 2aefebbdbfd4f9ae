"""How a program's dataset becomes the batches of this worker's replicas."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from .dataset import Dataset
from .distributed import DistributedDataset, Input, InputReplicas, Move, to_devices
from .options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from .sharding import batch_sizes, cut, deal, empty_like, fill, recut
from .sources import as_dataset

_DEFAULT = InputOptions()


def distribute_dataset(
    extended: InputReplicas, source: Any, options: InputOptions | None
) -> DistributedDataset:
    """What ``experimental_distribute_dataset`` returns."""
    options = options or _DEFAULT
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "`distribute_datasets_from_function`, not in `experimental_distribute_dataset`"
        )
    dataset = as_dataset(source)
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
        return _steps_of(found, replicas, to_devices(extended, options))

    return DistributedDataset(extended, Input(open_steps, [dataset], options))


def distribute_from_function(
    extended: InputReplicas,
    dataset_fn: Callable[[InputContext], Any],
    options: InputOptions | None,
) -> DistributedDataset:
    """What ``distribute_datasets_from_function`` returns."""
    options = options or _DEFAULT
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
        move = to_devices(extended, options)
        if not per_replica:
            return _steps_of(datasets[0].iterate(start * replicas), replicas, move)
        return _side_by_side([dataset.iterate(start) for dataset in datasets], move)

    return DistributedDataset(extended, Input(open_steps, datasets, options))


def _steps_of(elements: Iterator[Any], replicas: int, move: Move) -> Iterator[list[Any]]:
    """Consecutive elements to consecutive replicas."""
    step: list[Any] = []
    for element in elements:
        step.append(move(len(step), element))
        if len(step) == replicas:
            yield step
            step = []
    if step:
        yield step


def _side_by_side(iterators: list[Iterator[Any]], move: Move) -> Iterator[list[Any]]:
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
            "AutoShardPolicy.FILE: the dataset does not read files; make it with "
            "wl.data.from_files, or use the policy DATA"
        )
    if len(files) < workers:
        raise ValueError(
            f"Could not apply FILE based sharding: the dataset only has {len(files)} file(s), "
            f"which is not enough for the required {workers} shards/workers. Use the policy DATA "
            "or OFF, or more files"
        )
    return dataset.of_files(files[worker::workers])
