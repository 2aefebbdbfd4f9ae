"""Metrics of an evaluation: what each batch adds, and what that makes.

Names and arguments are those of ``tf.compat.v1.metrics``.

A graph's metric was a pair of operations over hidden counters. Here a function returns the counts
of this batch; the Estimator adds them up over batches and replicas, in float64. It also takes
objects of ``rw.metrics`` and of Keras that were given this batch, plain numbers, and functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...distribute.roc import area_under_curve, confusion_counts, evenly_spaced

__all__ = [
    "BatchCounts",
    "accuracy",
    "auc",
    "mean",
    "mean_absolute_error",
    "mean_squared_error",
    "precision",
    "recall",
    "root_mean_squared_error",
]

# -- Values of any framework as numbers and NumPy arrays ----------------------------------------


def to_numpy(value: Any) -> Array:
    """Convert an array of NumPy, JAX or PyTorch (with a gradient or without), or a number, to one
    on the host.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(to_host(value) if hasattr(value, "dtype") else value)


def to_float(value: Any) -> float:
    """Convert a value of one element to a number."""
    return float(to_numpy(value).reshape(()))


def is_scalar(value: Any) -> bool:
    """Return whether a value has one element; shapes alone are asked, not values."""
    shape = getattr(value, "shape", None)
    return shape is None or int(np.prod(tuple(shape), dtype=np.int64)) == 1


@dataclass(frozen=True)
class BatchCounts:
    """The counts that one batch adds to a metric.

    Attributes:
        counts: Array, of one shape for every batch.
        result: The metric, of counts added up.
    """

    counts: Array
    result: Callable[[Array], Any]


def mean(values: Any, weights: Any = None) -> BatchCounts:
    """Count a weighted mean of values.

    Args:
        values: Array of any shape.
        weights: Array that fits it by broadcasting, or with axes missing behind; None: 1.
    """
    array = to_numpy(values).astype(np.float64)
    weight = _weights(weights, array)
    return BatchCounts(np.array([(array * weight).sum(), weight.sum()]), _ratio)


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count how often predictions are the labels.

    Raises:
        ConfigurationError: They have different numbers of elements.
    """
    true, pred = _same_shape(labels, predictions)
    return mean(true == pred, weights)


def mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count the mean of squared differences."""
    true, pred = _same_shape(labels, predictions)
    return mean((true.astype(np.float64) - pred) ** 2, weights)


def root_mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count the root of the mean of squared differences."""
    counts = mean_squared_error(labels, predictions, weights).counts
    return BatchCounts(counts, lambda sums: np.sqrt(_ratio(sums)))


def mean_absolute_error(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count the mean of absolute differences."""
    true, pred = _same_shape(labels, predictions)
    return mean(np.abs(true.astype(np.float64) - pred), weights)


def precision(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count the predictions of true that are right. Both are taken as bool."""
    true, pred = (array.astype(bool) for array in _same_shape(labels, predictions))
    return mean(true[pred], None if weights is None else _weights(weights, true)[pred])


def recall(labels: Any, predictions: Any, weights: Any = None) -> BatchCounts:
    """Count the true labels that are predicted. Both are taken as bool."""
    true, pred = (array.astype(bool) for array in _same_shape(labels, predictions))
    return mean(pred[true], None if weights is None else _weights(weights, true)[true])


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    curve: str = "ROC",
) -> BatchCounts:
    """Count the area under a curve, by the trapezoids between thresholds.

    Args:
        labels: 0 or 1.
        predictions: Probabilities.
        weights: Weights of the examples, as in :func:`mean`.
        num_thresholds: Number of thresholds.
        curve: ``"ROC"`` or ``"PR"``.
    """
    if curve not in ("ROC", "PR"):
        raise ConfigurationError(f"curve must be either ROC or PR, {curve!r} unknown")
    true, pred = _same_shape(labels, predictions)
    weight = _weights(weights, pred)
    counts = confusion_counts(true, pred, weight, evenly_spaced(num_thresholds))
    return BatchCounts(counts, lambda sums: area_under_curve(sums, curve, "interpolation"))


def _ratio(sums: Array) -> Any:
    return np.float64(sums[0] / sums[1] if sums[1] else 0.0)


def _same_shape(labels: Any, predictions: Any) -> tuple[Array, Array]:
    true, pred = to_numpy(labels), to_numpy(predictions)
    if true.size != pred.size:
        raise ConfigurationError(
            f"labels have shape {true.shape}, predictions {pred.shape}; they must be alike"
        )
    return true.reshape(-1), pred.reshape(-1)


def _weights(weights: Any, like: Array) -> Array:
    if weights is None:
        return np.ones(like.shape)
    weight = to_numpy(weights).astype(np.float64)
    if weight.size == like.size:
        return weight.reshape(like.shape)
    if weight.ndim < like.ndim:
        weight = weight.reshape(weight.shape + (1,) * (like.ndim - weight.ndim))
    return np.broadcast_to(weight, like.shape)


class MetricSums:
    """Adds up the metrics of an evaluation."""

    def __init__(self) -> None:
        self._counts: dict[str, BatchCounts] = {}
        self._objects: dict[str, Any] = {}
        self._functions: dict[str, Callable[[], Any]] = {}
        self._names: list[str] = []

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of one batch of one replica.

        Raises:
            ConfigurationError: One has counts of another shape than before.
            TypeError: One is nothing that can be added up.
        """
        for name, metric in metrics.items():
            if name not in self._names:
                self._names.append(name)
            if isinstance(metric, BatchCounts):
                self._add_counts(name, metric)
            elif hasattr(metric, "result") and hasattr(metric, "update_state"):
                self._add_object(name, metric)
            elif callable(metric):
                self._functions[name] = metric
            elif is_scalar(metric) and not isinstance(metric, str | tuple | list):
                self._add_counts(name, BatchCounts(np.array([to_float(metric), 1.0]), _ratio))
            else:
                raise TypeError(
                    f"eval_metric_ops[{name!r}] is a {type(metric).__name__}; give what "
                    "rw.estimator.metrics returns, a metric with result(), a number or a function"
                )

    def _add_counts(self, name: str, metric: BatchCounts) -> None:
        before = self._counts.get(name)
        if before is not None and before.counts.shape != metric.counts.shape:
            raise ConfigurationError(
                f"eval_metric_ops[{name!r}] has counts of shape {metric.counts.shape}, the batch "
                f"before had {before.counts.shape}"
            )
        sums = metric.counts if before is None else before.counts + metric.counts
        self._counts[name] = BatchCounts(sums, metric.result)

    def _add_object(self, name: str, metric: Any) -> None:
        """Keep a metric whose variables are kept from batch to batch; others are added to the
        first.
        """
        first = self._objects.setdefault(name, metric)
        for total, part in zip(first.variables, metric.variables, strict=True):
            if total is not part:
                total.assign_add(part)

    def results(self) -> dict[str, Any]:
        """Compute the metrics, by name, in the order in which they came first."""
        results: dict[str, Any] = {}
        for name in self._names:
            if name in self._counts:
                sums = self._counts[name]
                results[name] = sums.result(sums.counts)
            elif name in self._objects:
                results[name] = to_numpy(self._objects[name].result())[()]
            else:
                results[name] = to_numpy(self._functions[name]())[()]
        return results
