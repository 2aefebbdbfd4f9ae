"""Requests of a lookup of features to each table, and how rows become what it returns.

Training and serving look rows up in the same way, and get them from different places: this is what
they share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from .bags import Bag
from .config import FeatureConfig, TableConfig
from .inputs import bag_of


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
        ids: Ids by name of the feature; see :func:`~ropewalk.distribute.embedding.inputs.bag_of`.
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
