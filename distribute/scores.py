"""Mean errors, precision and recall."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array
from .metric import MeanMetricWrapper, Metric, divided, refuse_options, same_rank, weights_like


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
