"""Batches of arrays that differ in shape, padded to one. As ``tf.data.Dataset.padded_batch``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..base.values import flatten
from .passes import Pass

Extents = Sequence[int | None]


def padded(
    batch_size: int,
    shapes: Any,
    values: Any,
    drop_remainder: bool,
    this: Pass,
    elements: Iterator[Any],
) -> Iterator[Any]:
    """Make batches of ``batch_size`` elements, each leaf padded at its ends.

    Args:
        batch_size: Elements of a batch.
        shapes: Shapes in the elements' structure, one per leaf: None or -1 is the largest extent in
            the batch. None for the whole: the largest extents.
        values: Values to pad with, in the elements' structure; one value is for all leaves. None:
            0, and the empty string in texts.
        drop_remainder: Leave out a last batch that is not full.
        this: The pass.
        elements: Nested arrays; each leaf has one rank in all of them.

    Raises:
        ValueError: A leaf is larger than the shape that it is padded to, or has another rank.
    """
    del this
    least = batch_size if drop_remainder else 1
    while len(examples := list(islice(elements, batch_size))) >= least:
        columns = zip(*(flatten(example)[0] for example in examples), strict=True)
        wanted = _per_leaf(examples[0], shapes)
        fills = _per_leaf(examples[0], values)
        rebuild = flatten(examples[0])[1]
        yield rebuild(
            [_stacked(*column) for column in zip(map(list, columns), wanted, fills, strict=True)]
        )


def _per_leaf(element: Any, setting: Any) -> list[Any]:
    """List what is given for each leaf of an element, in the order of :func:`flatten`."""
    if isinstance(element, Mapping):
        named = setting if isinstance(setting, Mapping) else dict.fromkeys(element, setting)
        return [leaf for key in sorted(element) for leaf in _per_leaf(element[key], named[key])]
    if isinstance(element, tuple):
        parts = setting if isinstance(setting, tuple) else (setting,) * len(element)
        pairs = zip(element, parts, strict=True)
        return [leaf for part, its in pairs for leaf in _per_leaf(part, its)]
    return [setting]


def _stacked(column: list[Any], wanted: Any, fill: Any) -> Any:
    """Pad arrays of one leaf to one shape and stack them."""
    arrays = [np.asarray(item) for item in column]
    extents = _extents(arrays, wanted)
    if fill is None:
        fill = arrays[0].dtype.type()
    dtype = np.result_type(*arrays)
    batch = np.full((len(arrays), *extents), fill, dtype)
    for row, array in enumerate(arrays):
        places: tuple[Any, ...] = (row, *map(slice, array.shape))
        batch[places] = array
    return batch


def _extents(arrays: list[Any], wanted: Any) -> tuple[int, ...]:
    """Compute the shape that arrays are padded to."""
    rank = arrays[0].ndim
    asked: Extents = (
        [None] * rank if wanted is None else [wanted] if np.ndim(wanted) == 0 else wanted
    )
    if len(asked) != rank or any(array.ndim != rank for array in arrays):
        ranks = sorted({array.ndim for array in arrays})
        raise ValueError(f"elements of rank {ranks} are padded to the shape {tuple(asked)}")
    largest = np.max([array.shape for array in arrays], axis=0) if rank else ()
    extents = [
        int(most) if extent in (None, -1) else int(extent)
        for extent, most in zip(asked, largest, strict=True)
    ]
    if any(extent < most for extent, most in zip(extents, largest, strict=True)):
        raise ValueError(
            f"Attempted to pad to a smaller size than the input element: {tuple(extents)}, "
            f"elements of up to {tuple(map(int, largest))}"
        )
    return tuple(extents)
