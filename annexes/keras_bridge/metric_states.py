"""States of a program's own metrics that are sums, found out by trying.

A metric of Keras keeps sums over examples, and a variable that is none says so (``aggregation``).
One that a program wrote may keep a largest or a last value and leave it at "sum", which on one
device nobody notices. So the shapes of its first call are noted, and its ``update_state`` is tried
once on random examples of these shapes, in a copy: after two batches a sum is that of both, and a
maximum the larger one.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from ...core.arrays.dtypes import Array
from .frameworks import keras
from .random_examples import as_tensors, drawn, number_of, specs_of

log = logging.getLogger(__name__)

StateKind = Literal["sum", "max", "min", "other"]
"""Kind of what a variable of a metric keeps."""


class MetricStates:
    """The states that the metrics of a program keep.

    Args:
        where: Worker whose number the logs have where states cannot be put together, for a warning.
        extremes: Whether the largest and the smallest of all workers can be found.
        warns: Whether this worker says what only one of all workers has to.
    """

    def __init__(self, *, where: str, extremes: bool, warns: bool) -> None:
        self._where, self._extremes, self._warns = where, extremes, warns
        self._calls: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()
        self._kinds: WeakKeyDictionary[Any, list[StateKind]] = WeakKeyDictionary()

    def watch(self, model: Any) -> None:
        """Note the first call of each metric of a compiled model that is not Keras' own."""
        compiled = getattr(model, "_compile_metrics", None)
        metrics = [
            getattr(compiled, f"_user_{kind}", None) for kind in ("metrics", "weighted_metrics")
        ]
        for metric in _own([*model.metrics, *keras.tree.flatten(metrics)]):
            if metric not in self._calls and "update_state" not in vars(metric):
                object.__setattr__(metric, "update_state", self._noting(metric))

    def _noting(self, metric: Any) -> Callable[..., Any]:
        update = metric.update_state

        def noted(*args: Any, **kwargs: Any) -> Any:
            if vars(metric).get("update_state") is noted:
                object.__delattr__(metric, "update_state")
            self._calls[metric] = specs_of((args, kwargs))
            return update(*args, **kwargs)

        return noted

    def found(self) -> dict[int, str]:
        """Find what becomes of variables that are no sums, by identity: ``max``, ``min`` or
        ``first``.

        Variables of metrics that were not called are taken for sums.
        """
        become: dict[int, str] = {}
        for metric, call in list(self._calls.items()):
            if metric not in self._kinds:
                self._kinds[metric] = state_kinds(metric, *call)
                self._warn(metric, self._kinds[metric])
            for variable, kind in zip(metric.variables, self._kinds[metric], strict=False):
                if kind != "sum":
                    extreme = self._extremes and kind != "other"
                    become[id(variable)] = kind if extreme else "first"
        return become

    def _warn(self, metric: Any, kinds: Sequence[StateKind]) -> None:
        left = {"other"} if self._extremes else {"max", "min", "other"}
        names = [v.name for v, kind in zip(metric.variables, kinds, strict=True) if kind in left]
        if self._warns and names:
            log.warning(
                "the metric %r keeps in %s what is no sum over examples, so those of several "
                "workers cannot be put together, and the logs have %s alone. Keep sums, or say "
                "what becomes of it: add_variable(..., aggregation='mean'), or "
                "'only_first_replica'",
                metric.name,
                ", ".join(map(repr, names)),
                self._where,
            )


def state_kinds(metric: Any, args: Any, kwargs: Any) -> list[StateKind]:
    """Find what each variable of a metric keeps; all are sums if it cannot be tried.

    Args:
        metric: The metric, which stays as it is.
        args: Arguments of a call, arrays as :class:`~.random_examples.Spec`.
        kwargs: Keyword arguments of the call, in the form of ``args``.
    """
    kinds: list[StateKind] = ["sum"] * len(metric.variables)
    says = [variable.aggregation for variable in metric.variables]
    if "sum" not in says:
        return kinds
    rng = np.random.default_rng(0)
    try:
        tried = _copied(metric)
        one, other = (as_tensors(drawn((args, kwargs), rng)) for _ in range(2))
        every = ((), (one,), (other,), (one, other), (other, one))
        states = [_state_after(tried, calls) for calls in every]
    except Exception as error:  # noqa: BLE001 - code of the program, on examples that are not its
        log.debug("%r cannot be tried on random examples: %s", metric.name, error)
        return kinds
    return [
        _kind(*values) if aggregation == "sum" else "sum"
        for aggregation, *values in zip(says, *states, strict=True)
    ]


def _copied(metric: Any) -> Any:
    """Copy a metric with its variables, which Keras' way of copying would need the class's name
    for.
    """
    tried = object.__new__(type(metric))
    for name, value in vars(metric).items():
        object.__setattr__(
            tried, name, copy.copy(value) if isinstance(value, list | dict | set) else value
        )
    return tried


def _state_after(metric: Any, calls: Sequence[Any]) -> list[Array]:
    """Compute what a metric's variables would have after calls of its ``update_state``."""
    with keras.StatelessScope() as scope:
        metric.reset_state()
        for args, kwargs in calls:
            metric.update_state(*args, **kwargs)
    states = ((scope.get_current_value(variable), variable) for variable in metric.variables)
    return [number_of(variable if new is None else new) for new, variable in states]


def _kind(zero: Array, a: Array, b: Array, *both: Array) -> StateKind:
    expected: dict[StateKind, Array] = {
        "sum": a + b - zero,
        "max": np.maximum(a, b),
        "min": np.minimum(a, b),
    }
    alike = (k for k, values in expected.items() if np.allclose(both, values, rtol=1e-4, atol=1e-6))
    return next(alike, "other")  # in another order another: the last


def _own(metrics: Sequence[Any]) -> Iterator[Any]:
    """Yield the metrics that a program wrote, also within those of Keras."""
    for metric in metrics:
        if not isinstance(metric, keras.metrics.Metric):
            continue
        if type(metric).__module__.partition(".")[0] == "keras":
            yield from _own(metric._metrics)
        else:
            yield metric
