"""Ids of features as programs have them: arrays, ragged or sparse; and the bags they make."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from ....core.arrays.any_framework import to_host
from ....core.arrays.dtypes import Array
from ....core.errors import ConfigurationError
from ....distribute.embeddings import Bag, make_bag
from .config import FeatureConfig, TableConfig


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


# -- Requests of a lookup of features to each table, and how rows become what it returns -------
# Training and serving look rows up in the same way, and get them from different places: this is
# what they share.


@dataclass(frozen=True, slots=True)
class TableIds:
    """The ids of one table in a lookup.

    Attributes:
        table: The table.
        features: Names of its features that are looked up.
        ids: int64: the ids of all of them, one feature after the other.
    """

    table: TableConfig
    features: list[str]
    ids: Array


class FeatureBags:
    """The features of one lookup.

    Args:
        features: All features there are, by name.
        ids: Ids by name of the feature; see :func:`bag_of`.
        weights: Weights by name of the feature, as ``ids``; None: 1.

    Attributes:
        bags: Bags by name of the feature.
        uses: Request to each table.

    Raises:
        KeyError: There is no such feature, or one has weights alone.
        TypeError: Ids are no integers.
        ValueError: Weights do not fit the ids.
    """

    def __init__(
        self,
        features: Mapping[str, FeatureConfig],
        ids: Mapping[str, Any],
        weights: Mapping[str, Any] | None,
    ) -> None:
        weights = weights or {}
        if unknown := (ids.keys() | weights.keys()) - features.keys():
            raise KeyError(f"no feature {min(unknown)!r}; those are {', '.join(features)}")
        if idle := weights.keys() - ids.keys():
            raise KeyError(f"feature {min(idle)!r} has weights and no ids")
        self._features = features
        self.bags: dict[str, Bag] = {
            name: bag_of(features[name], own, weights.get(name)) for name, own in ids.items()
        }
        by_table: dict[TableConfig, list[str]] = {}
        for name in self.bags:
            by_table.setdefault(features[name].table, []).append(name)
        self.uses = [
            TableIds(table, names, joined([self.bags[name].ids for name in names]))
            for table, names in by_table.items()
        ]

    def combined(self, pulled: Sequence[tuple[Array, Array | None]]) -> dict[str, Array]:
        """Combine the rows by name of the feature, in the order in which they were asked for.

        Args:
            pulled: Rows of each of ``uses``: the distinct rows, and which of them belongs to each
                id; None: one after the other.
        """
        values = {}
        for use, (rows, inverse) in zip(self.uses, pulled, strict=True):
            for name, part in zip(use.features, self._parts(use), strict=True):
                values[name] = self._combined(name, rows, inverse, part)
        return {name: values[name] for name in self.bags}

    def _parts(self, use: TableIds) -> Iterator[slice]:
        start = 0
        for name in use.features:
            stop = start + self.bags[name].ids.size
            yield slice(start, stop)
            start = stop

    def _combined(self, name: str, rows: Array, inverse: Array | None, part: slice) -> Array:
        bag = self.bags[name]
        if inverse is None:
            combined = bag.combine(rows[part], None)
        else:
            combined = bag.combine(rows, inverse[part])
        length = self._features[name].max_sequence_length
        return combined.reshape(-1, length, rows.shape[1]) if length else combined


def joined(parts: Sequence[Array]) -> Array:
    """Join arrays, one after the other."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def by_name(features: Sequence[FeatureConfig]) -> dict[str, FeatureConfig]:
    """Index features by name, checked.

    Raises:
        ConfigurationError: One is no feature; or two features, or two tables, have the same name.
    """
    named: dict[str, FeatureConfig] = {}
    for feature in features:
        if not isinstance(feature, FeatureConfig):
            raise ConfigurationError(f"{feature!r} is no feature; write a FeatureConfig")
        if feature.name in named:
            raise ConfigurationError(f"two features have the name {feature.name!r}")
        named[feature.name] = feature
    names = [table.name for table in dict.fromkeys(feature.table for feature in features)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(
            f"two tables have the name {twice!r}; features that share a table name the same "
            "TableConfig",
            table=twice,
        )
    return named


# -- Keys of strings: a stated hash, the same in every process, version and language -----------


def hash_strings(strings: Any, seed: int = 0) -> Array:
    """Hash each string to a key: XXH64 of its bytes, as a signed number.

    Text is hashed as UTF-8. Two strings have the same key by chance: among 10 million of them with
    a probability of three in a million.

    Args:
        strings: ``str`` or ``bytes``: an array or nested lists of any shape.
        seed: Seed of the hash; another one gives other keys, say for two features of one table; in
            [0, 2**64).

    Returns:
        int64, of the same shape.

    Raises:
        TypeError: An element is neither text nor bytes.
        ValueError: The seed is out of range.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
    # As objects: NumPy's own strings forget zero bytes at their ends.
    array = strings if isinstance(strings, np.ndarray) else np.array(strings, dtype=object)
    digests = (
        xxhash.xxh64_intdigest(_bytes_of(string), seed) for string in array.reshape(-1).tolist()
    )
    return np.fromiter(digests, np.uint64, array.size).view(np.int64).reshape(array.shape)


def _bytes_of(string: Any) -> bytes:
    if isinstance(string, str):
        return string.encode()
    if isinstance(string, bytes):
        return string
    raise TypeError(f"hash_strings takes str or bytes, got {type(string).__name__}: {string!r}")
