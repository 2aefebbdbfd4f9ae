"""Division of global batches into batches of replicas. Pure: structures of arrays in and out."""

import math
from typing import Any

from ...core.arrays.any_framework import as_array
from ..base.values import leaves, map_structure

Batch = Any


def cut(batch: Batch, parts: int, wanted: slice = slice(None)) -> list[Batch]:
    """Cut a batch into parts of equal length, rounded up; the last may be short or empty.

    What TensorFlow does under its default policy for every global batch, short ones too, whatever
    the strategy (``RebatchDataset``, which ``AutoShardPolicy.DATA`` puts in the place of the one
    that makes sizes differ by one at most).

    Args:
        batch: Nested arrays or tensors with one first axis. Parts are views of them.
        parts: Replicas that share it.
        wanted: Range of the parts to return.
    """
    batch = as_sliceable(batch)
    length = common_length(batch)
    size = math.ceil(length / parts)
    return [
        take(batch, min(i * size, length), min((i + 1) * size, length))
        for i in range(parts)[wanted]
    ]


def take(arrays: Batch, start: int, stop: int) -> Batch:
    """Take examples ``[start, stop)`` of a batch."""
    return map_structure(lambda array: array[start:stop], arrays)


def empty_like(batch: Batch) -> Batch:
    """Make a batch of the same kind without examples. A number beside arrays is 0 in it.

    Raises:
        ValueError: All leaves are scalars.
    """
    batch = as_sliceable(batch)
    if all(leaf.ndim == 0 for leaf in leaves(batch)):
        raise _no_batch(batch)
    return map_structure(lambda leaf: leaf[:0] if leaf.ndim else leaf * 0, batch)


def as_arrays(batch: Batch) -> Batch:
    """Convert the leaves of a batch to arrays."""
    return map_structure(as_array, batch)


def as_sliceable(batch: Batch) -> Batch:
    """Make the leaves of a batch sliceable: tensors stay tensors, the rest become arrays."""
    return map_structure(lambda leaf: leaf if _is_sliceable(leaf) else as_array(leaf), batch)


def _is_sliceable(leaf: Any) -> bool:
    return hasattr(leaf, "ndim") and hasattr(leaf, "shape") and hasattr(leaf, "__getitem__")


def common_length(tree: Batch) -> int:
    """Count the examples of a batch.

    Raises:
        ValueError: A leaf is a scalar, or first axes differ.
    """
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves(tree)}
    if len(lengths) != 1 or None in lengths:
        raise _no_batch(tree)
    return int(lengths.pop() or 0)


def _no_batch(tree: Batch) -> ValueError:
    shapes = map_structure(lambda leaf: leaf.shape, tree)
    return ValueError(
        "arrays of one batch need the same first axis. Call the `batch` method on the input "
        f"Dataset if these are single examples. Shapes: {shapes}"
    )
