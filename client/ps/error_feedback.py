"""Top-k sparsification with error feedback: send the largest elements, remember the rest."""

import math
from collections.abc import Container, Sequence

import numpy as np

from ...core.arrays.dtypes import Array, DType, narrow

MIN_ELEMENTS = 1024  # smaller gradients cost more in numbers than they save

Span = tuple[int, int, int]
"""A shard's elements of a variable: (index of the ps, start, stop)."""


class ErrorFeedback:
    """The part of gradients that was not sent yet, by variable; as large as the variables.

    A selection counts once :meth:`sent` was called, for the shards of the ps that accepted it; the
    selections for the others are undone.

    Args:
        share: Fraction of the elements that is sent, in (0, 1).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rest: dict[str, Array] = {}
        self._chosen: dict[str, tuple[Array, Sequence[Span]]] = {}

    def choose(
        self, name: str, gradient: Array, wire: DType, shards: Sequence[Span] = ()
    ) -> tuple[Array, Array]:
        """Choose the elements to send of a gradient and what was left of earlier ones.

        Args:
            name: Name of the variable.
            gradient: Gradient of the variable.
            wire: Dtype in which the elements are sent; what rounding takes away is remembered too.
            shards: Range of elements that goes to each ps; none: all of them go to one.

        Returns:
            Ascending int64 numbers and the elements, in ``wire``.
        """
        total = gradient.reshape(-1).copy()
        rest = self._rest.get(name)
        if rest is not None:
            total += rest
        count = math.ceil(self._share * total.size)
        numbers = np.argpartition(np.abs(total), total.size - count)[total.size - count :]
        numbers.sort()
        elements = narrow(total[numbers], wire)
        total[numbers] -= elements.astype(total.dtype)
        self._chosen[name] = (total, shards)
        return numbers.astype(np.int64, copy=False), elements

    def sent(self, accepted: Container[int] | None = None) -> None:
        """Note that the push was applied.

        Args:
            accepted: Ps that have applied it; None: all have.
        """
        for name, (total, shards) in self._chosen.items():
            applied = [span for span in shards if accepted is None or span[0] in accepted]
            if len(applied) == len(shards):
                self._rest[name] = total
                continue
            for _, start, stop in applied:
                rest = self._rest.setdefault(name, np.zeros_like(total))
                rest[start:stop] = total[start:stop]
        self._chosen = {}

    def forget(self) -> None:
        """Forget the selections: the push was not sent."""
        self._chosen = {}
