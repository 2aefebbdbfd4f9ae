"""The pass over a dataset: a shuffled order is drawn from it, beside its seed.

An order depends on the seed, the pass and the worker, and on nothing else. So each worker and each
epoch has an order of its own, one seed gives all of them again, and an iterator that is resumed
goes on in the order that it had.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over a dataset.

    Attributes:
        worker: Worker whose orders are drawn; 0: those of the first worker, which all have in
            common.
        numbers: Number of the pass, and within it of the repetition; from the outermost on.
        in_order: Whether nothing is shuffled.
    """

    worker: int = 0
    numbers: tuple[int, ...] = (0,)
    in_order: bool = False

    def repetition(self, number: int) -> "Pass":
        """Begin one of several passes over a part, inside this one."""
        return replace(self, numbers=(*self.numbers, number))

    def in_common(self) -> "Pass":
        """Take the orders of this pass that all workers have in common."""
        return replace(self, worker=0)

    def pinned(self) -> "Pass":
        """Take orders that are equal in every pass."""
        return replace(self, numbers=())

    def generator(self, seed: int) -> np.random.Generator:
        """Make the generator that draws the order of this pass."""
        return np.random.default_rng([seed % 2**64, self.worker, *self.numbers])


class PassCounter:
    """Numbers the passes over a dataset and all that is derived from it, for each strategy.

    Separately, because synchronous workers must agree on the number: what the program goes through
    by itself, or other workers that are threads of this process, must not change it.
    """

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, Iterator[int]] = WeakKeyDictionary()

    def next(self, strategy: object | None = None) -> int:
        """Count the next pass, and return its number; None: by the program itself."""
        return next(self._counts.setdefault(self if strategy is None else strategy, count()))

    def __reduce__(self) -> tuple[type["PassCounter"], tuple[()]]:
        return PassCounter, ()  # a copy, of another process or not, has had no pass yet
