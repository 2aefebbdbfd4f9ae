"""Top-k sparsification with error feedback: send the largest elements, remember the rest."""

import math

import numpy as np

from ...core.arrays import Array, DType, narrow

MIN_ELEMENTS = 1024  # smaller gradients cost more in numbers than they save


class ErrorFeedback:
    """What was not sent yet, by variable; as large as the variables.

    A selection counts once :meth:`sent` was called; a push that failed leaves everything as it was.

    Args:
        share: Of the elements that are sent, in (0, 1).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rest: dict[str, Array] = {}
        self._chosen: dict[str, Array] = {}

    def choose(self, name: str, gradient: Array, wire: DType) -> tuple[Array, Array]:
        """The elements to send of a gradient and what was left of earlier ones.

        Args:
            name: The variable's.
            gradient: Of it.
            wire: What the elements travel as; what rounding takes away is remembered too.

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
        self._chosen[name] = total
        return numbers.astype(np.int64, copy=False), elements

    def sent(self) -> None:
        """The push arrived."""
        self._rest |= self._chosen
        self._chosen = {}

    def forget(self) -> None:
        """The push did not arrive."""
        self._chosen = {}
