"""Pipelines by which a program's dataset becomes the batches of this worker's replicas."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from ..base.interface import ExtendedInterface
from ..base.values import leaves
from .dataset import Dataset
from .distributed import DistributedDataset, Input, Move, to_devices
from .factories import as_dataset
from .node import DatasetNode
from .options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from .passes import Pass
from .selections import Sharded
from .sharding import cut, empty_like

_DEFAULT = InputOptions()


def distribute_dataset(
    extended: ExtendedInterface, source: Any, options: InputOptions | None
) -> DistributedDataset:
    """Make what ``experimental_distribute_dataset`` returns."""
    options = options or _DEFAULT
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "`distribute_datasets_from_function`, not in `experimental_distribute_dataset`"
        )
    dataset = as_dataset(source)
    replicas = len(extended.replica_devices)
    parts = extended.num_replicas_in_sync
    in_step = parts > replicas  # with other workers
    workers, worker = extended.num_input_pipelines, extended.input_pipeline_id
    policy = _resolve(dataset, divides=extended.divides_input)
    in_common = policy is AutoShardPolicy.DATA
    # A worker that takes its parts of every batch is through with one after one step.
    steps_per_batch = 1 if in_common else parts // replicas
    mine = slice(worker, None, workers) if in_common and in_step else slice(None)
    if workers > 1 or policy is AutoShardPolicy.HINT:
        dataset = _divide(dataset, policy, workers, worker, in_step=in_step)

    def open_steps(start: int, number: int) -> Iterator[list[Any]]:
        this = _pass_of(extended, number, 0 if in_common else worker)
        first, behind = divmod(start, steps_per_batch)
        batches = dataset.node.iterate(first, this)
        if parts > 1:
            pieces = chain.from_iterable(cut(batch, parts, mine) for batch in batches)
            batches = islice(pieces, behind * replicas, None) if behind else pieces
        return _steps_of(batches, replicas, to_devices(extended, options), lambda _: False)

    source_input = Input(open_steps, [dataset], options)
    return DistributedDataset(extended, source_input, distribute_dataset, source)


def _pass_of(extended: ExtendedInterface, number: int, worker: int) -> Pass:
    return Pass(worker, (number,), in_order=not extended.shuffles_input)


def distribute_from_function(
    extended: ExtendedInterface,
    dataset_fn: Callable[[InputContext], Any],
    options: InputOptions | None,
) -> DistributedDataset:
    """Make what ``distribute_datasets_from_function`` returns."""
    options = options or _DEFAULT
    options.check_placement()
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
    alone = extended.num_replicas_in_sync == replicas
    varies = any(dataset.node.varies for dataset in datasets)

    def ends(batch: Any) -> bool:
        """Return whether a step without a batch for each replica is none, where batches are like
        this.

        As in TensorFlow: programs that drop the remainder get no empty batch either.
        """
        return alone and (not varies or all(np.ndim(leaf) == 0 for leaf in leaves(batch)))

    def open_steps(start: int, number: int) -> Iterator[list[Any]]:
        move = to_devices(extended, options)
        orders = [_pass_of(extended, number, context.input_pipeline_id) for context in contexts]
        if not per_replica:
            elements = datasets[0].node.iterate(start * replicas, orders[0])
            return _steps_of(elements, replicas, move, ends)
        pipelines = zip(datasets, orders, strict=True)
        opened = [dataset.node.iterate(start, of) for dataset, of in pipelines]
        return _side_by_side(opened, move, ends)

    source_input = Input(open_steps, datasets, options)
    return DistributedDataset(extended, source_input, distribute_from_function, dataset_fn)


def _steps_of(
    elements: Iterator[Any], replicas: int, move: Move, ends: Callable[[Any], bool]
) -> Iterator[list[Any]]:
    """Give consecutive elements to consecutive replicas."""
    step: list[Any] = []
    for element in elements:
        step.append(move(len(step), element))
        if len(step) == replicas:
            yield step
            step = []
    if step and not ends(step[0]):
        yield step


def _side_by_side(
    iterators: list[Iterator[Any]], move: Move, ends: Callable[[Any], bool]
) -> Iterator[list[Any]]:
    """Run one pipeline per replica; who has run out gets empty batches while others have data."""
    last: list[Any] = [None] * len(iterators)
    while True:
        step = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in step):
            return
        some = next(batch for batch in [*step, *last] if batch is not None)
        if any(batch is None for batch in step) and ends(some):
            return
        for replica, batch in enumerate(step):
            if batch is None:
                step[replica] = empty_like(last[replica] if last[replica] is not None else some)
            last[replica] = step[replica]
        yield [move(replica, batch) for replica, batch in enumerate(step)]


def _resolve(dataset: Dataset, *, divides: bool) -> AutoShardPolicy:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is not AutoShardPolicy.AUTO:
        return policy
    if not divides:
        return AutoShardPolicy.OFF
    return AutoShardPolicy.DATA if dataset.node.files is None else AutoShardPolicy.FILE


def _divide(
    dataset: Dataset, policy: AutoShardPolicy, workers: int, worker: int, *, in_step: bool
) -> Dataset:
    """Divide a dataset, and return a worker's part, where that consists of whole elements."""
    node = dataset.node
    if policy is AutoShardPolicy.HINT:
        node = node.resolve_hint(workers, worker)
    elif policy is AutoShardPolicy.DATA and not in_step:
        node = Sharded(node, workers, worker)
    elif policy is AutoShardPolicy.FILE:
        node = node.of_files(_files_of(node, workers)[worker::workers])
    return Dataset(node, dataset.passes, policy)


def _files_of(node: DatasetNode, workers: int) -> tuple[str, ...]:
    files = node.files
    if files is None:
        raise ValueError(
            "AutoShardPolicy.FILE: the dataset does not read files; make it with "
            "rw.data.from_files, or use the policy DATA"
        )
    if len(files) < workers:
        raise ValueError(
            f"Could not apply FILE based sharding: the dataset only has {len(files)} file(s), "
            f"which is not enough for the required {workers} shards/workers. Use the policy DATA "
            "or OFF, or more files"
        )
    return files
