"""Top-k sparsification with error feedback: send the largest elements, remember the rest."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from ...core.arrays import Array, DType, narrow

Part = tuple[int, int, int]
"""(ps, start, stop): elements of the flat gradient."""

MIN_ELEMENTS = 1024  # smaller gradients cost more in numbers than they save


class ErrorFeedback:
    """What was not sent yet, by variable; as large as the variables.

    A selection counts for the ps that :meth:`sent` names; the others leave everything as it was.

    Args:
        share: Of the elements that are sent, in (0, 1).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rest: dict[str, Array] = {}
        self._chosen: dict[str, tuple[Array, Sequence[Part]]] = {}

    def choose(
        self, name: str, gradient: Array, wire: DType, parts: Sequence[Part]
    ) -> tuple[Array, Array]:
        """The elements to send of a gradient and what was left of earlier ones.

        Args:
            name: The variable's.
            gradient: Of it.
            wire: What the elements travel as; what rounding takes away is remembered too.
            parts: Which elements go to which ps.

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
        self._chosen[name] = total, parts
        return numbers.astype(np.int64, copy=False), elements

    def sent(self, accepted: Collection[int]) -> None:
        """These ps took their part of the push; what the others were to get counts as not chosen."""
        for name, (total, parts) in self._chosen.items():
            if all(ps in accepted for ps, _, _ in parts):
                self._rest[name] = total
                continue
            rest = self._rest.setdefault(name, np.zeros_like(total))
            for ps, start, stop in parts:
                if ps in accepted:
                    rest[start:stop] = total[start:stop]
        self._chosen = {}

    def forget(self) -> None:
        """No ps took it."""
        self._chosen = {}
