"""``train_and_evaluate``: one call that does what this task is for.

A chief and workers train, a ps serves, the evaluator evaluates one checkpoint after the other, and
a process alone trains and evaluates in turn. As ``tf.estimator.train_and_evaluate``.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.checkpoint import CheckpointReader, latest_checkpoint
from ...core.errors import CheckpointError, ConfigurationError
from ...core.settings import load_settings
from ...distribute.program_cluster import program_cluster
from ...training.evaluator import CheckpointWait, JobEnd
from ...training.progress import report_metrics
from .estimator import Estimator
from .evaluation_timing import (
    EndOfEvaluations,
    Evaluate,
    Found,
    Past,
    is_due_locally,
    next_of_evaluator,
    pause,
    worker_delay_s,
)
from .exporters import Exporter
from .hooks import CheckpointSaverListener, RunningModel, SessionRunHook
from .inputs import InputFn
from .metrics import is_scalar
from .training_target import runtime_of_task

log = logging.getLogger(__name__)

# -- TrainSpec and EvalSpec: what ``train_and_evaluate`` trains with and evaluates on -----------


class TrainSpec:
    """The arguments of a training, as ``tf.estimator.TrainSpec``.

    Args:
        input_fn: Input function of the training.
        max_steps: The global step at which it ends; None: it ends with its input.
        hooks: Hooks of every task that trains.
        saving_listeners: Listeners to the chief's checkpoints.

    Raises:
        ConfigurationError: ``max_steps`` is not positive.
        TypeError: An argument is of the wrong type.
    """

    def __init__(
        self,
        input_fn: InputFn,
        max_steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}")
        if max_steps is not None and max_steps <= 0:
            raise ConfigurationError(f"Must specify max_steps > 0, given: {max_steps}")
        self.input_fn, self.max_steps = input_fn, max_steps
        self.hooks = _checked(hooks, SessionRunHook, "hooks")
        self.saving_listeners = _checked(
            saving_listeners, CheckpointSaverListener, "saving_listeners"
        )


class EvalSpec:
    """The arguments of an evaluation, as ``tf.estimator.EvalSpec``.

    Args:
        input_fn: Input function of the evaluation.
        steps: Batches of each evaluation; None: until the input ends.
        name: Name of the evaluation; results go to ``eval_<name>``.
        hooks: Hooks of each evaluation.
        exporters: Exporters, or a single one, called after each evaluation.
        start_delay_secs: Delay before the evaluator's first evaluation.
        throttle_secs: Minimum time from the beginning of one evaluation to that of the next.

    Raises:
        ConfigurationError: A number is negative, ``steps`` is not positive, or two exporters have
            one name.
        TypeError: An argument is of the wrong type.
    """

    def __init__(
        self,
        input_fn: InputFn,
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        exporters: Exporter | Sequence[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}")
        if steps is not None and steps <= 0:
            raise ConfigurationError(f"Must specify steps > 0, given: {steps}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name!r}")
        for what, value in (
            ("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs),
        ):  # fmt: skip
            if value < 0:
                raise ConfigurationError(f"Must specify {what} >= 0, given: {value}")
        self.input_fn, self.steps, self.name = input_fn, steps, name
        self.hooks = _checked(hooks, SessionRunHook, "hooks")
        several = (exporters,) if isinstance(exporters, Exporter) else exporters
        self.exporters = _checked(several, Exporter, "exporters")
        names = [exporter.name for exporter in self.exporters]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"`exporters` must have unique names, they have {names}")
        self.start_delay_secs, self.throttle_secs = start_delay_secs, throttle_secs


def _checked(objects: Any, kind: type, name: str) -> list[Any]:
    checked = list(objects or ())
    for item in checked:
        if not isinstance(item, kind):
            raise TypeError(f"All {name} must be {kind.__name__}s, given: {item!r}")
    return checked


_LOOK_S = 0.25

_Results = tuple[dict[str, Any] | None, list[Any] | None]
"""Metrics of the last evaluation, and what the exporters returned; None: there was none."""


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> _Results | None:
    """Train, evaluate and export, as far as that is this task's part.

    Args:
        estimator: The Estimator of the program.
        train_spec: Arguments of the training.
        eval_spec: Arguments of the evaluations, and their times.

    Returns:
        Metrics of the last evaluation and what the exporters returned, in a process alone; ``(None,
        None)`` if there was nothing left to train.
        ``(None, None)`` if there was nothing left to train. In a task of a cluster, None.

    Raises:
        ConfigurationError: The cluster has no task that could do this.
        RopewalkError: What a training or an evaluation raises.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must have type `Estimator`, given {type(estimator).__name__}")
    if not isinstance(train_spec, TrainSpec):
        raise TypeError(f"`train_spec` must have type `TrainSpec`, given {train_spec!r}")
    if not isinstance(eval_spec, EvalSpec):
        raise TypeError(f"`eval_spec` must have type `EvalSpec`, given {eval_spec!r}")
    config = estimator.config
    experimental = config.experimental_distribute
    if experimental is not None and experimental.remote_cluster is not None:
        _Local(estimator, train_spec, eval_spec).run()
        return None
    kind = _role(estimator)
    if kind == EVALUATOR:
        _Evaluator(estimator, train_spec, eval_spec).run()
    elif kind == PS:
        _serve(estimator)
    elif kind == "local":
        return _Local(estimator, train_spec, eval_spec).run()
    else:
        _train(estimator, train_spec, is_worker=kind == WORKER)
    return None


def _role(estimator: Estimator) -> str:
    runtime, task = program_cluster(), estimator.config.task
    if task.task.type in (EVALUATOR, PS):
        return task.task.type
    if task.is_local or (runtime is not None and runtime.alone):
        return "local"
    return CHIEF if task.is_chief else task.task.type


def _serve(estimator: Estimator) -> None:
    """Serve as a ps until the job is over, and end the process.

    Raises:
        ConfigurationError: It has no cluster to serve.
    """
    runtime_of_task(estimator.model_dir, estimator.config)
    raise ConfigurationError("this process is a ps, and it is the whole cluster")


def _train(estimator: Estimator, spec: TrainSpec, *, is_worker: bool) -> None:
    config = estimator.config
    if is_worker and config.train_distribute is None:
        runtime_of_task(estimator.model_dir, config)
        delay_s = worker_delay_s(
            config.task_id, longest_s=config.experimental_max_worker_delay_secs
        )
        if delay_s > 0:
            log.info("Waiting %g secs before starting training.", delay_s)
            pause(delay_s)
    estimator.train(
        spec.input_fn,
        hooks=spec.hooks,
        max_steps=spec.max_steps,
        saving_listeners=spec.saving_listeners,
    )


def _export(
    estimator: Estimator, spec: EvalSpec, path: str, results: Mapping[str, Any], *, is_last: bool
) -> list[Any]:
    return [
        exporter.export(
            estimator,
            f"{estimator.model_dir.rstrip('/')}/export/{exporter.name}",
            path,
            results,
            is_last,
        )
        for exporter in spec.exporters
    ]


class _Evaluator:
    """The evaluator's loop."""

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self._estimator, self._spec = estimator, eval_spec
        self._max_steps = train_spec.max_steps
        estimator.config.check_cluster()
        runtime = runtime_of_task(estimator.model_dir, estimator.config)
        self._runtime = runtime
        self._check = runtime.job.check if runtime is not None else lambda: None
        settings = runtime.settings if runtime is not None else load_settings()
        self._end = JobEnd(
            estimator.model_dir, settings, in_cluster=not estimator.config.task.is_local
        )
        self._waits = CheckpointWait(estimator.model_dir, settings, "orphan_timeout_s")
        if eval_spec.throttle_secs == 0:
            log.warning(
                "EvalSpec.throttle_secs is set to 0: every checkpoint is evaluated as soon as it "
                "is there"
            )

    def run(self) -> None:
        """Evaluate until there is nothing left to.

        Raises:
            PeerLostError: No checkpoint comes any more; the job is gone.
            CheckpointError: A checkpoint is damaged.
            JobStoppedError: The job was stopped.
        """
        past = Past(time.monotonic())
        seen, waits = "", self._waits
        waits.restart()
        while True:
            self._check()
            now, newest = time.monotonic(), self._newest()
            if newest is not None and newest.path != seen:
                seen = newest.path
                waits.restart()
            step = next_of_evaluator(
                past,
                newest,
                now,
                max_steps=self._max_steps,
                start_delay_s=self._spec.start_delay_secs,
                throttle_s=self._spec.throttle_secs,
                goes_on=self._goes_on(newest),
            )
            if isinstance(step, EndOfEvaluations):
                log.info("%s", step.reason)
                return
            if isinstance(step, Evaluate):
                waits.done()
                if self._evaluate(step):
                    past = replace(past, last=step.found, was_last=step.is_last, began=now)
                waits.restart()
                continue
            waits.check()
            waits.tick(step.reason)
            pause(_LOOK_S)

    def _newest(self) -> Found | None:
        info = latest_checkpoint(self._estimator.model_dir)
        if info is None:
            return None
        try:
            final = CheckpointReader(info.path).manifest.final
        except CheckpointError:
            if latest_checkpoint(self._estimator.model_dir) != info:
                return None  # pruned meanwhile; the next look finds a newer one
            raise
        return Found(info.path, info.global_step, final)

    def _goes_on(self, newest: Found | None) -> str | None:
        if newest is None or not newest.final:
            return None
        return self._end.goes_on_from(newest.path)

    def _evaluate(self, step: Evaluate) -> bool:
        """Evaluate and export; False if the checkpoint was removed meanwhile."""
        path, spec = step.found.path, self._spec
        try:
            results = self._estimator.evaluate(
                spec.input_fn, spec.steps, spec.hooks, checkpoint_path=path, name=spec.name
            )
        except (CheckpointError, FileNotFoundError):
            if self._has_newer(path):
                return False
            raise
        try:
            _export(self._estimator, spec, path, results, is_last=step.is_last)
        except (CheckpointError, FileNotFoundError):
            if not self._has_newer(path):
                raise
            log.warning(
                "%s was removed before it was exported, since a job keeps its newest "
                "keep_checkpoint_max=%s alone: raise that, or save less often",
                path,
                self._estimator.config.keep_checkpoint_max,
            )
        report_metrics({k: v for k, v in results.items() if k != "global_step" and is_scalar(v)})
        if self._runtime is not None:
            progress = self._runtime.progress
            progress.steps = progress.global_step = results["global_step"]
        return True

    def _has_newer(self, path: str) -> bool:
        """Return whether a checkpoint is not the newest any more, and so may be gone."""
        newest = latest_checkpoint(self._estimator.model_dir)
        return newest is not None and newest.path != path


class _Local(CheckpointSaverListener):
    """Trains, and evaluates the checkpoints of the training between its steps."""

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self._estimator, self._train_spec, self._spec = estimator, train_spec, eval_spec
        self._last: tuple[int, float] | None = None  # step, and when its evaluation began
        self._result: _Results = (None, None)

    def run(self) -> _Results:
        """Train to the end; the last metrics, and what the exporters returned."""
        estimator, spec = self._estimator, self._train_spec
        newest = latest_checkpoint(estimator.model_dir)
        if newest is not None and newest.global_step >= (spec.max_steps or math.inf):
            log.info("Skipping training since max_steps has already saved.")
            return self._result
        estimator.train(
            spec.input_fn,
            hooks=spec.hooks,
            max_steps=spec.max_steps,
            saving_listeners=[*spec.saving_listeners, self],
        )
        self._evaluate(is_last=True)
        return self._result

    def after_save(self, session: RunningModel, global_step_value: int) -> None:
        """Evaluate what was saved, if it is time."""
        if session.ending:
            return  # the last evaluation follows the training
        last_step, began = self._last or (None, 0.0)
        now, throttle_s = time.monotonic(), self._spec.throttle_secs
        if is_due_locally(last_step, began, global_step_value, now, throttle_s):
            self._evaluate(is_last=False)

    def _evaluate(self, *, is_last: bool) -> None:
        began, spec = time.monotonic(), self._spec
        path = self._estimator.newest_path()
        results = self._estimator.evaluate(
            spec.input_fn, spec.steps, spec.hooks, checkpoint_path=path, name=spec.name
        )
        exports = _export(self._estimator, spec, path, results, is_last=is_last)
        self._last = (results["global_step"], began)
        self._result = (results, exports)
