"""A small Estimator program: a line through points, by gradients of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.annexes.estimator import EstimatorSpec, ModeKeys

WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


def points(seed: int = 0, count: int = 64) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return x, x @ WEIGHTS


def input_fn(batch_size: int = 8, epochs: int | None = None, seed: int = 0) -> Callable[[], Any]:
    return rw.estimator.numpy_input_fn(
        *points(seed), batch_size=batch_size, num_epochs=epochs, shuffle=False
    )


def line(features: Any, labels: Any, mode: str, params: Any = None) -> EstimatorSpec:
    """A model_fn."""
    w = rw.Variable(np.zeros(3, np.float32), name="w")
    predicted = features @ w.read_value()
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"y": predicted, "twice": 2 * predicted})
    error = predicted - labels
    loss = np.mean(error**2)
    if mode == ModeKeys.EVAL:
        mse = rw.estimator.metrics.mean_squared_error(labels, predicted)
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"mse": mse})
    context = rw.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync if context is not None else 1
    gradient = 2 * features.T @ error / len(error) / replicas
    optimizer = rw.optimizers.Adam((params or {}).get("rate", 0.05))
    optimizer.apply_gradients([(gradient, w)])
    return EstimatorSpec(mode, loss=loss, train_op=True)


def estimator(model_dir: Any, model_fn: Any = line, **config: Any) -> Any:
    """An Estimator that says nothing."""
    quiet = {"log_step_count_steps": None, "save_summary_steps": 0} | config
    return rw.estimator.Estimator(
        model_fn, model_dir=str(model_dir), config=rw.estimator.RunConfig(**quiet)
    )
