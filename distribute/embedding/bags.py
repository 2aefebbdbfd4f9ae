"""Bags: the ids of each example, and how their rows become one."""

from dataclasses import dataclass

import numpy as np

from ...core.arrays.dtypes import Array
from ...engine.rows import gather_rows, sum_duplicates

COMBINERS = ("mean", "sqrtn", "sum")


@dataclass(frozen=True, slots=True)
class Bag:
    """Ids of examples, flat.

    Attributes:
        ids: Shape ``(n,)``.
        example: int64, shape ``(n,)``: number of the example of each id; None: one id each.
        examples: Number of examples.
        scale: float64, shape ``(n,)``: what the row of each id is multiplied by; None: by one.
    """

    ids: Array
    example: Array | None
    examples: int
    scale: Array | None

    def combine(self, rows: Array, inverse: Array | None) -> Array:
        """Combine the rows of each example; zeros for one without ids.

        Args:
            rows: Distinct rows, shape ``(count, width)``.
            inverse: int64, shape ``(n,)``: which of them belongs to each id; None: one after the
                other.

        Returns:
            Shape ``(examples, width)``.
        """
        spread = rows if inverse is None else gather_rows(rows, inverse)
        if self.scale is not None:
            spread = spread * self.scale.astype(rows.dtype)[:, None]
        if self.example is None:
            return spread
        out = np.empty((self.examples, rows.shape[1]), rows.dtype)
        return sum_duplicates(spread, self.example, out)

    def spread(self, gradient: Array) -> Array:
        """Spread the gradient of the combined rows to each id's row.

        Args:
            gradient: Shape ``(examples, *row)``.

        Returns:
            Shape ``(n, *row)``.
        """
        spread: Array = gradient if self.example is None else gradient[self.example]
        if self.scale is None:
            return spread
        scale = self.scale.astype(spread.dtype).reshape(-1, *[1] * (spread.ndim - 1))
        return np.asarray(spread * scale)


def make_bag(
    ids: Array, example: Array | None, examples: int, weights: Array | None, combiner: str
) -> Bag:
    """Make a bag with the scale that a combiner gives each id.

    Args:
        ids: Shape ``(n,)``.
        example: int64, shape ``(n,)``; None: one id each.
        examples: Number of examples.
        weights: Shape ``(n,)``; None: 1.
        combiner: ``"sum"`` of weighted rows; ``"mean"``: over the sum of weights; ``"sqrtn"``: over
            the root of the sum of their squares.

    Raises:
        ValueError: Another combiner.
    """
    if combiner not in COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}")
    if weights is None and (example is None or combiner == "sum"):
        return Bag(ids, example, examples, None)
    own = np.ones(ids.size) if weights is None else weights.astype(np.float64)
    if combiner == "sum":
        return Bag(ids, example, examples, own)
    where = np.arange(ids.size) if example is None else example
    power = own**2 if combiner == "sqrtn" else own
    total = np.bincount(where, power, examples)
    if combiner == "sqrtn":
        total = np.sqrt(total)
    divisor = total[where]
    # An example whose weights add up to nothing is zero, not NaN.
    scale = np.divide(own, divisor, out=np.zeros(ids.size), where=divisor != 0)
    return Bag(ids, example, examples, scale)
