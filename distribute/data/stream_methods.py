"""The methods of a dataset that give other elements than one for each: windows, groups, padding."""

import glob
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Self

import numpy as np

from ...core.arguments import whole_number
from ...core.public_face import Instead
from ...core.terminal import counted
from ..base.values import flatten
from .node import DatasetNode
from .options import INFINITE_CARDINALITY
from .padding import padded
from .passes import Pass
from .selections import Shuffled
from .sources import FileSource, IterableSource
from .streams import (
    Streamed,
    chosen,
    distinct,
    flattened,
    grouped,
    interleaved,
    rebatched,
    sampled,
    scanned,
    taken_while,
    windows,
)
from .transformations import Mapped, call

_CYCLE = 8  # datasets that `interleave` reads in turn where the program leaves it open


class StreamMethods:
    """Methods of datasets by streams; the class gives its node, and is made of one."""

    node: DatasetNode

    @abstractmethod
    def __init__(self, node: DatasetNode) -> None:
        """Make a dataset of a node."""

    @abstractmethod
    def _then(self, node: DatasetNode) -> Self:
        """Derive a dataset from this one."""

    def cardinality(self) -> int:
        """Count the elements; INFINITE_CARDINALITY (-1), UNKNOWN_CARDINALITY (-2)."""
        return self.node.cardinality()

    # -- datasets of elements ------------------------------------------------------------------

    def flat_map(self, map_func: Callable[..., Self]) -> Self:
        """Join the elements of the datasets that ``map_func`` makes of elements, one after another.

        Raises:
            TypeError: ``map_func`` returns something else than a dataset, when it is called.
        """
        node_of = partial(_node_of, map_func, "map_func")
        return self._then(Streamed(partial(flattened, node_of), self.node))

    def interleave(
        self,
        map_func: Callable[..., Self],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Self:
        """Take the elements of several datasets at a time, in turn.

        Args:
            map_func: Makes a dataset of an element.
            cycle_length: Datasets that take turns. None or AUTOTUNE: 8.
            block_length: Consecutive elements of each; None: 1.
            num_parallel_calls: Number of calls at a time, as in :meth:`map`.
            deterministic: Whether elements keep their order, as in :meth:`map`.

        Raises:
            ValueError: ``cycle_length`` or ``block_length`` < 1.
            TypeError: ``map_func`` returns something else than a dataset, when it is called.
        """
        del num_parallel_calls, deterministic
        cycle = _CYCLE if cycle_length in (None, -1) else _positive(cycle_length, "cycle_length")
        block = 1 if block_length is None else _positive(block_length, "block_length")
        node_of = partial(_node_of, map_func, "map_func")
        return self._then(Streamed(partial(interleaved, node_of, cycle, block), self.node))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Self:
        """Make datasets of ``size`` elements each; for elements of several parts, one for each
        part.

        Args:
            size: Elements of a window.
            shift: Elements from the beginning of one window to that of the next; None: ``size``.
            stride: Elements from one of a window to its next.
            drop_remainder: Leave out windows that are not full.

        Raises:
            ValueError: ``size``, ``shift`` or ``stride`` < 1.
        """
        size, stride = _positive(size, "size"), _positive(stride, "stride")
        step = size if shift is None else _positive(shift, "shift")
        cut = partial(windows, size, step, stride, drop_remainder)
        whole = self.cardinality()
        ending = (size - 1) * stride if drop_remainder else 0
        number = whole if whole < 0 else max(0, -(-(whole - ending) // step))
        lists = Streamed(cut, self.node, size=number, keeps=True)
        node = Mapped(lists, partial(_window, type(self)))
        node.fresh = True  # a window keeps its elements
        return self._then(node)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Self], Self],
        window_size: int | None = None,
        window_size_func: Callable[[Any], int] | None = None,
    ) -> Self:
        """Put elements of one key together, as the dataset that ``reduce_func`` makes of them.

        Args:
            key_func: Returns the key of an element, an integer.
            reduce_func: Makes a dataset of a key and a dataset of up to ``window_size`` elements.
            window_size: Elements that are reduced together.
            window_size_func: Returns that number for a key.

        Raises:
            ValueError: Both or none of ``window_size`` and ``window_size_func`` are given.
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError("give one of `window_size` and `window_size_func`")
        size_of = window_size_func or partial(_constant, _positive(window_size, "window_size"))
        node_of = partial(_group_node, type(self), reduce_func)
        return self._then(
            Streamed(partial(grouped, key_func, size_of, node_of), self.node, keeps=True)
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Make batches of elements of similar length, each padded to its longest.

        Args:
            element_length_func: Returns the length of an element.
            bucket_boundaries: Lengths at which one bucket ends and the next begins, ascending.
            bucket_batch_sizes: Batch size of each bucket: one more than there are boundaries.
            padded_shapes: Shapes to pad to, as in :meth:`padded_batch`.
            padding_values: Values to pad with, as in :meth:`padded_batch`.
            pad_to_bucket_boundary: Pad to the bucket's boundary less one; longer elements are an
                error.
            no_padding: Elements of a bucket have one shape already.
            drop_remainder: Leave out batches that are not full.

        Raises:
            ValueError: There are not so many batch sizes; or an element is too long.
        """
        if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
            raise ValueError(
                f"{len(bucket_boundaries)} bucket_boundaries make {len(bucket_boundaries) + 1} "
                f"buckets, and there are {len(bucket_batch_sizes)} bucket_batch_sizes"
            )
        if pad_to_bucket_boundary:
            raise ValueError(
                "pad_to_bucket_boundary is not offered: give padded_shapes, or use "
                "group_by_window with a padded_batch of the bucket's length"
            )
        bounds, sizes = tuple(bucket_boundaries), tuple(bucket_batch_sizes)

        def reduce_func(bucket: Any, dataset: Self) -> Self:
            size = sizes[int(bucket)]
            if no_padding:
                batched: Self = dataset.batch(size, drop_remainder)  # type: ignore[attr-defined]
                return batched
            return dataset.padded_batch(size, padded_shapes, padding_values, drop_remainder)

        def bucket_of(*parts: Any) -> int:
            return int(np.searchsorted(bounds, element_length_func(*parts), side="right"))

        return self.group_by_window(bucket_of, reduce_func, None, lambda bucket: sizes[int(bucket)])

    # -- batches -----------------------------------------------------------------------------

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Self:
        """Make batches of arrays that differ in shape, padded at their ends.

        Args:
            batch_size: Elements per batch.
            padded_shapes: Shapes in the elements' structure; None or -1 in one: the largest extent
                of the batch. None: the largest extents.
            padding_values: Values in the elements' structure, or one for all; None: 0.
            drop_remainder: Leave out a last batch that is not full.

        Raises:
            ValueError: ``batch_size`` < 1; or an element is larger than ``padded_shapes``, when the
                batch is made.
        """
        size = _positive(batch_size, "batch_size")
        make = partial(padded, size, padded_shapes, padding_values, drop_remainder)
        whole = self.cardinality()
        number = whole if whole < 0 else whole // size if drop_remainder else -(-whole // size)
        return self._then(Streamed(make, self.node, size=number, keeps=True))

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> Self:
        """Cut batches to other sizes, of the same examples in the same order.

        Args:
            batch_size: Examples per batch, or a sequence of sizes that are taken in turn.
            drop_remainder: Leave out a last batch that is not full.

        Raises:
            ValueError: A size < 1.
        """
        stated_sizes = [batch_size] if np.ndim(batch_size) == 0 else list(batch_size)  # type: ignore[arg-type]
        sizes = tuple(_positive(size, "batch_size") for size in stated_sizes)
        cut = partial(rebatched, sizes, drop_remainder)
        return self._then(Streamed(cut, self.node, keeps=True))

    # -- some of the elements, or what they add up to ---------------------------------------------

    def take_while(self, predicate: Callable[..., Any]) -> Self:
        """Take the elements before the first of which ``predicate`` is false."""
        return self._then(Streamed(partial(taken_while, predicate), self.node))

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Self:
        """Yield outputs of ``scan_func(state, element)``, which returns the next state and an
        output.
        """
        run = partial(scanned, initial_state, scan_func)
        return self._then(Streamed(run, self.node, size=self.cardinality()))

    def unique(self) -> Self:
        """Keep each element once; elements are arrays, numbers or texts."""
        return self._then(Streamed(distinct, self.node))

    def get_single_element(self) -> Any:
        """Return the only element.

        Raises:
            ValueError: There is none, or more than one.
        """
        elements = []
        for element in self.node.iterate(0, Pass()):
            elements.append(element)
            if len(elements) > 1:
                raise ValueError("Dataset had more than one element.")
        if not elements:
            raise ValueError("Dataset was empty.")
        return elements[0]

    ignore_errors = Instead(
        "catch the error in the function given to `map`, and `filter` afterwards"
    )
    ragged_batch = Instead(
        "`padded_batch`, or `window(n)` for lists of arrays of different lengths"
    )
    sparse_batch = Instead(
        "`padded_batch`, or `window(n)` for lists of arrays of different lengths"
    )
    rejection_resample = Instead("`filter` by a random number, or `sample_from_datasets`")
    snapshot = Instead(
        "`cache` keeps elements in memory; np.save and `from_files` keep them in files"
    )
    save = Instead("np.savez of its elements, and `rw.data.from_files(paths, read)` to read them")
    load = Instead("`rw.data.from_files(paths, read)`, where `read` gives the elements of a file")
    fingerprint = Instead("hash what the dataset is made of")

    # -- where it begins ---------------------------------------------------------------------

    @classmethod
    def counter(cls, start: int = 0, step: int = 1, dtype: Any = np.int64) -> Self:
        """Count ``start``, ``start + step`` and so on, for ever."""
        kind = np.dtype(dtype).type
        return cls(IterableSource(partial(_counted, start, step, kind), INFINITE_CARDINALITY))

    @classmethod
    def random(cls, seed: int | None = None) -> Self:
        """Draw random integers between 0 and 2**32, for ever; those of ``seed`` (None: 0) each
        time.
        """
        return cls(IterableSource(partial(_drawn, seed or 0), INFINITE_CARDINALITY))

    @classmethod
    def list_files(
        cls, file_pattern: Any, shuffle: bool | None = None, seed: int | None = None
    ) -> Self:
        """List the paths that match glob patterns. Synchronous workers divide them, as files.

        Args:
            file_pattern: A pattern, or several.
            shuffle: Whether the order is drawn anew in each pass; None: it is.
            seed: Seed of the order; None: 0.

        Raises:
            ValueError: No file matches.
        """
        patterns = [file_pattern] if np.ndim(file_pattern) == 0 else list(file_pattern)
        names = (path for pattern in patterns for path in glob.glob(str(pattern)))
        paths = sorted(dict.fromkeys(names))
        if not paths:
            raise ValueError(f"No files matched pattern: {', '.join(map(str, patterns))}")
        node: DatasetNode = FileSource(paths, _path)
        return cls(node if shuffle is False else Shuffled(node, len(paths), seed or 0, anew=True))

    @classmethod
    def choose_from_datasets(
        cls, datasets: Sequence[Self], choice_dataset: Self, stop_on_empty_dataset: bool = True
    ) -> Self:
        """Take elements of the datasets that ``choice_dataset`` numbers.

        Args:
            datasets: Datasets to choose from.
            choice_dataset: Numbers of datasets, from 0.
            stop_on_empty_dataset: End with the first dataset that has ended, instead of passing it
                over.
        """
        choose = partial(chosen, stop_on_empty_dataset)
        nodes = [dataset.node for dataset in (choice_dataset, *datasets)]
        return choice_dataset._then(Streamed(choose, *nodes))

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Self],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Self:
        """Take elements of several datasets, drawn at random.

        Args:
            datasets: Datasets to draw from.
            weights: Probability of each; None: equal ones.
            seed: Seed of the draws; None: 0.
            stop_on_empty_dataset: End with the first dataset that has ended, instead of drawing
                from the others until all have.
            rerandomize_each_iteration: TensorFlow's; every pass draws anew.

        Raises:
            ValueError: There are no datasets, or not as many weights.
        """
        del rerandomize_each_iteration
        shares = [1.0] * len(datasets) if weights is None else [float(weight) for weight in weights]
        if not datasets or len(shares) != len(datasets):
            raise ValueError(
                f"{counted(len(shares), 'weight')} for {counted(len(datasets), 'dataset')}"
            )
        draw = partial(sampled, shares, seed or 0, stop_on_empty_dataset)
        return datasets[0]._then(Streamed(draw, *(dataset.node for dataset in datasets)))


def _positive(value: Any, name: str) -> int:
    number = whole_number(value, name)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _node_of(function: Callable[..., Any], name: str, element: Any) -> DatasetNode:
    """Find the node of the dataset that a program's function makes of an element."""
    dataset = call(function, element)
    if not isinstance(dataset, StreamMethods):
        raise TypeError(f"`{name}` must return a Dataset, got {type(dataset).__name__}")
    return dataset.node


def _group_node(
    kind: type[StreamMethods], reduce_func: Callable[[Any, Any], Any], key: Any, group: list[Any]
) -> DatasetNode:
    dataset = reduce_func(key, kind(IterableSource(partial(iter, group), len(group))))
    if not isinstance(dataset, StreamMethods):
        raise TypeError(f"`reduce_func` must return a Dataset, got {type(dataset).__name__}")
    return dataset.node


def _window(kind: type[StreamMethods], elements: list[Any]) -> Any:
    """Make a dataset of elements, or of each of their parts."""
    columns = zip(*(flatten(element)[0] for element in elements), strict=True)
    rebuild = flatten(elements[0])[1]
    return rebuild(
        [kind(IterableSource(partial(iter, list(column)), len(elements))) for column in columns]
    )


def _constant(value: int, key: Any) -> int:
    del key
    return value


def _counted(start: int, step: int, kind: Callable[[int], Any]) -> Iterator[Any]:
    return map(kind, count(start, step))


def _drawn(seed: int) -> Iterator[Any]:
    generator = np.random.default_rng(seed)
    while True:
        yield generator.integers(2**32, dtype=np.int64)


def _path(file: str) -> list[Any]:
    return [np.str_(file)]
