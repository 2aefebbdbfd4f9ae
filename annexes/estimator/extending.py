"""``add_metrics``: an Estimator with more metrics than its model_fn gives."""

from collections.abc import Callable, Mapping
from typing import Any

from .estimator import Estimator
from .model_calls import call_with_known
from .modes import ModeKeys
from .spec import EstimatorSpec


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Make an Estimator whose evaluations have further metrics, as ``tf.estimator.add_metrics``. As
    ``tf.estimator.add_metrics``.

    Args:
        estimator: Stays as it is; its model directory is shared.
        metric_fn: Takes, as far as it names them, ``features``, ``labels``, ``predictions`` (of the
            spec, which has to have some in mode EVAL) and ``config``; returns metrics by name.
    """
    model_fn = estimator.model_fn

    def with_metrics(
        features: Any, labels: Any, mode: str, params: Any, config: Any
    ) -> EstimatorSpec:
        arguments = {
            "features": features, "labels": labels, "mode": mode, "params": params,
            "config": config,
        }  # fmt: skip
        spec: EstimatorSpec = call_with_known(model_fn, arguments)
        if mode == ModeKeys.EVAL and isinstance(spec, EstimatorSpec):
            more = call_with_known(metric_fn, {**arguments, "predictions": spec.predictions})
            spec.eval_metric_ops = {**spec.eval_metric_ops, **more}
        return spec

    return Estimator(with_metrics, config=estimator.config, params=estimator.params)
