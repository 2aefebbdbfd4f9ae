"""Clipping of a table's gradients by norm, after those of equal keys were added up."""

import math

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.rules.tables import NormClipping
from ..library import library


def clipped(clipping: NormClipping, gradients: Array, scale: float) -> tuple[Array, float]:
    """Clip gradients that are still to be multiplied by ``scale``.

    Args:
        clipping: Largest norms.
        gradients: contiguous, shape ``(n, dim)``.
        scale: Positive.

    Returns:
        (the gradients, another array if they were clipped; the scale, smaller if they were)
    """
    if (clipping.row_norm is None and clipping.table_norm is None) or not gradients.size:
        return gradients, scale
    squares = square_rows(gradients)
    if clipping.row_norm is not None:
        norms = np.sqrt(squares) * scale
        factors = np.where(
            norms > clipping.row_norm, clipping.row_norm / np.where(norms, norms, 1), 1
        )
        gradients = gradients * factors.astype(gradients.dtype)[:, None]
        squares = squares * factors**2
    if clipping.table_norm is not None:
        # In order, so that every processor makes the same sum.
        norm = math.sqrt(float(np.cumsum(squares)[-1])) * scale
        if norm > clipping.table_norm:
            scale *= clipping.table_norm / norm
    return gradients, scale


def square_rows(gradients: Array) -> Array:
    """Sum the squares of each row, float64, shape ``(n,)``."""
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
