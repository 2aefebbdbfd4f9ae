"""The base of metrics: one variable that replicas add to, and means over examples."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array
from ..core.checkpoint.export import JOB_STATE
from .base.contexts import Merging, default_strategy, get_replica_context
from .base.reductions import VariableAggregation, VariableSynchronization
from .variables.mirrored import SyncOnReadVariable
from .variables.variable import Variable


class Metric:
    """Base class: state that replicas add to. As ``keras.metrics.Metric``.

    A subclass gives the shape of its state, adds to it in :meth:`update_state` by :meth:`_add`, and
    computes the result from it in :meth:`_result_of`.

    Args:
        name: Name of the metric; its variable's name begins with it.
        shape: Shape of its state.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        # One row: partitioners cut along axis 0, and parts of it could be read at two moments.
        self._state: Variable = Variable(
            np.zeros((1, *shape), np.float64),
            name=f"{name}/{JOB_STATE}",
            trainable=False,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )

    @property
    def variables(self) -> list[Variable]:
        """State of the metric, whole on one server; shape ``(1, *shape)``."""
        return [self._state]

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch: in ``run``, this replica's; outside of it once. Of a subclass."""
        raise NotImplementedError(f"{type(self).__name__}.update_state({args}, {kwargs})")

    def _result_of(self, state: Array) -> Any:
        """Compute the metric of a state added up."""
        raise NotImplementedError(f"{type(self).__name__}._result_of({state})")

    def _add(self, delta: Any) -> None:
        state, change = self._state, np.asarray(delta, np.float64)[np.newaxis]
        if isinstance(state, SyncOnReadVariable):
            state.add_here(change)
        else:
            state.assign_add(change)

    def result(self) -> Any:
        """Compute the metric over everything that was counted: NumPy, float64.

        In ``run`` the replicas wait for each other and get the same.
        """
        context = get_replica_context()
        default: object = default_strategy()
        if context is None or context.strategy is default:
            return self._result_of(to_host(self._state.read_value())[0])
        return context.merge_call(Merging(lambda _: self.result(), (id(self),)))

    def reset_state(self) -> None:
        """Begin anew."""
        self._state.assign(np.zeros(self._state.shape, np.float64))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count a batch; the result after it."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


_INSTEAD = {
    "class_id": "update it with that class's column: y_true[..., class_id], y_pred[..., class_id]",
    "dtype": "leave it out, sums are kept as float64",
    "label_weights": "make a metric for each label, of its column, and weigh their results",
    "multi_label": "make a metric for each label, of its column, and average their results",
    "num_labels": "make a metric for each label, of its column, and average their results",
    "top_k": "give it 1.0 for the k largest scores of each row, and 0.0 for the others",
}
"""Options of Keras' metrics that these have not: what to write instead."""


def refuse_options(metric: str, options: Mapping[str, Any]) -> None:
    """Refuse options of Keras' metrics that are not there, unless they are switched off.

    Raises:
        TypeError: Says what to write instead.
    """
    for name, value in options.items():
        if name not in _INSTEAD:
            raise TypeError(f"{metric} has no option {name!r}")
        if value is not None and value is not False:
            raise TypeError(f"{metric} has no option {name!r}: {_INSTEAD[name]}")


class Mean(Metric):
    """The weighted mean of values. As ``keras.metrics.Mean``: 0 of nothing."""

    def __init__(self, name: str = "mean") -> None:
        super().__init__(name, (2,))

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Count values.

        Args:
            values: array of any shape, the first axis of examples; or a number.
            sample_weight: array, shape ``(examples,)`` or the first axes of the values', or a
                number; None: 1.
        """
        self._add(_total_and_count(values, sample_weight))

    def _result_of(self, state: Array) -> Any:
        return divided(state[0], state[1])


class Sum(Metric):
    """The weighted sum of values. As ``keras.metrics.Sum``."""

    def __init__(self, name: str = "sum") -> None:
        super().__init__(name, ())

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Count values; see :meth:`Mean.update_state`."""
        self._add(_per_example(values, sample_weight, np.sum)[0].sum())

    def _result_of(self, state: Array) -> Any:
        return np.float64(state)


class MeanMetricWrapper(Metric):
    """The mean of a function of labels and predictions. As ``keras.metrics.MeanMetricWrapper``.

    Args:
        fn: ``fn(y_true, y_pred, **kwargs)`` returns an array, one value or several per example.
        name: Name of the metric; None: the function's.
        kwargs: Further arguments of ``fn``.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name or str(getattr(fn, "__name__", "metric")), (2,))
        self._fn, self._kwargs = fn, kwargs

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch.

        Args:
            y_true: Labels.
            y_pred: Predictions.
            sample_weight: array, shape ``(examples,)``, or a number; None: 1.
        """
        values = self._fn(to_host(y_true), to_host(y_pred), **self._kwargs)
        self._add(_total_and_count(values, sample_weight))

    def _result_of(self, state: Array) -> Any:
        return divided(state[0], state[1])


def _total_and_count(values: Any, sample_weight: Any) -> list[Any]:
    per_example, weights = _per_example(values, sample_weight, np.mean)
    return [per_example.sum(), weights.sum() if weights is not None else per_example.size]


def _per_example(
    values: Any, sample_weight: Any, reduce: Callable[..., Any]
) -> tuple[Array, Array | None]:
    """Flatten to weighted values, one per example, and the examples' weights; as Keras reduces
    them.
    """
    per_example = np.asarray(to_host(values), np.float64)
    weights: Array | None = None
    if sample_weight is not None:
        weights = np.asarray(to_host(sample_weight), np.float64)
        if weights.ndim == per_example.ndim + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        if 0 < weights.ndim < per_example.ndim:
            per_example = reduce(per_example, axis=tuple(range(weights.ndim, per_example.ndim)))
        weights = np.broadcast_to(weights, per_example.shape)
        per_example = per_example * weights
        weights = _flattened(weights, reduce)
    return _flattened(per_example, reduce), weights


def _flattened(array: Array, reduce: Callable[..., Any]) -> Array:
    if array.ndim < 2:
        return array
    reduced: Array = reduce(array, axis=tuple(range(1, array.ndim)))
    return reduced


def weights_like(pred: Array, sample_weight: Any) -> Array:
    """Find a weight for each prediction: those of its example, or 1."""
    if sample_weight is None:
        return np.ones(pred.shape)
    weights = np.asarray(to_host(sample_weight), np.float64)
    weights = weights.reshape(*weights.shape, *([1] * (pred.ndim - weights.ndim)))
    return np.broadcast_to(weights, pred.shape)


def same_rank(true: Array, pred: Array) -> tuple[Array, Array]:
    """Drop a last axis of 1 that only one of them has.

    Raises:
        ValueError: The shapes differ otherwise.
    """
    if true.ndim == pred.ndim + 1 and true.shape[-1] == 1:
        true = true[..., 0]
    elif pred.ndim == true.ndim + 1 and pred.shape[-1] == 1:
        pred = pred[..., 0]
    if true.shape != pred.shape:
        raise ValueError(f"labels have shape {true.shape}, predictions {pred.shape}")
    return true, pred


def divided(total: Any, count: Any) -> Any:
    """Divide for a mean; 0 of nothing."""
    return np.float64(total / count) if count else np.float64(0)
