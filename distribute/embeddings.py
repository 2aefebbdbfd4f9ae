"""Rows of tables by id: lookups of ``tf.nn``, and the gradient that goes back to the rows.

The ids may have any shape, and the table may be any variable: only the rows that are asked for are
read, from parameter servers too, and repeated ids travel once. A :class:`Bag` has the ids of each
example, and combines their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arrays.any_framework import as_array, namespace_of, to_host
from ..core.arrays.dtypes import Array
from ..core.arrays.indexed_slices import IndexedSlices
from ..engine.rows import gather_rows, sum_duplicates
from .variables.sharded import ShardedVariable
from .variables.variable import Variable

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


def embedding_lookup(params: Any, ids: Any, max_norm: float | None = None) -> Any:
    """Look up rows of a table, as ``tf.nn.embedding_lookup``. As ``tf.nn.embedding_lookup``.

    Args:
        params: The table, shape ``(rows, *row)``: a variable of any strategy, an array, or a list
            of variables that are its shards, in order (TensorFlow's "div").
        ids: integers of any shape.
        max_norm: Rows whose L2 norm is larger are scaled down to it.

    Returns:
        array, shape ``(*ids.shape, *row)``. Its gradient is
        ``IndexedSlices(gradient, ids)``, whatever the shape of ``ids``.

    Raises:
        ShapeMismatchError: An id is not in ``[0, rows)``.
        TypeError: Ids are no integers.
    """
    table = ShardedVariable(params) if isinstance(params, list | tuple) else params
    if isinstance(table, Variable):
        rows = table.sparse_read(ids)
    else:
        rows = Variable(table, trainable=False).sparse_read(ids)
    return rows if max_norm is None else _clipped(rows, np.ndim(ids), max_norm)


def _clipped(rows: Any, leading: int, max_norm: float) -> Any:
    axes = tuple(range(leading, rows.ndim))
    xp = namespace_of(as_array(rows))
    norms = xp.sqrt(xp.square(rows).sum(axis=axes, keepdims=True))
    return rows * (max_norm / xp.maximum(norms, max_norm)).astype(rows.dtype)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any = None,
    combiner: str = "mean",
    max_norm: float | None = None,
) -> Any:
    """Look up several rows for each example, combined into one, as
    ``tf.nn.embedding_lookup_sparse``. As ``tf.nn.embedding_lookup_sparse``.

    Args:
        params: Table, as :func:`embedding_lookup` takes it.
        sp_ids: List of ids of each example, of any lengths; or what has ``indices`` of shape ``(n,
            2)``, ``values`` of shape ``(n,)`` and ``dense_shape``, as a ``tf.SparseTensor``.
        sp_weights: Weights in the form of ``sp_ids``, floats; None: 1.
        combiner: ``"sum"`` of weighted rows; ``"mean"``: over the sum of weights; ``"sqrtn"``: over
            the root of the sum of their squares.
        max_norm: Largest norm of a row, as in :func:`embedding_lookup`.

    Returns:
        array, shape ``(examples, *row)``: zeros for an example without ids.

    Raises:
        ValueError: Another combiner, or weights that do not fit the ids.
        ShapeMismatchError: An id is not in ``[0, rows)``.
    """
    bag = _bag(sp_ids, sp_weights, combiner)
    rows = to_host(embedding_lookup(params, bag.ids, max_norm))
    combined = bag.combine(rows.reshape(bag.ids.size, -1), None)
    return combined.reshape(bag.examples, *rows.shape[1:])


def embedding_lookup_sparse_gradient(
    gradient: Any, sp_ids: Any, sp_weights: Any = None, combiner: str = "mean"
) -> IndexedSlices:
    """Compute the gradient of the table, out of that of :func:`embedding_lookup_sparse`'s result.

    Ours: TensorFlow differentiates by itself. Without ``max_norm``, which has another one.

    Args:
        gradient: array, shape ``(examples, *row)``.
        sp_ids: Ids of the lookup.
        sp_weights: Weights of the lookup.
        combiner: Combiner of the lookup.

    Raises:
        ValueError: As of the lookup, or the gradient has another number of examples.
    """
    bag = _bag(sp_ids, sp_weights, combiner)
    values = to_host(gradient)
    if values.shape[:1] != (bag.examples,):
        raise ValueError(
            f"the gradient has shape {values.shape}, there are {bag.examples} examples"
        )
    return IndexedSlices(bag.spread(values), bag.ids)


def _bag(sp_ids: Any, sp_weights: Any, combiner: str) -> Bag:
    ids, example, examples = _flat(sp_ids)
    weights = None
    if sp_weights is not None:
        weights, of, _ = _flat(sp_weights)
        if not np.array_equal(of, example):
            raise ValueError("sp_weights must have one weight for every id of sp_ids")
    return make_bag(ids if ids.size else ids.astype(np.int64), example, examples, weights, combiner)


def _flat(sparse: Any) -> tuple[Array, Array, int]:
    """Flatten ids or weights; returns (values, number of the example of each, number of
    examples).
    """
    if hasattr(sparse, "indices") and hasattr(sparse, "values"):
        places, values = np.asarray(sparse.indices), np.asarray(sparse.values)
        return values, places.reshape(-1, 2)[:, 0], int(np.asarray(sparse.dense_shape)[0])
    lists: Sequence[Any] = sparse
    parts = [np.asarray(part).reshape(-1) for part in lists]
    filled = [part for part in parts if part.size]
    values = np.concatenate(filled) if filled else np.zeros(0)
    return values, np.repeat(np.arange(len(parts)), [part.size for part in parts]), len(parts)
