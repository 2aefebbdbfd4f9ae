"""Input: batches from a program's dataset, split over the replicas of this worker.

As TensorFlow does it for parameter servers, input is not sharded between workers: every worker iterates
over what its program gives it. Shuffle with a seed of the task, or shard by its index.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import optree

from ..core.arrays import Array
from .values import PerReplica, leaves, map_structure


def from_arrays(
    arrays: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = 1,
    drop_remainder: bool = False,
) -> "ArrayDataset":
    """A dataset of batches of arrays that fit in memory.

    Args:
        arrays: Nested arrays with one first axis: the examples.
        batch_size: Examples per global batch.
        shuffle: Draw a new order for every epoch.
        seed: Of the orders.
        epochs: How often the data is gone through; None: for ever.
        drop_remainder: Leave out a last batch that is not full.

    Raises:
        ValueError: First axes differ, or ``batch_size`` < 1.
    """
    return ArrayDataset(arrays, batch_size, shuffle, seed, epochs, drop_remainder)


class ArrayDataset:
    """See :func:`from_arrays`. Every iteration starts anew, with the same orders."""

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        epochs: int | None,
        drop_remainder: bool,
    ) -> None:
        self._arrays = map_structure(np.asarray, arrays)
        self._examples = _common_length(self._arrays)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if epochs is None and self._examples < (batch_size if drop_remainder else 1):
            raise ValueError(
                f"{self._examples} examples never fill a batch of {batch_size}: an endless dataset of them "
                "would never give one"
            )
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._epochs = epochs
        self._drop_remainder = drop_remainder

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.default_rng(self._seed)
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            order = rng.permutation(self._examples) if self._shuffle else np.arange(self._examples)
            for start in range(0, self._examples, self._batch_size):
                picked = order[start : start + self._batch_size]
                if self._drop_remainder and picked.size < self._batch_size:
                    break
                yield map_structure(lambda array: array[picked], self._arrays)  # noqa: B023
            epoch += 1


class DistributedDataset:
    """Batches of a dataset, each split over the replicas.

    With one replica batches pass through as they are. With several, the first ``size % replicas`` replicas
    get one example more; a replica for which nothing is left gets an empty batch, so that all of them run.

    Args:
        dataset: An iterable of batches; or an array, or nested arrays, whose first axis counts batches.
        replicas: How many parts.
    """

    def __init__(self, dataset: Any, replicas: int) -> None:
        self._dataset = dataset
        self._replicas = replicas

    def __iter__(self) -> "DistributedIterator":
        return DistributedIterator(_elements(self._dataset), self._replicas)


class DistributedIterator:
    """Iterates over split batches."""

    def __init__(self, elements: Iterator[Any], replicas: int) -> None:
        self._elements = elements
        self._replicas = replicas

    def __iter__(self) -> "DistributedIterator":
        return self

    def __next__(self) -> Any:
        return split_batch(next(self._elements), self._replicas)

    def get_next(self) -> Any:
        """The next batch; StopIteration after the last."""
        return next(self)


def split_batch(batch: Any, replicas: int) -> Any:
    """Split a global batch: PerReplica leaves, or the batch itself for one replica.

    Raises:
        ValueError: A leaf is a scalar, or first axes differ.
    """
    if replicas == 1:
        return batch
    arrays = map_structure(np.asarray, batch)
    base, extra = divmod(_common_length(arrays), replicas)
    ends = np.cumsum([base + (i < extra) for i in range(replicas)])
    starts = np.concatenate(([0], ends[:-1]))

    def cut(array: Array) -> PerReplica:
        return PerReplica(array[a:b] for a, b in zip(starts, ends, strict=True))

    return map_structure(cut, arrays)


def _elements(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, np.ndarray | tuple | dict):
        arrays = map_structure(np.asarray, dataset)
        return (
            map_structure(lambda array: array[i], arrays)  # noqa: B023
            for i in range(_common_length(arrays))
        )
    if isinstance(dataset, Iterable):
        return iter(dataset)
    raise TypeError(
        f"a dataset must be an iterable of batches or nested arrays, got {type(dataset).__name__}"
    )


def _common_length(tree: Any) -> int:
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves(tree)}
    if len(lengths) != 1 or None in lengths:
        shapes = optree.tree_map(lambda leaf: leaf.shape, tree, none_is_leaf=True)
        raise ValueError(
            "arrays of one batch need the same first axis; call the `batch` method on the input dataset "
            f"if these are single examples. Shapes: {shapes}"
        )
    return int(lengths.pop() or 0)
