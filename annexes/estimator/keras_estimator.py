"""``model_to_estimator``: a compiled Keras model as an Estimator. As ``tf.keras.estimator``'s.

Each training, evaluation and prediction has a copy of the model, as TensorFlow's graphs were. A
training shares its weights by the bridge (``rw.training.keras.distribute``), under their paths; an
evaluation loads them by these from the checkpoint.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core import annexes
from ...core.errors import ConfigurationError
from ...distribute.base.contexts import Frame, default_strategy, entered
from ...distribute.strategies.default import get_strategy
from ...training.array_store import ArrayStore
from ...training.extras import require
from .building import checkpoint_has, once
from .estimator import Estimator
from .metrics import to_numpy
from .run_config import RunConfig
from .spec import EstimatorSpec, ModeKeys

log = logging.getLogger(__name__)


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None,
    config: RunConfig | None = None,
    metric_names_map: Mapping[str, str] | None = None,
) -> Estimator:
    """Make an Estimator that trains a copy of a compiled Keras model.

    Predictions are a dict by the names of the model's outputs; ``evaluate`` gives the metrics of
    ``compile`` and the loss; an export has ``model.keras``.

    Args:
        keras_model: Built and compiled, with weights to begin with; or
        keras_model_path: A saved one.
        custom_objects: Custom objects to load or copy it with.
        model_dir: See :class:`Estimator`.
        config: See :class:`Estimator`.
        metric_names_map: Other names for metrics.

    Raises:
        MissingExtraError: Keras is not installed.
        ConfigurationError: Both or neither model are given, or it is not built or not compiled.
    """
    keras = require("keras", "keras")
    if (keras_model is None) == (keras_model_path is None):
        raise ConfigurationError(
            "Either `keras_model` or `keras_model_path` needs to be provided, and not both."
        )
    model = keras_model
    if model is None:
        model = keras.models.load_model(keras_model_path, custom_objects=custom_objects)
    copies = _ModelCopies(model, _compile_config(model), dict(custom_objects or {}))
    model_fn = _model_fn_of(copies, dict(metric_names_map or {}))
    return Estimator(model_fn, model_dir=model_dir, config=config)


class _ModelCopies:
    """Makes copies of a compiled Keras model, with the weights that it has now."""

    def __init__(self, model: Any, compiled: Any, custom_objects: dict[str, Any]) -> None:
        self._model, self._compiled, self._custom_objects = model, compiled, custom_objects
        self._first = [np.array(weight) for weight in model.get_weights()]
        self._keras = require("keras", "keras")

    def _copy(self) -> Any:
        # In no scope: there a model may be shared before it has its weights.
        outside = entered(Frame(default_strategy(), None))
        with outside, self._keras.utils.custom_object_scope(self._custom_objects):
            model = self._keras.models.clone_model(self._model)
            model.compile_from_config(self._compiled)
            model.set_weights(self._first)
        return model

    def to_train(self) -> Any:
        """Make a copy whose weights are shared under the strategy of now."""
        instead = "start a process for each, or train the model by its own `fit`, which divides"
        _require_one_replica("train_distribute", f"{instead} batches")
        bridge = annexes.the("for_estimators", "keras_bridge", "model_to_estimator")  # needs Keras
        bridge.share_anew(get_strategy())
        return bridge.distribute(self._copy(), get_strategy())

    def to_look_at(self) -> "tuple[Any, _MetricSums]":
        """Make a copy with the checkpoint's weights; returns also what its metrics add up to."""
        _require_one_replica("eval_distribute", "leave it out")
        model = self._copy()
        _load(model, self._keras)
        return model, _MetricSums(model)


def _model_fn_of(copies: _ModelCopies, names: Mapping[str, str]) -> Callable[..., EstimatorSpec]:
    """Make the model function of an Estimator.

    Args:
        copies: Makes the models that it calls.
        names: Other names for metrics.
    """

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        if mode == ModeKeys.TRAIN:
            training = once(copies.to_train)

            def train_op() -> Any:
                return training.train_on_batch(features, labels, return_dict=True)["loss"]

            return EstimatorSpec(mode, train_op=train_op)
        looked_at, sums = once(copies.to_look_at)
        if mode == ModeKeys.PREDICT:
            outputs = _named(looked_at, looked_at.predict_on_batch(features))
            return EstimatorSpec(
                mode, predictions=outputs, export_outputs={"model.keras": looked_at.save}
            )
        logs = looked_at.test_on_batch(features, labels, return_dict=True)
        sums.add()
        metrics = {names.get(name, name): (lambda name=name: sums.results()[name]) for name in logs}
        return EstimatorSpec(mode, loss=logs["loss"], eval_metric_ops=metrics)

    return model_fn


def _require_one_replica(setting: str, instead: str) -> None:
    strategy = get_strategy()
    replicas = len(strategy.extended.replica_devices)
    if replicas > 1:
        raise ConfigurationError(
            f"{setting} is {type(strategy).__name__} with {replicas} replicas in this process, "
            f"each of which calls model_fn, and they would share one Keras model; {instead}"
        )


def _compile_config(model: Any) -> Any:
    """Read the configuration with which a copy of a model is compiled.

    Raises:
        ConfigurationError: The model is not compiled or not built, or cannot be copied.
    """
    if not model.compiled or model.optimizer is None:
        raise ConfigurationError(
            f"{model.name!r} is not compiled; call compile with an optimizer before it becomes an "
            "Estimator"
        )
    if not model.built:
        raise ConfigurationError(
            f"{model.name!r} is not built; give it a keras.Input, or call it on one batch"
        )
    compiled = model.get_compile_config()
    if compiled is None:
        raise ConfigurationError(
            f"{model.name!r} was compiled with what has no configuration (a function, an object "
            "of a class that is not registered), so there can be no copy of it"
        )
    return compiled


class _MetricSums:
    """The states of a model's metrics, which Keras begins anew for every ``test_on_batch``, added
    up.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sums: list[Any] = []

    def _variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def add(self) -> None:
        """Add the sums of the last batch."""
        states = [to_numpy(variable.value).astype(np.float64) for variable in self._variables()]
        sums = self._sums or [np.zeros_like(state) for state in states]
        self._sums = [total + state for total, state in zip(sums, states, strict=True)]

    def results(self) -> dict[str, Any]:
        """Compute the metrics of all batches."""
        for variable, total in zip(self._variables(), self._sums, strict=True):
            variable.assign(total.astype(variable.dtype))
        results: dict[str, Any] = self._model.get_metrics_result()
        return results


def _load(model: Any, keras: Any) -> None:
    """Give a model the checkpoint's weights, as far as it has them."""
    floating = {
        variable.path: variable
        for variable in model.weights
        if keras.backend.is_float_dtype(variable.dtype)
    }
    restored = {path: variable for path, variable in floating.items() if checkpoint_has(path)}
    missing = sorted(floating.keys() - restored.keys())
    if missing:
        log.warning(
            "the checkpoint has no %s: workers in sync keep what their layers make", missing[0]
        )
    store = ArrayStore({p: to_numpy(v.value) for p, v in restored.items()}, None, get_strategy())
    for path, value in store.pull(list(restored)).items():
        restored[path].assign(value)


def _named(model: Any, outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    several = outputs if isinstance(outputs, list | tuple) else [outputs]
    names = getattr(model, "output_names", None)
    if names is None or len(names) != len(several):  # a sequential or a subclassed model
        names = [model.layers[-1].name] if len(several) == 1 else map(str, range(len(several)))
    return dict(zip(names, several, strict=True))
