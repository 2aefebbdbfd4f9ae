"""ShardedVariable: variables that are the parts of one, cut along axis 0."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.terminal import counted
from ..base.reductions import VariableAggregation, VariableSynchronization
from .conversions import row_numbers
from .scatter import Scatter
from .spec import VariableSpec
from .variable import Variable


class ShardedVariable(Variable):
    """Variables that are parts of one along axis 0. As TensorFlow's ``ShardedVariable``.

    Reading or assigning the whole touches every shard; rows, elements and slices only the shards
    they are in.

    Args:
        variables: The shards, in order: one dtype, and one shape but for axis 0.
        name: Name of the whole variable.

    Raises:
        TypeError: ``variables`` is not a list of variables, or is empty.
        ValueError: Dtypes or shapes differ.
    """

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        if not isinstance(variables, list | tuple) or not all(
            isinstance(variable, Variable) for variable in variables
        ):
            raise TypeError(f"`variables` should be a list of variables, got {variables!r}")
        if not variables:
            raise TypeError(
                "`variables` should be a list of at least one variable, got an empty one"
            )
        first = variables[0]
        for variable in variables:
            if variable.dtype != first.dtype:
                raise ValueError(
                    f"All elements in `variables` must have the same dtype, got {first.dtype.name} "
                    f"and {variable.dtype.name}"
                )
            if variable.shape[1:] != first.shape[1:] or not variable.shape:
                raise ValueError(
                    "All elements in `variables` must have the same shape but for axis 0, got "
                    f"{first.shape} and {variable.shape}"
                )
        shape = (sum(variable.shape[0] for variable in variables), *first.shape[1:])
        self._set_up(
            VariableSpec(
                None, name, shape, first.dtype, first.trainable, VariableSynchronization.AUTO,
                VariableAggregation.NONE, None,
            ),
            name,
            first.strategy,
        )  # fmt: skip
        self._shards = list(variables)

    @property
    def variables(self) -> Sequence[Variable]:
        """The shards, in order."""
        return self._shards

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def read_value(self) -> Any:
        """Put the shards together."""
        return np.concatenate([to_host(shard.read_value()) for shard in self.variables])

    def assign(self, value: Any) -> Variable:
        """Overwrite every shard with its part."""
        self._each("assign", value)
        return self

    def assign_add(self, delta: Any) -> Variable:
        """Add to every shard its part."""
        self._each("assign_add", delta)
        return self

    def _each(self, method: str, value: Any) -> None:
        array = to_host(value)
        self._require_shape(array)
        for shard, start, stop in self._ranges():
            getattr(shard, method)(array[start:stop])

    def _ranges(self) -> Iterator[tuple[Variable, int, int]]:
        """Yield every shard, with the rows of the whole it holds."""
        start = 0
        for shard in self.variables:
            yield shard, start, start + shard.shape[0]
            start += shard.shape[0]

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> Variable:
        """Change rows, in the shards that have them."""
        rows = row_numbers(delta.indices, self.shape, self.name)
        for shard, start, stop in self._ranges():
            mine = (rows >= start) & (rows < stop)
            if mine.any():
                shard.scatter(kind, IndexedSlices(delta.values[mine], rows[mine] - start))
        return self

    def sparse_read(self, indices: Any) -> Any:
        """Read rows by number, in the order asked for; only their shards are read.

        (TensorFlow gives them grouped by shard.)
        """
        rows = row_numbers(indices, self.shape, self.name)
        out = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        for shard, start, stop in self._ranges():
            mine = (rows >= start) & (rows < stop)
            if mine.any():
                out[mine] = to_host(shard.sparse_read(rows[mine] - start))
        return out

    def embedding_lookup(self, ids: Any) -> Any:
        """Read rows ``ids``, in their order and shape, as ``tf.nn.embedding_lookup``."""
        return self.sparse_read(ids)

    def gather_nd(self, indices: Any) -> Any:
        """Read elements or slices at ``indices``, shape ``(..., k)``; only the rows they are in."""
        where = to_host(indices)
        if where.shape[-1] == 0:
            raise ValueError("gather_nd needs at least one index per element")
        rows = self.sparse_read(where[..., 0])
        rest = np.moveaxis(where[..., 1:], -1, 0)
        places = np.indices(where.shape[:-1])
        return rows[(*places, *rest)]

    def __getitem__(self, index: Any) -> Any:
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        rows = self._rows_of(first)
        if rows is None or any(isinstance(item, np.ndarray | list) for item in rest):
            # (Arrays of numbers go together along their axes, which parts would not.)
            return to_host(self.read_value())[index]
        picked = self.sparse_read(rows)
        return picked[rest] if np.ndim(rows) == 0 else picked[(slice(None), *rest)]

    def _rows_of(self, first: Any) -> Array | None:
        """Find the rows an index takes along axis 0; None: read the whole, it is needed or
        simpler.
        """
        count = self.shape[0]
        if isinstance(first, int | np.integer) and not isinstance(first, bool):
            if not -count <= first < count:
                raise IndexError(
                    f"index {first} is out of bounds for {self.name!r} with {counted(count, 'row')}"
                )
            return np.asarray(int(first) % count)
        if isinstance(first, slice):
            rows = range(*first.indices(count))  # ValueError for a step of 0
            return None if len(rows) == count and rows.step == 1 else np.asarray(rows, np.int64)
        if isinstance(first, np.ndarray | list):
            index = np.asarray(first)
            if index.dtype == np.bool_ and index.shape == (count,):
                return np.flatnonzero(index)
        return None
