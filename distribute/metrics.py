"""``windlass.metrics``: sums over all examples of all replicas and workers, as ``keras.metrics``.

::

    with strategy.scope():
        accuracy = wl.metrics.SparseCategoricalAccuracy()
    strategy.run(step, args=(batch,))   # calls accuracy.update_state(labels, logits)
    print(accuracy.result())            # of everything any replica of any worker has seen
    accuracy.reset_state()

State is one variable with synchronization ON_READ and aggregation SUM, so replicas count for
themselves and reading adds up: over the devices of a worker, over synchronous workers (who all call
``result`` and ``reset_state`` together), and on parameter servers over all workers, where one of
them resets. Numbers are kept as float64: counts above 2**24 stay exact.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.checkpoint.export import JOB_STATE
from ..core.public_face import public_getattr
from .base.arrays import to_host
from .base.contexts import Merging, default_strategy, get_replica_context
from .base.reductions import VariableAggregation, VariableSynchronization
from .roc import area_under_curve, confusion_counts, evenly_spaced
from .variables.variable import Variable

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "Mean",
    "MeanMetricWrapper",
    "Metric",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "Sum",
    "TopKCategoricalAccuracy",
]


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
        """Its state, whole on one server; shape ``(1, *shape)``."""
        return [self._state]

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch: in ``run``, this replica's. Of a subclass."""
        raise NotImplementedError(f"{type(self).__name__}.update_state({args}, {kwargs})")

    def _result_of(self, state: Array) -> Any:
        """The metric, of a state added up."""
        raise NotImplementedError(f"{type(self).__name__}._result_of({state})")

    def _add(self, delta: Any) -> None:
        self._state.assign_add(np.asarray(delta, np.float64)[np.newaxis])

    def result(self) -> Any:
        """The metric over everything that was counted: NumPy, float64.

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
        return _divided(state[0], state[1])


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
        name: None: the function's.
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
        return _divided(state[0], state[1])


class Accuracy(MeanMetricWrapper):
    """How often a prediction equals its label; arrays of one shape."""

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(lambda true, pred: np.equal(*_same_rank(true, pred)), name)


class BinaryAccuracy(MeanMetricWrapper):
    """How often a probability lies on its label's side of ``threshold``; labels are 0 or 1.

    Raises:
        ValueError: ``threshold`` is not between 0 and 1.
    """

    def __init__(self, name: str = "binary_accuracy", threshold: float = 0.5) -> None:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must be between 0 and 1, got {threshold}")

        def matches(true: Array, pred: Array) -> Array:
            true, pred = _same_rank(true, pred)
            return np.equal(true, pred > threshold)

        super().__init__(matches, name)


class CategoricalAccuracy(MeanMetricWrapper):
    """How often the largest prediction is that of a one-hot label; shape ``(..., classes)``."""

    def __init__(self, name: str = "categorical_accuracy") -> None:
        super().__init__(lambda true, pred: true.argmax(-1) == pred.argmax(-1), name)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """How often the largest prediction, of shape ``(..., classes)``, is that of an integer label,
    of shape ``(...)`` or ``(..., 1)``.
    """

    def __init__(self, name: str = "sparse_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _labels(true, pred) == pred.argmax(-1), name)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """How often a one-hot label is among the ``k`` largest predictions; ties count for it."""

    def __init__(self, k: int = 5, name: str = "top_k_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _in_top_k(true.argmax(-1), pred, k), name)


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """How often an integer label is among the ``k`` largest predictions; ties count for it."""

    def __init__(self, k: int = 5, name: str = "sparse_top_k_categorical_accuracy") -> None:
        super().__init__(lambda true, pred: _in_top_k(_labels(true, pred), pred, k), name)


class AUC(Metric):
    """The area under the ROC or precision-recall curve, from counts at thresholds. As
    ``keras.metrics.AUC``, for labels of one class.

    Args:
        num_thresholds: At least 2; two lie just outside of [0, 1], the others evenly inside.
        curve: ``"ROC"`` or ``"PR"``.
        summation_method: ``"interpolation"``, ``"minoring"`` or ``"majoring"``.
        name: Name of the metric.
        thresholds: In (0, 1), ascending, instead of ``num_thresholds``.
        from_logits: Predictions are logits, of which the sigmoid is taken.

    Raises:
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
    ) -> None:
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
        true, pred = _same_rank(to_host(y_true), np.asarray(to_host(y_pred), np.float64))
        if self._from_logits:
            pred = 1 / (1 + np.exp(-pred))
        weights = np.ones(pred.shape)
        if sample_weight is not None:
            given = np.asarray(to_host(sample_weight), np.float64)
            weights = np.broadcast_to(_with_axes(given, pred.ndim), pred.shape)
        self._add(confusion_counts(true, pred, weights, self._thresholds))

    def _result_of(self, state: Array) -> Any:
        return area_under_curve(state, self._curve, self._method)


def _total_and_count(values: Any, sample_weight: Any) -> list[Any]:
    each, weights = _per_example(values, sample_weight, np.mean)
    return [each.sum(), weights.sum() if weights is not None else each.size]


def _per_example(
    values: Any, sample_weight: Any, reduce: Callable[..., Any]
) -> tuple[Array, Array | None]:
    """Weighted values, one per example, and the examples' weights; as Keras reduces them."""
    each = np.asarray(to_host(values), np.float64)
    weights: Array | None = None
    if sample_weight is not None:
        weights = np.asarray(to_host(sample_weight), np.float64)
        if weights.ndim == each.ndim + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        if 0 < weights.ndim < each.ndim:
            each = reduce(each, axis=tuple(range(weights.ndim, each.ndim)))
        weights = np.broadcast_to(weights, each.shape)
        each = each * weights
        weights = _flattened(weights, reduce)
    return _flattened(each, reduce), weights


def _flattened(array: Array, reduce: Callable[..., Any]) -> Array:
    if array.ndim < 2:
        return array
    reduced: Array = reduce(array, axis=tuple(range(1, array.ndim)))
    return reduced


def _with_axes(weights: Array, ndim: int) -> Array:
    return weights.reshape(*weights.shape, *([1] * (ndim - weights.ndim)))


def _same_rank(true: Array, pred: Array) -> tuple[Array, Array]:
    """Without a last axis of 1 that only one has.

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


def _labels(true: Array, pred: Array) -> Array:
    """Integer labels without a last axis of 1."""
    labels = true[..., 0] if true.ndim == pred.ndim and true.shape[-1] == 1 else true
    if labels.shape != pred.shape[:-1]:
        raise ValueError(
            f"labels have shape {true.shape}, predictions {pred.shape}: one label per row is needed"
        )
    return labels


def _in_top_k(labels: Array, pred: Array, k: int) -> Array:
    own = np.take_along_axis(pred, labels[..., None].astype(np.int64), -1)
    found: Array = (pred > own).sum(-1) < k
    return found


def _divided(total: Any, count: Any) -> Any:
    return np.float64(total / count) if count else np.float64(0)


if not TYPE_CHECKING:
    __getattr__ = public_getattr("windlass.metrics", globals())
