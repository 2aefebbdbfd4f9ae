"""Hooks that end a training by its evaluations. As ``tf.estimator.experimental``'s.

The chief looks at the results; every task that trains has the hook (``TrainSpec(hooks=…)``). With
parameter servers the chief says it in a variable that all of them read now and then; workers in
sync agree at the same step.
"""

import logging
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.checkpoint.export import JOB_STATE
from ...core.errors import ConfigurationError
from ...core.public_face import public_getattr
from ...distribute.base.reductions import VariableAggregation
from ...distribute.strategies.parameter_server import ParameterServerExtended
from ...distribute.variables.variable import Variable
from .estimator import Estimator
from .evaluating import read_eval_metrics
from .hooks import (
    RunningModel,
    SecondOrStepTimer,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from .inputs import EXPERIMENTAL, InputFn

log = logging.getLogger(__name__)

_STOP = f"signal_early_stopping/{JOB_STATE}/stop"
_SYNC_STEPS = 100  # between two agreements of workers in sync, unless the program says
_LOOK_S = 1.0

Results = Mapping[int, Mapping[str, float]]


class EarlyStoppingHook(SessionRunHook):
    """Ends the training on all workers when a function of no arguments says so on the chief."""

    def __init__(self, should_stop: Callable[[], bool], secs: float | None, steps: int | None):
        self._should_stop = should_stop
        self._by_steps = SecondOrStepTimer(every_steps=steps or _SYNC_STEPS)
        self._of_chief = SecondOrStepTimer(secs, steps)
        # A look of another worker is a small round trip, and takes no evaluation.
        self._of_worker = SecondOrStepTimer(None if secs is None else min(secs, _LOOK_S), steps)
        self._stop: Variable | None = None

    def after_create_session(self, session: RunningModel, coord: Any) -> None:  # noqa: ARG002
        """Make the variable that the other workers read."""
        extended = session.strategy.extended
        if isinstance(extended, ParameterServerExtended) and not extended.runtime.alone:
            with session.strategy.scope():
                self._stop = Variable(
                    np.zeros((), np.int32),
                    name=_STOP,
                    trainable=False,
                    aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
                )
            if session.is_chief:
                self._stop.assign(0)  # a job that resumes may have been stopped before

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Look whether it is time to end."""
        session, step = run_context.session, run_values.values["global_step"]
        in_sync = session.strategy.extended.num_replicas_in_sync > len(
            session.strategy.extended.replica_devices
        )
        timer = self._of_chief if session.is_chief else self._of_worker
        if in_sync:
            timer = self._by_steps
        if not timer.is_due(step):
            return
        timer.note(step)
        stop = session.is_chief and self._should_stop()
        if in_sync:
            stop = session.strategy.extended.any_worker(stop)
        elif self._stop is not None and stop:
            self._stop.assign(1)
        elif self._stop is not None and not session.is_chief:
            stop = bool(int(self._stop))
        if stop:
            log.info("Requesting early stopping at global step %d", step)
            run_context.request_stop()


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Make a hook that ends the training when ``should_stop_fn()`` is true on the chief.

    Args:
        estimator: The Estimator that trains.
        should_stop_fn: Is called now and then.
        run_every_secs: Seconds between two calls; None: by steps.
        run_every_steps: Steps between two calls. Workers in sync go by steps, 100 unless given.

    Raises:
        TypeError: Something is of another kind.
        ConfigurationError: Both intervals are given.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must be an Estimator, got {type(estimator).__name__}")
    if not callable(should_stop_fn):
        raise TypeError(f"`should_stop_fn` must be callable, got {type(should_stop_fn).__name__}")
    if run_every_secs is not None and run_every_steps is not None:
        raise ConfigurationError(
            "Only one of `run_every_secs` and `run_every_steps` must be set; None says which not"
        )
    return EarlyStoppingHook(should_stop_fn, run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Estimator, metric_name: str, threshold: float, eval_dir: str | None = None,
    min_steps: int = 0, run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> SessionRunHook:  # fmt: skip
    """Make a hook that ends the training when a metric of an evaluation is above a threshold.

    Args:
        estimator: The Estimator that trains.
        metric_name: Name of a metric of the evaluation.
        threshold: Threshold of the metric.
        eval_dir: Folder of the results; None: ``estimator.eval_dir()``.
        min_steps: Training does not end before this step.
        run_every_secs: Seconds between two looks; None: by steps.
        run_every_steps: Steps between two looks.
    """
    return _threshold_hook(
        operator.gt, estimator, metric_name, threshold, eval_dir, min_steps, run_every_secs,
        run_every_steps,
    )  # fmt: skip


def stop_if_lower_hook(
    estimator: Estimator, metric_name: str, threshold: float, eval_dir: str | None = None,
    min_steps: int = 0, run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> SessionRunHook:  # fmt: skip
    """Make a hook as :func:`stop_if_higher_hook`, that ends when a metric is below a threshold."""
    return _threshold_hook(
        operator.lt, estimator, metric_name, threshold, eval_dir, min_steps, run_every_secs,
        run_every_steps,
    )  # fmt: skip


def stop_if_no_increase_hook(
    estimator: Estimator, metric_name: str, max_steps_without_increase: int,
    eval_dir: str | None = None, min_steps: int = 0, run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:  # fmt: skip
    """Make a hook that ends the training when a metric has not increased for a number of steps.

    Args:
        estimator: The Estimator that trains.
        metric_name: Name of a metric of the evaluation.
        max_steps_without_increase: Number of steps, counted from the best evaluation.
        eval_dir: Folder of the results; None: ``estimator.eval_dir()``.
        min_steps: Evaluations before this step do not count.
        run_every_secs: Seconds between two looks; None: by steps.
        run_every_steps: Steps between two looks.
    """
    return _no_improvement_hook(
        operator.gt, estimator, metric_name, max_steps_without_increase, eval_dir, min_steps,
        run_every_secs, run_every_steps,
    )  # fmt: skip


def stop_if_no_decrease_hook(
    estimator: Estimator, metric_name: str, max_steps_without_decrease: int,
    eval_dir: str | None = None, min_steps: int = 0, run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:  # fmt: skip
    """Make a hook that ends the training when a metric has not decreased for so many steps; see
    :func:`stop_if_no_increase_hook`.
    """
    return _no_improvement_hook(
        operator.lt, estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps,
        run_every_secs, run_every_steps,
    )  # fmt: skip


def crosses(
    results: Results, metric: str, threshold: float, min_steps: int, is_better: Callable[..., bool]
) -> int | None:
    """Find the first step whose metric is beyond a threshold; None: there is none. Pure.

    Raises:
        ConfigurationError: An evaluation has no such metric.
    """
    for step, value in _values(results, metric):
        if step >= min_steps and is_better(value, threshold):
            return step
    return None


def stands_still(
    results: Results, metric: str, patience: int, min_steps: int, is_better: Callable[..., bool]
) -> tuple[int, int] | None:
    """Find (best step, step) of a metric that did not improve for ``patience`` steps; or None.
    Pure.

    Raises:
        ConfigurationError: An evaluation has no such metric.
    """
    best: float | None = None
    best_step = 0
    for step, value in _values(results, metric):
        if step < min_steps:
            continue
        if best is None or is_better(value, best):
            best, best_step = value, step
        if step - best_step >= patience:
            return best_step, step
    return None


def _values(results: Results, metric: str) -> list[tuple[int, float]]:
    values_by_step = []
    for step in sorted(results):
        if metric not in results[step]:
            raise ConfigurationError(
                f"an evaluation has no {metric!r}; it has {', '.join(results[step])}"
            )
        values_by_step.append((step, results[step][metric]))
    return values_by_step


def _threshold_hook(
    is_better: Callable[..., bool], estimator: Estimator, metric: str, threshold: float,
    eval_dir: str | None, min_steps: int, secs: float | None, steps: int | None,
) -> SessionRunHook:  # fmt: skip
    where = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        step = crosses(read_eval_metrics(where), metric, threshold, min_steps, is_better)
        if step is not None:
            log.info("%s was beyond %g at step %d", metric, threshold, step)
        return step is not None

    return make_early_stopping_hook(estimator, should_stop, secs if steps is None else None, steps)


def _no_improvement_hook(
    is_better: Callable[..., bool], estimator: Estimator, metric: str, patience: int,
    eval_dir: str | None, min_steps: int, secs: float | None, steps: int | None,
) -> SessionRunHook:  # fmt: skip
    where = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        stands_since = stands_still(
            read_eval_metrics(where), metric, patience, min_steps, is_better
        )
        if stands_since is not None:
            log.info("No improvement of %s since step %d, at step %d", metric, *stands_since)
        return stands_since is not None

    return make_early_stopping_hook(estimator, should_stop, secs if steps is None else None, steps)


class InMemoryEvaluatorHook(SessionRunHook):
    """Evaluates in the process that trains, at regular steps, as TensorFlow's hook does.

    What is evaluated is the newest checkpoint.

    Args:
        estimator: The Estimator that trains.
        input_fn: Input function of the evaluation.
        steps: Batches of each evaluation; None: all.
        hooks: Hooks of each evaluation.
        name: Name of the evaluation.
        every_n_iter: Steps of this worker between two evaluations.

    Raises:
        ConfigurationError: ``every_n_iter`` is not positive.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Any = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter <= 0:
            raise ConfigurationError(f"invalid every_n_iter={every_n_iter}.")
        self._estimator, self._input_fn, self._steps = estimator, input_fn, steps
        self._hooks, self._name = hooks, name
        self._every, self._made = every_n_iter, 0

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Evaluate if it is time, and there is a checkpoint."""
        self._made += 1
        if self._made % self._every == 0:
            self._evaluate()

    def end(self, session: RunningModel) -> None:  # noqa: ARG002
        """Evaluate what was trained."""
        self._evaluate()

    def _evaluate(self) -> None:
        if self._estimator.latest_checkpoint() is not None:
            self._estimator.evaluate(self._input_fn, self._steps, self._hooks, name=self._name)


if not TYPE_CHECKING:
    __getattr__ = public_getattr("rw.estimator.experimental", globals(), instead=EXPERIMENTAL)
