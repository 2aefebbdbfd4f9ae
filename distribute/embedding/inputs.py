"""Ids of features as programs have them: arrays, ragged or sparse; and the bags they make."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from .bags import Bag, make_bag
from .config import FeatureConfig


@dataclass(frozen=True, eq=False)
class Ragged:
    """Ids, or weights, of examples that have different numbers of them.

    Args:
        values: Values of all examples, one after another; shape ``(n,)``.
        row_lengths: Number of values of each example, as in ``tf.RaggedTensor`` and the lengths of
            TorchRec's ``KeyedJaggedTensor``; integers, shape ``(examples,)``.
        offsets: Instead of them where each example begins, and ``n``: as TorchRec's offsets, and
            PyTorch's with ``include_last_offset``; integers, shape ``(examples + 1,)``.

    Raises:
        ValueError: Neither or both, or they do not add up to the values.
    """

    values: Any
    row_lengths: Any = None
    offsets: Any = None

    def __post_init__(self) -> None:
        values = np.asarray(to_host(self.values)).reshape(-1)
        lengths = self.row_lengths
        if (lengths is None) == (self.offsets is None):
            raise ValueError("Ragged takes row_lengths or offsets, one of them")
        if lengths is None:
            offsets = _integers(self.offsets, "offsets")
            if not offsets.size or offsets[0] != 0 or offsets[-1] != values.size:
                raise ValueError(
                    f"offsets go from 0 to the number of values, {values.size}; those of PyTorch "
                    "without include_last_offset lack the last one: append it"
                )
            lengths = np.diff(offsets)
        lengths = _integers(lengths, "row_lengths")
        if (lengths < 0).any() or lengths.sum() != values.size:
            raise ValueError(
                f"there are {values.size} values, and the lengths of {lengths.size} examples add "
                f"up to {int(lengths.sum())}; each must be at least 0"
            )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "row_lengths", lengths)
        object.__setattr__(self, "offsets", None)


@dataclass(frozen=True, slots=True)
class _Flat:
    """Values of examples: ``example`` is the number of the example of each; None: one each."""

    values: Array
    example: Array | None
    examples: int


def bag_of(feature: FeatureConfig, ids: Any, weights: Any) -> Bag:
    """Make the bag of a feature's ids; ids of weight 0 are left out.

    Args:
        feature: The feature.
        ids: integers: an array of shape ``(examples,)`` or ``(examples, n)``, :class:`Ragged`, a
            list of lists or arrays, or what has ``indices``, ``values`` and ``dense_shape``, as a
            ``tf.SparseTensor``. Unsigned 64-bit ids count by their bits.
        weights: Weights in the form of ``ids``, floats of the same shape; beside :class:`Ragged`
            ids also a flat array with a weight for each; None: 1.

    Raises:
        TypeError: Ids are no integers.
        ValueError: Weights do not fit the ids.
    """
    flat = _flat(feature.name, ids)
    keys = _keys(feature.name, flat.values)
    own = None if weights is None else _weights(feature.name, weights, flat, ids)
    example, examples = flat.example, flat.examples
    combiner = feature.table.combiner
    if feature.max_sequence_length:
        combiner, length = "sum", feature.max_sequence_length
        example, kept = _in_sequence(np.arange(examples) if example is None else example, length)
        keys, example, examples = keys[kept], example[kept], examples * length
        own = None if own is None else own[kept]
    if own is not None and not own.all():
        there = np.flatnonzero(own)
        example = (np.arange(examples) if example is None else example)[there]
        keys, own = keys[there], own[there]
    return make_bag(keys, example, examples, own, combiner)


def _in_sequence(example: Array, length: int) -> tuple[Array, Array]:
    """Find the places of ids in sequences of ``length``, and which ids have one."""
    starts = np.searchsorted(example, example)  # they ascend
    position = np.arange(example.size) - starts
    return example * length + position, np.flatnonzero(position < length)


def _flat(feature: str, ids: Any) -> _Flat:
    if isinstance(ids, Ragged):
        example = np.repeat(np.arange(ids.row_lengths.size), ids.row_lengths)
        return _Flat(ids.values, example, ids.row_lengths.size)
    if all(hasattr(ids, name) for name in ("indices", "values", "dense_shape")):
        example = np.asarray(ids.indices).reshape(-1, 2)[:, 0].astype(np.int64)
        order = np.argsort(example, kind="stable")
        return _Flat(np.asarray(ids.values)[order], example[order], int(ids.dense_shape[0]))
    if isinstance(ids, list | tuple) and any(
        isinstance(item, list | tuple) or getattr(item, "ndim", 0) for item in ids
    ):
        parts = [_example(feature, item) for item in ids]
        filled = [part for part in parts if part.size]
        values = np.concatenate(filled) if filled else np.zeros(0, np.int64)
        return _flat(feature, Ragged(values, np.array([part.size for part in parts])))
    array = np.asarray(to_host(ids))
    if array.ndim == 1:
        return _Flat(array, None, array.size)
    if array.ndim == 2:
        example = np.repeat(np.arange(array.shape[0]), array.shape[1])
        return _Flat(array.reshape(-1), example, array.shape[0])
    raise ValueError(
        f"ids of feature {feature!r} have shape {array.shape}; write (examples,), (examples, n), "
        "or Ragged"
    )


def _example(feature: str, ids: Any) -> Array:
    try:
        array = np.asarray(to_host(ids))
    except ValueError:  # lists of unequal lengths
        array = np.empty((0, 0))
    if array.ndim > 1:
        raise ValueError(
            f"feature {feature!r}: an example is a list of lists; write one list of ids, or of "
            "weights, for each"
        )
    return array.reshape(-1)


def _keys(feature: str, values: Array) -> Array:
    if values.dtype.kind in "iu":
        return np.ascontiguousarray(values).astype(np.int64, copy=False)
    if not values.size:
        return np.zeros(0, np.int64)
    advice = "; hash strings with rw.embedding.hash_strings" if values.dtype.kind in "USO" else ""
    raise TypeError(f"ids of feature {feature!r} are {values.dtype}, not integers{advice}")


def _weights(feature: str, weights: Any, ids: _Flat, raw_ids: Any) -> Array:
    flat = _flat(feature, weights)
    if flat.example is None and isinstance(raw_ids, Ragged) and flat.examples == ids.values.size:
        flat = replace(flat, example=ids.example, examples=ids.examples)
    own, wanted = flat.example, ids.example
    same = own is wanted if own is None or wanted is None else np.array_equal(own, wanted)
    if not same or flat.values.size != ids.values.size or flat.examples != ids.examples:
        raise ValueError(
            f"feature {feature!r}: there must be one weight for every id; got {ids.values.size} "
            f"ids of {ids.examples} examples, and {flat.values.size} weights of {flat.examples}"
        )
    if not np.isfinite(flat.values).all():
        raise ValueError(f"feature {feature!r}: a weight is NaN or infinite")
    return flat.values.astype(np.float64)


def _integers(numbers: Any, what: str) -> Array:
    array = np.asarray(to_host(numbers)).reshape(-1)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers, got {array.dtype}")
    return array.astype(np.int64)
