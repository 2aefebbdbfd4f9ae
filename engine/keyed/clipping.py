"""Clipping of a table's gradients by norm, after those of equal keys were added up."""

import math
from dataclasses import dataclass

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ..library import library


@dataclass(frozen=True, slots=True)
class NormClipping:
    """How gradients are clipped; None: they are not.

    Attributes:
        row_norm: The largest norm of a row's gradient.
        table_norm: The largest norm of all gradients of a push, after rows were clipped.
    """

    row_norm: float | None = None
    table_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("row_norm", "table_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"{name} is {value}; it must be positive and finite")

    def apply(self, gradients: Array, scale: float) -> tuple[Array, float]:
        """Clip gradients that are still to be multiplied by ``scale``.

        Args:
            gradients: contiguous, shape ``(n, dim)``.
            scale: Positive.

        Returns:
            (the gradients, another array if they were clipped; the scale, smaller if they were)
        """
        if (self.row_norm is None and self.table_norm is None) or not gradients.size:
            return gradients, scale
        squares = square_rows(gradients)
        if self.row_norm is not None:
            norms = np.sqrt(squares) * scale
            factors = np.where(norms > self.row_norm, self.row_norm / np.where(norms, norms, 1), 1)
            gradients = gradients * factors.astype(gradients.dtype)[:, None]
            squares = squares * factors**2
        if self.table_norm is not None:
            # In order, so that every processor makes the same sum.
            norm = math.sqrt(float(np.cumsum(squares)[-1])) * scale
            if norm > self.table_norm:
                scale *= self.table_norm / norm
        return gradients, scale


def square_rows(gradients: Array) -> Array:
    """The sum of the squares of each row, float64, shape ``(n,)``."""
    count, width = gradients.shape
    kernel = library.row_kernel_if_ready("square_rows", gradients.dtype)
    if kernel is not None:
        out = np.empty(count)
        kernel(gradients.reshape(-1), width, out)
        return out
    out = np.zeros(count)
    for i in range(width):
        x = gradients[:, i].astype(np.float64)
        out += x * x
    return out
