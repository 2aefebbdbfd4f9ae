"""Rows of a larger array: the gradient of a lookup.

As ``tf.IndexedSlices``: repeated indices add up.
"""

from dataclasses import dataclass

import numpy as np

from .any_framework import to_host
from .dtypes import Array, DType


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """Rows ``values`` at ``indices`` of an array of ``dense_shape``.

    Attributes:
        values: array, shape ``(n, *row)``. Given as ``(*indices.shape, *row)``, of any framework;
            on the host.
        indices: integer array, shape ``(n,)``. May repeat; repeated rows add up. Given in any
            shape, as the ids of a lookup are; kept flat.
        dense_shape: shape ``(rows, *row)`` of the whole, or None where it does not matter.
    """

    values: Array
    indices: Array
    dense_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        values, indices = to_host(self.values), to_host(self.indices)
        if indices.size == 0 and indices.dtype.kind == "f":
            indices = indices.astype(np.int64)  # of an empty list
        if indices.dtype.kind not in "iu":
            raise ValueError(f"indices must be integers, got {indices.dtype}")
        if values.shape[: indices.ndim] != indices.shape:
            raise ValueError(
                f"values of shape {values.shape} and indices of shape {indices.shape} do not fit: "
                "one row per index is needed"
            )
        if indices.ndim != 1:
            values = values.reshape(indices.size, *values.shape[indices.ndim :])
            indices = indices.reshape(-1)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "indices", indices.astype(np.int64, copy=False))

    @property
    def dtype(self) -> DType:
        """Dtype of the rows."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the whole: ``dense_shape``."""
        return self.dense_shape

    @property
    def nbytes(self) -> int:
        """Size of rows and indices. Unit: bytes."""
        return self.values.nbytes + self.indices.nbytes

    def copy(self) -> "IndexedSlices":
        """Copy the slices into memory of their own."""
        return IndexedSlices(self.values.copy(), self.indices.copy(), self.dense_shape)

    def combined(self) -> "IndexedSlices":
        """Combine rows to a gradient with each index once, ascending; repeated rows are summed.

        Summed in the values' dtype, in the order they stand in.
        """
        indices = self.indices
        if indices.size < 2 or bool(np.all(indices[1:] > indices[:-1])):
            return self
        order = np.argsort(indices, kind="stable")
        ascending = indices[order]
        starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
        values = self.values[order]
        if starts.size != indices.size:
            # NumPy would widen small integers.
            values = np.add.reduceat(values, starts, axis=0, dtype=values.dtype)
        return IndexedSlices(values, ascending[starts], self.dense_shape)

    def to_dense(self) -> Array:
        """Make the whole array, zero elsewhere.

        Raises:
            ValueError: ``dense_shape`` is not known.
        """
        if self.dense_shape is None:
            raise ValueError("dense_shape is not known")
        dense = np.zeros(self.dense_shape, self.values.dtype)
        np.add.at(dense, self.indices, self.values)
        return dense
