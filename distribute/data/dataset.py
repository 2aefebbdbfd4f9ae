"""Datasets: what gives batches, and knows enough of itself to be sharded, split and resumed."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ...core.arrays import DType
from ..base.values import flatten, map_structure
from .options import SHARD_HINT, AutoShardPolicy, Options
from .sharding import as_arrays


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array, as ``tf.TensorSpec``; None: an extent that varies."""

    shape: tuple[int | None, ...]
    dtype: DType


class Dataset:
    """Something that gives elements, from the beginning each time it is iterated over.

    Attributes:
        batch_size: Examples per element, if every element but the last has as many; None: not
            known.
        files: Paths it reads, if it can be divided by files.
        infinite: It never ends.
        fresh: Each element has memory of its own, which is not used for another one.
        once: It can be iterated over once: looking at an element consumes it.
    """

    batch_size: int | None = None
    files: tuple[str, ...] | None = None
    infinite: bool = False
    fresh: bool = False
    once: bool = False

    def __init__(self) -> None:
        self._policy = AutoShardPolicy.AUTO

    def __iter__(self) -> Iterator[Any]:
        return self.iterate(0)

    def iterate(self, start: int) -> Iterator[Any]:
        """Elements from number ``start`` on."""
        return islice(self._elements(), start, None)

    def _elements(self) -> Iterator[Any]:
        raise TypeError(f"{type(self).__name__} must define _elements")

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """How strategies divide it between workers; see :meth:`with_options`."""
        return self._policy

    @property
    def element_spec(self) -> Any:
        """ArraySpec per leaf, from the first element; the first extent is not fixed.

        Raises:
            ValueError: There is no element, or looking at it would take it away.
        """
        if self.once:
            raise ValueError(
                "the dataset can be gone through once, and looking at its first element would lose "
                "it. Make it of a function that returns the generator, instead of the generator"
            )
        element = self.example()
        if element is None:
            raise ValueError("the dataset has no element, so nothing is known of them")
        return map_structure(
            lambda leaf: ArraySpec((None, *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype),
            as_arrays(element),
        )

    def example(self) -> Any:
        """Something like its elements, also where it has none itself: of a part, one of the whole.

        None: nothing is known of them.
        """
        return None if self.once else next(self.iterate(0), None)

    def with_options(self, options: Options) -> "Dataset":
        """The same dataset with options."""
        other = copy(self)
        other._policy = AutoShardPolicy(options.experimental_distribute.auto_shard_policy)
        return other

    def of_files(self, files: Sequence[str]) -> "Dataset":
        """The same dataset, of these files alone."""
        raise ValueError(
            f"{type(self).__name__} does not read files that could be divided: {files}"
        )

    def resolve_hint(self, workers: int, worker: int) -> "Dataset":
        """The same dataset, sharded where ``shard(SHARD_HINT, SHARD_HINT)`` stands, if it does."""
        del workers, worker
        return self

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Every ``num_shards``-th element, from number ``index`` on.

        Raises:
            ValueError: ``index`` is not below ``num_shards``.
        """
        return _Sharded(self, num_shards, index)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Elements stacked to batches along a new first axis.

        Raises:
            ValueError: ``batch_size`` < 1.
        """
        return _Batched(self, batch_size, drop_remainder)

    def map(self, function: Callable[[Any], Any]) -> "Dataset":
        """``function`` of every element."""
        return _Mapped(self, function)

    def repeat(self, count: int | None = None) -> "Dataset":
        """Again from the beginning when it ends: ``count`` times in all; None or -1: for ever."""
        return _Repeated(self, count)


class _Derived(Dataset):
    """Made of another dataset; divided where that one is."""

    def __init__(self, source: Dataset) -> None:
        super().__init__()
        self._source = source
        self._policy = source.auto_shard_policy
        self.files = source.files
        self.infinite = source.infinite
        self.once = source.once

    def of_files(self, files: Sequence[str]) -> Dataset:
        return self._on(self._source.of_files(files))

    def resolve_hint(self, workers: int, worker: int) -> Dataset:
        return self._on(self._source.resolve_hint(workers, worker))

    def _on(self, source: Dataset) -> Dataset:
        other = copy(self)
        other._source = source
        other.files = source.files
        return other


class _Sharded(_Derived):
    def __init__(self, source: Dataset, num_shards: int, index: int) -> None:
        super().__init__(source)
        hint = num_shards == SHARD_HINT and index == SHARD_HINT
        if not hint and (num_shards < 1 or not 0 <= index < num_shards):
            raise ValueError(f"index must be in [0, num_shards), got {index} of {num_shards}")
        self._num_shards, self._index = num_shards, index
        self.batch_size = source.batch_size

    def example(self) -> Any:
        return self._source.example()

    def _elements(self) -> Iterator[Any]:
        if self._num_shards == SHARD_HINT:
            raise ValueError(
                "shard(SHARD_HINT, SHARD_HINT) is filled in by a strategy whose policy is "
                "AutoShardPolicy.HINT; set it with `with_options`"
            )
        return islice(iter(self._source), self._index, None, self._num_shards)

    def resolve_hint(self, workers: int, worker: int) -> Dataset:
        source = self._source.resolve_hint(workers, worker)
        if self._num_shards != SHARD_HINT:
            return self._on(source)
        return _Sharded(source, workers, worker)


class _Batched(_Derived):
    def __init__(self, source: Dataset, batch_size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self._drop_remainder = drop_remainder

    def example(self) -> Any:
        one = self._source.example()
        return None if one is None else _stacked([one])

    def _elements(self) -> Iterator[Any]:
        source = iter(self._source)
        while examples := list(islice(source, self.batch_size)):
            if len(examples) < (self.batch_size or 1) and self._drop_remainder:
                return
            yield _stacked(examples)


def _stacked(examples: Sequence[Any]) -> Any:
    columns = zip(*(flatten(example)[0] for example in examples), strict=True)
    _, rebuild = flatten(examples[0])
    return rebuild([np.stack([np.asarray(item) for item in column]) for column in columns])


class _Mapped(_Derived):
    def __init__(self, source: Dataset, function: Callable[[Any], Any]) -> None:
        super().__init__(source)
        self._function = function
        self.batch_size = source.batch_size

    def example(self) -> Any:
        one = self._source.example()
        return None if one is None else self._function(one)

    def iterate(self, start: int) -> Iterator[Any]:
        return map(self._function, self._source.iterate(start))


class _Repeated(_Derived):
    def __init__(self, source: Dataset, count: int | None) -> None:
        super().__init__(source)
        self._count = None if count is not None and count < 0 else count
        self.batch_size = source.batch_size
        endless = self._count is None and not source.once
        self.infinite = self._count != 0 and (endless or source.infinite)

    def example(self) -> Any:
        return self._source.example()

    def _elements(self) -> Iterator[Any]:
        done = 0
        while self._count is None or done < self._count:
            empty = True
            for element in self._source:
                empty = False
                yield element
            if empty:
                return  # again and again nothing
            done += 1
