"""Tables of ``rw.embedding`` as a layer of Keras: all features of a batch in one exchange.

Rows are combined before they come to the framework, so a feature is an array of shape ``(examples,
dim)`` there. As in :mod:`.embedding` the layer has one small weight, ``rows``, through which the
framework finds the gradient of what was looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.errors import ConfigurationError
from ...core.rules.initializers import Initializer
from ...core.rules.update_rules import OnWorker
from ...distribute.optimizer import Optimizer
from ...training.rule_table import optimizer_of
from ..embedding.features.config import FeatureConfig, TableConfig
from ..embedding.features.tables import Embeddings, WaitingGradients
from .feature_shapes import rows_shape
from .framework_steps import steps_module
from .frameworks import keras, looks_for_shapes
from .optimizer import found_place

# -- Configurations of keras-rs as those of ``rw.embedding`` -----------------------------------
# They are read by their fields, so keras-rs need not be installed.


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


@dataclass(frozen=True)
class _Structure:
    """Features in lists and dictionaries, which Keras would replace by its own."""

    features: Any


class FeatureReader(Protocol):
    """The way in which a framework's step gets combined rows; their gradients wait for the end of
    the step.

    Attributes:
        waiting: The gradients.
    """

    waiting: WaitingGradients

    def read(self, ids: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read combined rows by name of the feature, as tensors of the framework."""


@keras.saving.register_keras_serializable("ropewalk")
class DistributedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """Looks up several features in tables on the servers. As ``keras_rs.layers`` has it.

    ::

        users = rw.embedding.TableConfig("users", dim=16)
        layer = rw.training.keras.DistributedEmbedding(
            {"user": rw.embedding.FeatureConfig("user", users)}, rw.optimizers.Adagrad(0.1)
        )
        rows = layer({"user": keras.Input((5,), dtype="int64")})     # {"user": (examples, 16)}

    The tables are made when the model is distributed, under their own names. They are in the job's
    checkpoints, and in no file of Keras.

    Args:
        feature_configs: Features of ``rw.embedding``, or keras-rs's: one, or lists and dictionaries
            of them. Inputs and outputs are of the same structure.
        optimizer: Optimizer of ``rw.optimizers`` for tables that have none; None: that of the
            model, for tables of a vocabulary_size.
        kwargs: Arguments of any layer: ``name``, ``dtype``.

    Raises:
        ConfigurationError: What keras-rs's configurations say cannot be done here.
    """

    def __init__(
        self, feature_configs: Any, optimizer: Optimizer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        tables: dict[int, Any] = {}
        own = keras.tree.map_structure(lambda feature: feature_of(feature, tables), feature_configs)
        self._structure = _Structure(own)
        self.optimizer = optimizer
        self.supports_jit = steps_module().COMPILES_ROWS
        self._reader: FeatureReader | None = None
        self._rows: Any = None

    @property
    def feature_configs(self) -> Any:
        """The features, in their structure."""
        return self._structure.features

    @property
    def features(self) -> list[FeatureConfig]:
        """The features, in the order of their structure."""
        features: list[FeatureConfig] = keras.tree.flatten(self.feature_configs)
        return features

    def build(self, input_shape: Any = None) -> None:  # noqa: ARG002
        """Make the small weight."""
        self._rows = self.add_weight(name="rows", shape=(1,), initializer="zeros", trainable=True)

    def make_tables(self, models_rule: Optimizer | None) -> Embeddings:
        """Make the tables, of the current strategy.

        Args:
            models_rule: Optimizer of the model on the servers; None: it runs on the worker.

        Raises:
            ConfigurationError: A table has no optimizer.
        """
        for table in (feature.table for feature in self.features):
            own = table.optimizer or self.optimizer
            if own is None and (table.vocabulary_size is None or models_rule is None):
                raise ConfigurationError(
                    f"table {table.name!r} of {self.name!r} has no optimizer, and cannot have the "
                    "model's: a table that grows keeps its own, and one of the worker never has "
                    "all rows; write DistributedEmbedding(…, optimizer=rw.optimizers.Adagrad(…))",
                    table=table.name,
                )
        return Embeddings(self.features, self.optimizer or models_rule)

    def read_from(self, reader: FeatureReader) -> None:
        """Read rows by this from now on."""
        self._reader = reader

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Look up the combined rows of each feature.

        Args:
            inputs: Ids in the structure of the features, of shape ``(examples,)`` or ``(examples,
                n)``.
            weights: Weight of each id, of the same structure and shapes; None, also in place of
                those of a feature: 1. An id of weight 0 is left out, as padding is. Weights get no
                gradient.

        Returns:
            Rows in the same structure: shape ``(examples, dim)``, or ``(examples,
            max_sequence_length, dim)``.
            dim)``.

        Raises:
            ConfigurationError: The model is not distributed, so there is no table; or ids are no
                integers.
        """
        features = self.features
        ids = self._ids(inputs)
        if looks_for_shapes():
            rows = {f.name: keras.ops.zeros(rows_shape(f, ids[f.name].shape[0])) for f in features}
        elif self._reader is None:
            raise ConfigurationError(
                f"{self.name!r} has no tables: its model is not distributed. Make and compile it "
                "in `with strategy.scope():`, and build it by its inputs, not by a call"
            )
        else:
            rows = dict(self._reader.read(ids, self._weights(weights)))
        cast = [keras.ops.cast(rows[feature.name], self.compute_dtype) for feature in features]
        return keras.tree.pack_sequence_as(self.feature_configs, cast)

    def _ids(self, inputs: Any) -> dict[str, Any]:
        """Collect the ids by name of the feature."""
        keras.tree.assert_same_structure(self.feature_configs, inputs)
        ids = _by_name(self.features, inputs)
        for name, array in ids.items():
            if not keras.backend.is_int_dtype(keras.backend.standardize_dtype(array.dtype)):
                raise ConfigurationError(
                    f"ids of feature {name!r} are {array.dtype}, not integers; write "
                    'keras.Input(…, dtype="int64")'
                )
        return ids

    def _weights(self, weights: Any) -> dict[str, Any]:
        """Collect the weights by name of the feature; those that have some."""
        if weights is None:
            return {}
        try:
            keras.tree.assert_same_structure(self.feature_configs, weights)
        except ValueError as error:
            raise ValueError(
                f"weights of {self.name!r} need the structure of its features, with None for one "
                "that has none"
            ) from error
        own = _by_name(self.features, weights)
        return {name: weight for name, weight in own.items() if weight is not None}

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:  # noqa: ARG002
        """Compute the shapes without a call, which needs tables."""
        ids = self._ids(inputs)
        shapes = [rows_shape(feature, ids[feature.name].shape[0]) for feature in self.features]
        specs = [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
        return keras.tree.pack_sequence_as(self.feature_configs, specs)

    def get_config(self) -> dict[str, Any]:
        """Refused: features and optimizers are the program's.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"{self.name!r} is in no file of Keras, since its tables are the job's: save_weights "
            "and load_weights keep the other layers, and model_dir the tables"
        )


def collections_of(model: Any) -> list[DistributedEmbedding]:
    """Find the layers of a model that look up several features, each once."""
    layers = model._flatten_layers()
    by_id = {id(layer): layer for layer in layers if isinstance(layer, DistributedEmbedding)}
    return list(by_id.values())


def _by_name(features: list[FeatureConfig], values: Any) -> dict[str, Any]:
    flat = keras.tree.flatten(values)
    return {feature.name: value for feature, value in zip(features, flat, strict=True)}
