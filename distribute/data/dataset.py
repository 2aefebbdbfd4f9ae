"""Dataset: what programs chain, as ``tf.data.Dataset``. Its elements come from nodes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optree

from ...core.arguments import whole_number
from ...core.arrays.any_framework import as_array
from ...core.arrays.dtypes import DType
from ...core.terminal import Shown
from ..base.values import flatten, leaves, map_structure, up_to
from ..base.worker_index import current_worker
from .iterator import DatasetIterator
from .node import DatasetNode, steps_of
from .options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    AutoShardPolicy,
    Options,
)
from .passes import Pass, PassCounter
from .prefetch import copied
from .selections import Cached, Prefetched, Repeated, Sharded, Shuffled, Skipped, Taken
from .sharding import as_arrays
from .sources import IterableSource, RangeSource, SliceSource
from .stream_methods import StreamMethods
from .transformations import (
    Batched,
    Concatenated,
    Enumerated,
    Filtered,
    Mapped,
    Unbatched,
    Zipped,
)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array, as ``tf.TensorSpec``; None: an extent that varies."""

    shape: tuple[int | None, ...]
    dtype: DType


class Dataset(StreamMethods, Shown):
    """A dataset gives elements, from the beginning each time it is iterated over.

    As ``tf.data.Dataset``: every method returns another dataset, elements are nested tuples, dicts
    and lists of arrays, and functions get the parts of a tuple as arguments. Nothing is traced:
    functions are called as Python for every element, and may use any library.

    It can be pickled if its functions can; a copy counts its passes, and keeps what is cached, for
    itself.

    Args:
        node: Source of the elements.
        passes: Counts the passes over it and what it is derived from.
        policy: Policy by which strategies divide it between workers.
    """

    def __init__(
        self,
        node: DatasetNode,
        passes: PassCounter | None = None,
        policy: AutoShardPolicy = AutoShardPolicy.AUTO,
    ) -> None:
        self.node = node
        self.passes = PassCounter() if passes is None else passes
        self._policy = policy

    def _then(self, node: DatasetNode) -> "Dataset":
        return Dataset(node, self.passes, self._policy)

    def _shown(self) -> dict[str, Any]:
        size = self.cardinality()
        named = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}
        return {"steps": " → ".join(steps_of(self.node)), "cardinality": named.get(size, size)}

    def __iter__(self) -> "DatasetIterator":
        return DatasetIterator(self._elements())

    def _elements(self) -> Iterator[Any]:
        return self.node.iterate(0, Pass(current_worker.get() or 0, (self.passes.next(),)))

    def __bool__(self) -> bool:
        return True  # also one whose length is 0, or not known

    def __len__(self) -> int:
        """Count the elements.

        Raises:
            TypeError: It is infinite, or not known.
        """
        size = self.cardinality()
        if size == INFINITE_CARDINALITY:
            raise TypeError("The dataset is infinite.")
        if size == UNKNOWN_CARDINALITY:
            raise TypeError("The dataset length is unknown.")
        return size

    # -- where it begins ---------------------------------------------------------------------

    @staticmethod
    def range(*args: int, output_type: Any = np.int64) -> "Dataset":
        """Make a dataset of numbers: ``range(stop)``, ``range(start, stop)`` or ``range(start,
        stop, step)``.

        Raises:
            ValueError: There are no numbers, or more than three; or the step is 0.
        """
        if not 1 <= len(args) <= 3:
            raise ValueError(f"range takes one to three numbers, got {len(args)}")
        return Dataset(RangeSource(range(*args), np.dtype(output_type).type))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> "Dataset":
        """Make a dataset of the slices of arrays along their first axis.

        Args:
            tensors: Nested tuples and dicts of arrays, or of lists that make arrays.

        Raises:
            ValueError: First axes differ, or there is none.
        """
        return Dataset(SliceSource(_tensors(tensors)))

    @staticmethod
    def from_tensors(tensors: Any) -> "Dataset":
        """Make a dataset of one element: nested tuples and dicts of arrays."""
        arrays = _tensors(tensors)
        return Dataset(IterableSource(partial(_alone, arrays), 1, varies=False))

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Any = None,
        output_shapes: Any = None,
        args: tuple[Any, ...] | None = None,
        output_signature: Any = None,
    ) -> "Dataset":
        """Make a dataset of what a function returns or yields.

        Args:
            generator: Called for each pass.
            output_types: A dtype per leaf, to which elements are converted; TensorFlow's older form
                of ``output_signature``.
            output_shapes: A shape per leaf, with ``output_types``; None: any.
            args: Arguments of the function.
            output_signature: ArraySpec per leaf, to whose dtypes elements are converted, and whose
                shapes they must have; None: as they come.

        Raises:
            TypeError: ``generator`` is not a function; or types and a signature are given.
            ValueError: An element has another shape, when it is made.
        """
        if not callable(generator):
            raise TypeError(f"`generator` must be a function, got {type(generator).__name__}")
        if output_types is not None and output_signature is not None:
            raise TypeError("give `output_signature`, or `output_types` and `output_shapes`")
        dataset = Dataset(IterableSource(partial(generator, *(args or ()))))
        types, shapes = output_types, output_shapes
        if output_signature is not None:
            types = map_structure(lambda spec: spec.dtype, output_signature)
            shapes = map_structure(lambda spec: spec.shape, output_signature)
        if types is None:
            return dataset
        return dataset._then(Mapped(dataset.node, partial(_converted, types, shapes)))

    @staticmethod
    def zip(*args: Any, datasets: Any = None) -> "Dataset":
        """Put elements side by side: of datasets, or of nested tuples and dicts of datasets.

        Raises:
            TypeError: Something else than datasets is in it, or nothing.
        """
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        parts = leaves(structure)
        for leaf in parts:
            if not isinstance(leaf, Dataset):
                raise TypeError(f"zip takes nested datasets, got a {type(leaf).__name__} in them")
        if not parts:
            raise TypeError("zip takes at least one dataset")
        first: Dataset = parts[0]
        return first._then(Zipped(map_structure(lambda dataset: dataset.node, structure)))

    # -- which elements, and in which order ----------------------------------------------------

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> "Dataset":
        """Shuffle the elements: each is drawn from the next ``buffer_size`` of them.

        Args:
            buffer_size: Elements that wait to be drawn; as many as there are, for an order that is
                entirely random.
            seed: Seed of the random orders. None: 0, so that every run and every synchronous worker
                draws the same.
            reshuffle_each_iteration: Draw another order in each pass and on each worker that does
                not share batches with others; False: the same one always and everywhere.

        Raises:
            ValueError: ``buffer_size`` < 1.
        """
        anew = reshuffle_each_iteration is not False
        return self._then(Shuffled(self.node, buffer_size, seed or 0, anew=anew))

    def repeat(self, count: int | None = None) -> "Dataset":
        """Repeat the elements: ``count`` times in all; None or -1: for ever."""
        return self._then(Repeated(self.node, count))

    def take(self, count: int) -> "Dataset":
        """Take the first ``count`` elements; -1: all."""
        return self._then(Taken(self.node, count))

    def skip(self, count: int) -> "Dataset":
        """Skip the first ``count`` elements; -1: all."""
        return self._then(Skipped(self.node, count))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Take every ``num_shards``-th element, from number ``index`` on.

        What is shuffled before has the same order on every worker, so shards have nothing in
        common.

        Raises:
            ValueError: ``index`` is not below ``num_shards``.
        """
        return self._then(Sharded(self.node, num_shards, index))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """Keep the elements of which ``predicate`` is true."""
        return self._then(Filtered(self.node, predicate))

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """Append the elements of ``dataset``."""
        return self._then(Concatenated(self.node, dataset.node))

    # -- other elements ----------------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> "Dataset":
        """Call ``map_func`` with every element, in order; the parts of a tuple are its arguments.

        Args:
            map_func: Called when an element is asked for.
            num_parallel_calls: TensorFlow's; calls follow each other, in the thread that prepares
                the next step.
            deterministic: TensorFlow's; the order is kept.
        """
        del num_parallel_calls, deterministic
        return self._then(Mapped(self.node, map_func))

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> "Dataset":
        """Stack elements to batches along a new first axis.

        Args:
            batch_size: Elements per batch.
            drop_remainder: Leave out a last batch that is not full.
            num_parallel_calls: Number of calls at a time, as in :meth:`map`.
            deterministic: Whether elements keep their order, as in :meth:`map`.

        Raises:
            ValueError: ``batch_size`` < 1.
        """
        del num_parallel_calls, deterministic
        return self._then(Batched(self.node, batch_size, drop_remainder=drop_remainder))

    def unbatch(self) -> "Dataset":
        """Split batches into examples."""
        return self._then(Unbatched(self.node))

    def enumerate(self, start: int = 0) -> "Dataset":
        """Give each element its number: ``(number, element)``, counted from ``start``."""
        return self._then(Enumerated(self.node, start))

    def apply(self, transformation_func: Callable[["Dataset"], "Dataset"]) -> "Dataset":
        """Apply a function to the dataset: ``transformation_func(self)``.

        Raises:
            TypeError: That is no dataset.
        """
        dataset = transformation_func(self)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"`transformation_func` must return a Dataset, got {type(dataset).__name__}"
            )
        return dataset

    # -- how elements are prepared -------------------------------------------------------------

    def cache(self, filename: str = "") -> "Dataset":
        """Keep what the first whole pass gave in memory, for the passes after it.

        What was shuffled before keeps its order. Elements are not copied: do not write to them.

        Raises:
            ValueError: A file is named; there are none.
        """
        if filename:
            raise ValueError(f"a cache is in memory only, not in a file: {filename!r}")
        return self._then(Cached(self.node))

    def prefetch(self, buffer_size: int) -> "Dataset":
        """Prepare elements ahead, in a thread. A strategy does so in any case.

        Args:
            buffer_size: Number of elements that wait at most; 0: none, without a thread; AUTOTUNE:
                one.

        Raises:
            ValueError: ``buffer_size`` < -1.
        """
        if whole_number(buffer_size, "buffer_size") < AUTOTUNE:
            raise ValueError(f"buffer_size must be >= 0, or AUTOTUNE (-1), got {buffer_size}")
        depth = 1 if buffer_size == AUTOTUNE else buffer_size
        return self._then(Prefetched(self.node, depth)) if depth else self

    def options(self) -> Options:
        """Return the options, as :meth:`with_options` takes them."""
        options = Options()
        options.experimental_distribute.auto_shard_policy = self._policy
        return options

    def with_options(self, options: Options) -> "Dataset":
        """Set options; AUTO leaves the policy that the dataset has, as in TensorFlow.

        Raises:
            TypeError: They are no :class:`Options`.
        """
        if not isinstance(options, Options):
            raise TypeError(f"`options` must be rw.data.Options, got {type(options).__name__}")
        policy = options.experimental_distribute.auto_shard_policy
        policy = self._policy if policy is AutoShardPolicy.AUTO else policy
        return Dataset(self.node, self.passes, policy)

    # -- what is known of it, and what it is in the end ----------------------------------------

    @property
    def element_spec(self) -> Any:
        """ArraySpec per leaf, from an element; extents that may differ between them are None.

        Raises:
            ValueError: There is no element, or looking at it would take it away.
        """
        if self.node.once:
            raise ValueError(
                "the dataset can be gone through once, and looking at its first element would lose "
                "it. Make it of a function that returns the generator, instead of the generator"
            )
        element = self.node.example()
        if element is None:
            raise ValueError("the dataset has no element, so nothing is known of them")
        return map_structure(self._spec_of, as_arrays(element))

    def _spec_of(self, leaf: Any) -> ArraySpec:
        first = (None,) if self.node.varies else leaf.shape[:1]
        return ArraySpec((*first, *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Iterate over the elements as NumPy arrays and scalars."""
        return (map_structure(lambda leaf: as_array(leaf)[()], element) for element in self)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Compute ``state = reduce_func(state, element)`` over all elements; the last state."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state


def _tensors(tree: Any) -> Any:
    """Convert to nested tuples and dicts of arrays; a list becomes one."""
    return optree.tree_map(_tensor, tree, is_leaf=lambda node: isinstance(node, list))


def _tensor(leaf: Any) -> Any:
    array = as_array(leaf)
    if isinstance(leaf, float | list) and array.dtype == np.float64:
        return array.astype(np.float32)  # Python floats are float32, as in TensorFlow
    return array


def _alone(arrays: Any) -> list[Any]:
    """Copy the only element of a dataset into memory of its own."""
    return [copied(arrays)]


def _converted(types: Any, shapes: Any, *parts: Any) -> Any:
    """Convert the element whose parts became arguments, as nested dtypes and shapes say."""
    element = parts[0] if len(parts) == 1 else parts
    dtypes, rebuild = flatten(types)
    items = up_to(types, element)
    wanted = [None] * len(dtypes) if shapes is None else up_to(types, shapes)
    return rebuild([_leaf(*parts) for parts in zip(items, dtypes, wanted, strict=True)])


def _leaf(item: Any, dtype: Any, shape: Any) -> Any:
    array = np.asarray(item, dtype)
    if shape is None:
        return array[()]
    fits = len(shape) == array.ndim and all(
        extent in (None, own) for extent, own in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`generator` yielded an element of shape {array.shape} where an element of shape "
            f"{tuple(shape)} was expected"
        )
    return array[()]
