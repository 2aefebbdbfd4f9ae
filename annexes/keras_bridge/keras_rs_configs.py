"""Configurations of keras-rs as those of ``rw.embedding``.

They are read by their fields, so keras-rs need not be installed.
"""

from typing import Any

from ...core.errors import ConfigurationError
from ...core.rules.counterparts import OnWorker
from ...core.rules.initializers import Initializer
from ...distribute.embedding.config import FeatureConfig, TableConfig
from ...distribute.optimizer import Optimizer
from ...training.rule_table import optimizer_of
from .frameworks import keras
from .optimizer import found_place

_INITIALIZERS = {
    "Zeros": ("zeros", ()),
    "Ones": ("ones", ()),
    "Constant": ("constant", ("value",)),
    "RandomNormal": ("random_normal", ("mean", "stddev")),
    "RandomUniform": ("random_uniform", ("minval", "maxval")),
    "TruncatedNormal": ("truncated_normal", ("mean", "stddev")),
}
"""Initializers of Keras by class: ours, and the fields that both have."""


def feature_of(feature: Any, tables: dict[int, TableConfig]) -> FeatureConfig:
    """Make a feature of ``rw.embedding``.

    Args:
        feature: Feature of ``rw.embedding``, or keras-rs's ``FeatureConfig``.
        tables: Tables that were made of keras-rs's, by the id of these; those of this feature are
            added.

    Raises:
        ConfigurationError: It is neither, or has what is not done here.
    """
    if isinstance(feature, FeatureConfig):
        return feature
    if not all(hasattr(feature, field) for field in ("name", "table", "output_shape")):
        raise ConfigurationError(f"{feature!r} is no FeatureConfig, of rw.embedding or keras-rs")
    if len(feature.output_shape) != 2:
        raise ConfigurationError(
            f"feature {feature.name!r} has output_shape={tuple(feature.output_shape)}; here rows "
            "are combined, to (examples, dim). For rows that stay apart write "
            "rw.embedding.FeatureConfig(…, max_sequence_length=n)"
        )
    key = id(feature.table)
    if key not in tables:
        tables[key] = _table_of(feature.table)
    return FeatureConfig(feature.name, tables[key])


def _table_of(table: Any) -> TableConfig:
    return TableConfig(
        table.name,
        table.embedding_dim,
        vocabulary_size=table.vocabulary_size,
        initializer=_initializer_of(table),
        optimizer=_optimizer_of(table),
        combiner=table.combiner,
    )


def _initializer_of(table: Any) -> Initializer | None:
    initializer = keras.initializers.get(table.initializer)
    kind, config = type(initializer).__name__, initializer.get_config()
    if kind == "VarianceScaling" and config["mode"] == "fan_out" and config["scale"] == 1.0:
        return None  # keras-rs's default, which its documentation describes as ours
    if kind not in _INITIALIZERS:
        raise ConfigurationError(
            f"table {table.name!r} has the initializer {kind}; those of tables are "
            f"{', '.join(_INITIALIZERS)}",
            table=table.name,
        )
    name, fields = _INITIALIZERS[kind]
    arguments = {field: config[field] for field in fields}
    return Initializer(name, seed=config.get("seed") or 0, arguments=arguments)


def _optimizer_of(table: Any) -> Optimizer | None:
    if table.optimizer is None:
        return None
    optimizer = keras.optimizers.get(table.optimizer)
    place = found_place(optimizer, [])
    if isinstance(place, OnWorker):
        raise ConfigurationError(
            f"the optimizer of table {table.name!r}, {type(optimizer).__name__}, {place.reason}, "
            "and those of tables run on the servers: write one that has a rule (docs/bridges.md)",
            table=table.name,
        )
    return optimizer_of(place)
