"""Nodes: what a dataset is made of. A source, or something derived from other nodes.

A node says of its elements what distribution has to know: how many there are, from which files they
come, whether they may be kept. ``dataset.py`` is the face that programs see.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from ...core.arrays.dtypes import Array
from .options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from .passes import Pass

Opener = Callable[[int, Pass], Iterator[Any]]
"""Opens a node in a pass, from an element on: its ``iterate`` or its ``positions``."""


@dataclass(frozen=True, slots=True)
class Index:
    """Batches of examples that are read by their numbers, in any order.

    Attributes:
        examples: Number of examples.
        read: Reads a batch: the examples with these numbers (int64) as nested arrays.
        batch: Examples of a batch.
        seed: Seed of the orders.
        shuffle: Whether each pass has an order of its own.
        epochs: Number of times that the examples are gone through; None: for ever.
        drop_remainder: Whether a last batch that is not full is left out.
    """

    examples: int
    read: Callable[[Array], Any]
    batch: int
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    drop_remainder: bool = False


class DatasetNode(ABC):
    """Gives elements, from the beginning in each pass.

    Attributes:
        files: Paths it reads, if it can be divided by files.
        once: Whether it can be gone through once only: looking at an element consumes it.
        fresh: Each element has memory of its own, which is not used for another one.
        varies: The first axis of its leaves may differ between elements.
        table: Arrays whose rows are its elements, see :meth:`positions`; None: there are none.
        index: Index that its elements are batches of; None: there is none.
    """

    files: tuple[str, ...] | None = None
    once: bool = False
    fresh: bool = False
    varies: bool = True
    table: Any = None
    index: Index | None = None

    @abstractmethod
    def iterate(self, start: int, this: Pass) -> Iterator[Any]:
        """Iterate over elements from number ``start`` on."""

    def positions(self, start: int, this: Pass) -> Iterator[int]:
        """Iterate over the rows of ``table`` that are its elements, as :meth:`iterate`."""
        del start, this
        raise TypeError(f"the elements of {type(self).__name__} are no rows of arrays")

    def cardinality(self) -> int:
        """Count the elements, or say that they are infinite or not known."""
        return UNKNOWN_CARDINALITY

    @property
    def infinite(self) -> bool:
        """Whether it never ends."""
        return self.cardinality() == INFINITE_CARDINALITY

    def example(self) -> Any:
        """Return something like its elements, also where it has none itself: of a part, one of the
        whole. None: nothing is known of them.

        None: nothing is known of them.
        """
        return None if self.once else next(self.iterate(0, Pass()), None)

    def of_files(self, files: Sequence[str]) -> "DatasetNode":
        """Copy the node for these files alone."""
        raise ValueError(
            f"{type(self).__name__} does not read files that could be divided: {files}"
        )

    def resolve_hint(self, workers: int, worker: int) -> "DatasetNode":
        """Shard the node where ``shard(SHARD_HINT, SHARD_HINT)`` stands, if it does."""
        del workers, worker
        return self


class Derived(DatasetNode):
    """Made of other nodes; divided where the only one is."""

    def __init__(self, *sources: DatasetNode) -> None:
        self.sources = sources
        self.once = any(source.once for source in sources)
        self.fresh = all(source.fresh for source in sources)
        self.varies = any(source.varies for source in sources)
        self.files = sources[0].files if len(sources) == 1 else None

    @property
    def source(self) -> DatasetNode:
        """The first one, if it is made of one."""
        return self.sources[0]

    def example(self) -> Any:
        """Return the source's example."""
        return self.source.example()

    def of_files(self, files: Sequence[str]) -> DatasetNode:
        """Copy the node for these files alone."""
        return self.on(*(source.of_files(files) for source in self.sources))

    def resolve_hint(self, workers: int, worker: int) -> DatasetNode:
        """Shard the node where the hint stands."""
        return self.on(*(source.resolve_hint(workers, worker) for source in self.sources))

    def on(self, *sources: DatasetNode) -> Self:
        """Copy the node, made of other sources."""
        other = copy(self)
        other.sources = sources
        other.files = sources[0].files if len(sources) == 1 else None
        return other


def steps_of(node: DatasetNode) -> list[str]:
    """List the steps by which a node is made, the source first, e.g. ``["range", "batched",
    "mapped"]``.
    """
    own = type(node).__name__.removesuffix("Source").lower()
    if not isinstance(node, Derived):
        return [own]
    before = [steps_of(source) for source in node.sources]
    if len(before) == 1:
        return [*before[0], own]
    return [f"{own}({', '.join(' → '.join(steps) for steps in before)})"]
