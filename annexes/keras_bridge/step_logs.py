"""Logs of a step that the program wrote, as the whole job's.

``fit`` and ``evaluate`` of Keras show the results of the model's metrics. Where a ``train_step``
or a ``test_step`` returns other names than those, they show what the last step returned, which is
what this worker's examples gave. So while such a step runs, or is traced, it is noted which log is
the result of which metric, and that metric's result of all examples is shown in its place. Other
numbers that workers in sync return are averaged, as Keras does in a strategy of ``tf.distribute``.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .frameworks import keras

_STEPS = ("train_step", "test_step")
_WRITTEN = (*_STEPS, "compute_metrics", "get_metrics_result")  # by the program, maybe


class StepLogs:
    """The logs of a model's steps.

    Args:
        model: Model whose steps are watched from now on.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sources: dict[str, dict[str, tuple[Any, str | None]]] = {}
        if any(getattr(type(model), name) is not getattr(keras.Model, name) for name in _WRITTEN):
            for name in _STEPS:
                object.__setattr__(model, name, self._watching(name, getattr(model, name)))

    def _watching(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if _is_compiled_by_torch():
                return step(*args, **kwargs)
            with _noting_results(self._model.metrics) as noted:
                outcome = step(*args, **kwargs)
            logs = outcome[0] if isinstance(outcome, tuple) else outcome  # on JAX with the state
            if isinstance(logs, Mapping):
                self._sources[name] = {
                    log: noted[id(value)] for log, value in _flat(logs) if id(value) in noted
                }
            return outcome

        return watched

    def others(self, logs: Any, *, in_epoch: bool) -> dict[str, float]:
        """Find the numbers among logs that are no metric's result.

        Args:
            logs: Logs that the last step returned.
            in_epoch: Whether it was one of training.
        """
        sources = self._sources.get(_STEPS[not in_epoch])
        if sources is None or not isinstance(logs, Mapping):
            return {}
        left = ((name, value) for name, value in _flat(logs) if name not in sources)
        numbers = ((name, number) for name, value in left if (number := _number(value)) is not None)
        return dict(sorted(numbers))

    def of_job(self, logs: Any, others: Mapping[str, float], *, in_epoch: bool) -> Any:
        """Make logs of the last step, with the metrics' results of now and these numbers in
        them.
        """
        sources = self._sources.get(_STEPS[not in_epoch])
        if sources is None or not isinstance(logs, Mapping):
            return logs
        results: dict[str, Any] = {**dict(_flat(logs)), **others}
        for name, (metric, key) in sources.items():
            result = metric.result()
            results[name] = result if key is None else dict(_flat(result))[key]
        return results


@contextmanager
def _noting_results(metrics: list[Any]) -> Iterator[dict[int, tuple[Any, str | None]]]:
    """Note each result of a metric by its identity in this block: whose it is, and its name in
    it.
    """
    noted: dict[int, tuple[Any, str | None]] = {}
    kept: list[Any] = []  # so that no other value comes to the same identity

    def noting(metric: Any) -> Callable[[], Any]:
        own = metric.result

        def result() -> Any:
            value = own()
            kept.append(value)
            parts = _flat(value) if isinstance(value, Mapping) else [(None, value)]
            noted.update((id(part), (metric, key)) for key, part in parts)
            return value

        return result

    watched = list({id(metric): metric for metric in metrics}.values())
    for metric in watched:
        object.__setattr__(metric, "result", noting(metric))
    try:
        yield noted
    finally:
        for metric in watched:
            object.__delattr__(metric, "result")


def _flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Flatten logs as Keras does."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _number(value: Any) -> float | None:
    array = np.asarray(keras.ops.convert_to_numpy(value))
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else None


def _is_compiled_by_torch() -> bool:
    if keras.backend.backend() != "torch":
        return False
    import torch

    return bool(torch.compiler.is_compiling())
