"""``ropewalk.metrics``: sums over all examples of all replicas and workers, as ``keras.metrics``.

::

    with strategy.scope():
        accuracy = rw.metrics.SparseCategoricalAccuracy()
    strategy.run(step, args=(batch,))   # calls accuracy.update_state(labels, logits)
    print(accuracy.result())            # of everything any replica of any worker has seen
    accuracy.reset_state()

State is one variable with synchronization ON_READ and aggregation SUM, so replicas count for
themselves and reading adds up: over the devices of a worker, over synchronous workers (who all call
``result`` and ``reset_state`` together), and on parameter servers over all workers, where one of
them resets. Numbers are kept as float64: counts above 2**24 stay exact.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array
from ..core.public_face import public_getattr
from .metric import (
    Mean,
    MeanMetricWrapper,
    Metric,
    Sum,
    divided,
    refuse_options,
    same_rank,
    weights_like,
)
from .roc import area_under_curve, confusion_counts, evenly_spaced


def _differences(true: Array, pred: Array) -> Array:
    true, pred = same_rank(true, pred)
    return np.asarray(pred, np.float64) - true


class MeanSquaredError(MeanMetricWrapper):
    """The mean of squared differences. As ``keras.metrics.MeanSquaredError``."""

    def __init__(self, name: str = "mean_squared_error") -> None:
        super().__init__(lambda true, pred: _differences(true, pred) ** 2, name)


class RootMeanSquaredError(MeanMetricWrapper):
    """The root of the mean of squared differences. As ``keras.metrics.RootMeanSquaredError``."""

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(lambda true, pred: _differences(true, pred) ** 2, name)

    def _result_of(self, state: Array) -> Any:
        return np.sqrt(super()._result_of(state))


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean of absolute differences. As ``keras.metrics.MeanAbsoluteError``."""

    def __init__(self, name: str = "mean_absolute_error") -> None:
        super().__init__(lambda true, pred: abs(_differences(true, pred)), name)


class _HitRate(Metric):
    """The share of true positives among some of the predictions; 0 of nothing.

    Args:
        thresholds: Predictions above it are positive, between 0 and 1; None: 0.5.
        name: Name of the metric.
        options: Keras' others, which are not there.

    Raises:
        TypeError: ``thresholds`` are several, or one of the options is switched on.
        ValueError: The threshold is not between 0 and 1.
    """

    def __init__(self, thresholds: float | None, name: str, options: Mapping[str, Any]) -> None:
        refuse_options(type(self).__name__, options)
        if np.ndim(0.5 if thresholds is None else thresholds):
            raise TypeError(
                f"thresholds of {type(self).__name__} is one number, got {thresholds}: make a "
                "metric for each threshold"
            )
        threshold = 0.5 if thresholds is None else float(thresholds)
        if not 0 <= threshold <= 1:
            raise ValueError(f"thresholds must be between 0 and 1, got {thresholds}")
        self._threshold = threshold
        super().__init__(name, (2,))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch.

        Args:
            y_true: Labels, 0 or 1, or booleans.
            y_pred: array of as many elements: probabilities.
            sample_weight: array, one per element or per example, or a number; None: 1.
        """
        true, pred = same_rank(to_host(y_true), to_host(y_pred))
        label, positive = true.astype(bool), pred > self._threshold
        weights = weights_like(pred, sample_weight)
        among = self._among(label, positive)
        self._add([(weights * (label & positive)).sum(), (weights * among).sum()])

    def _among(self, label: Array, positive: Array) -> Array:
        raise NotImplementedError

    def _result_of(self, state: Array) -> Any:
        return divided(state[0], state[1])


class Precision(_HitRate):
    """The share of positive predictions that are right, as ``keras.metrics.Precision``. As
    ``keras.metrics.Precision``.
    """

    def __init__(
        self, thresholds: float | None = None, name: str = "precision", **options: Any
    ) -> None:
        super().__init__(thresholds, name, options)

    def _among(self, label: Array, positive: Array) -> Array:
        del label
        return positive


class Recall(_HitRate):
    """The share of positive labels that are predicted, as ``keras.metrics.Recall``. As
    ``keras.metrics.Recall``.
    """

    def __init__(
        self, thresholds: float | None = None, name: str = "recall", **options: Any
    ) -> None:
        super().__init__(thresholds, name, options)

    def _among(self, label: Array, positive: Array) -> Array:
        del positive
        return label


__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "Mean",
    "MeanAbsoluteError",
    "MeanMetricWrapper",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "Sum",
    "TopKCategoricalAccuracy",
]


class Accuracy(MeanMetricWrapper):
    """The share of predictions that equal their labels; arrays of one shape."""

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(lambda true, pred: np.equal(*same_rank(true, pred)), name)


class BinaryAccuracy(MeanMetricWrapper):
    """The share of scores that lie on their label's side of ``threshold``; labels are 0 or 1.

    Of logits the threshold is 0, as of ``keras.metrics.BinaryAccuracy``.
    """

    def __init__(self, name: str = "binary_accuracy", threshold: float = 0.5) -> None:
        def matches(true: Array, pred: Array) -> Array:
            true, pred = same_rank(true, pred)
            return np.equal(true, pred > threshold)

        super().__init__(matches, name)


class CategoricalAccuracy(MeanMetricWrapper):
    """The share of largest predictions that are those of a one-hot label; shape ``(...,
    classes)``.
    """

    def __init__(self, name: str = "categorical_accuracy") -> None:
        super().__init__(lambda true, pred: true.argmax(-1) == pred.argmax(-1), name)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """The share of largest predictions, of shape ``(..., classes)``, that are those of an integer
    label, of shape ``(...)`` or ``(..., 1)``.
    """

    def __init__(self, name: str = "sparse_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _labels(true, pred) == pred.argmax(-1), name)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """The share of one-hot labels that are among the ``k`` largest predictions; ties count for
    it.
    """

    def __init__(self, k: int = 5, name: str = "top_k_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _in_top_k(true.argmax(-1), pred, k), name)


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """The share of integer labels that are among the ``k`` largest predictions; ties count for
    it.
    """

    def __init__(self, k: int = 5, name: str = "sparse_top_k_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _in_top_k(_labels(true, pred), pred, k), name)


class AUC(Metric):
    """The area under the ROC or precision-recall curve, from counts at thresholds. As
    ``keras.metrics.AUC``, for labels of one class.

    Args:
        num_thresholds: Number of thresholds, at least 2; two lie just outside of [0, 1], the others
            evenly inside.
        curve: ``"ROC"`` or ``"PR"``.
        summation_method: ``"interpolation"``, ``"minoring"`` or ``"majoring"``.
        name: Name of the metric.
        thresholds: Thresholds in (0, 1), ascending, instead of ``num_thresholds``.
        from_logits: Predictions are logits, of which the sigmoid is taken.
        options: Keras' others, which are not there.

    Raises:
        TypeError: One of the options is switched on.
        ValueError: An argument has another value.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str = "auc",
        thresholds: Sequence[float] | None = None,
        from_logits: bool = False,
        **options: Any,
    ) -> None:
        refuse_options("AUC", options)
        if curve not in ("ROC", "PR"):
            raise ValueError(f"curve must be 'ROC' or 'PR', got {curve!r}")
        if summation_method not in ("interpolation", "minoring", "majoring"):
            raise ValueError(
                "summation_method must be 'interpolation', 'minoring' or 'majoring', got "
                f"{summation_method!r}"
            )
        self._thresholds = evenly_spaced(num_thresholds, thresholds)
        self._curve, self._method, self._from_logits = curve, summation_method, from_logits
        super().__init__(name, (4, self._thresholds.size))

    @property
    def thresholds(self) -> list[float]:
        """All of them, ascending."""
        return [float(threshold) for threshold in self._thresholds]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch.

        Args:
            y_true: Labels, 0 or 1, or booleans.
            y_pred: array of as many elements: probabilities.
            sample_weight: array, one per element or per example, or a number; None: 1.

        Raises:
            ValueError: A prediction is not in [0, 1], or there are not as many as labels.
        """
        true, pred = same_rank(to_host(y_true), np.asarray(to_host(y_pred), np.float64))
        if self._from_logits:
            pred = 1 / (1 + np.exp(-pred))
        weights = weights_like(pred, sample_weight)
        self._add(confusion_counts(true, pred, weights, self._thresholds))

    def _result_of(self, state: Array) -> Any:
        return area_under_curve(state, self._curve, self._method)


def _labels(true: Array, pred: Array) -> Array:
    """Drop a last axis of 1 of integer labels."""
    labels = true[..., 0] if true.ndim == pred.ndim and true.shape[-1] == 1 else true
    if labels.shape != pred.shape[:-1]:
        raise ValueError(
            f"labels have shape {true.shape}, predictions {pred.shape}: one label per row is needed"
        )
    return labels


def _in_top_k(labels: Array, pred: Array, k: int) -> Array:
    own = np.take_along_axis(pred, labels[..., None].astype(np.int64), -1)
    is_in: Array = (pred > own).sum(-1) < k
    return is_in


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.metrics", globals())
