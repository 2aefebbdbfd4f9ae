"""Estimator: trains, evaluates and uses a model that a model_fn describes."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.errors import CheckpointError, ConfigurationError
from ...distribute.strategies.strategy import Strategy
from .building import Build, registry_of
from .evaluating import eval_dir_of, evaluate_batches, predictions_of, write_results
from .exporters import write_export
from .first_values import ToLookAt, WarmStartSettings, warm_start_settings
from .hooks import (
    CheckpointSaverListener,
    RunningModel,
    SessionRunHook,
    check_hooks,
    check_listeners,
    check_steps,
)
from .inputs import InputFn, batches
from .model_calls import Model, ModelFn, call_with_known, check_model_fn
from .run_config import RunConfig
from .saving import reader_of
from .spec import EstimatorSpec, ModeKeys
from .trainer import Trainer, newest_checkpoint, with_checkpoint_values
from .training_loop import TrainCall
from .training_target import choose_model_dir, eval_strategy

log = logging.getLogger(__name__)

GLOBAL_STEP = "global_step"


class Estimator:
    """An Estimator like ``tf.estimator.Estimator``.

    ::

        def model_fn(features, labels, mode, params):
            w = rw.Variable(np.zeros((64, 10), np.float32), name="w")
            logits = features @ w.read_value()
            if mode == rw.estimator.ModeKeys.PREDICT:
                return rw.estimator.EstimatorSpec(mode, predictions=logits.argmax(axis=1))
            …
            return rw.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

        estimator = rw.estimator.Estimator(model_fn, model_dir="digits")
        estimator.train(input_fn, max_steps=1000)

    model_fn is called for every batch, with its arrays, and not once for a graph. Variables are
    reused by name, other objects by :func:`once`. A training goes on from the newest checkpoint of
    the model directory; in a cluster the job saves (docs/estimator.md).

    Args:
        model_fn: Takes ``features``, and as far as it names them ``labels``, ``mode``, ``params``,
            ``config``; returns an :class:`EstimatorSpec`.
        model_dir: Folder of checkpoints, summaries and exports; None: ``config`` or the job say.
        config: Configuration of the Estimator; None: ``RunConfig()``.
        params: Handed to model_fn.
        warm_start_from: A checkpoint, a directory of some, or :class:`WarmStartSettings`; counts if
            the model directory has no checkpoint.

    Attributes:
        config: Configuration of the Estimator, with the model directory.
        model_dir: Absolute path, or URL.

    Raises:
        ConfigurationError: model_fn cannot be called; model directories differ; TF_CONFIG is not
            valid.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | WarmStartSettings | None = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise ConfigurationError(
                f"config must be an instance of `RunConfig`, but provided {config!r}"
            )
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"params must map names to values, got {params!r}")
        config = config or RunConfig()
        self.model_dir = choose_model_dir(model_dir, config)
        self.config = config.replace(model_dir=self.model_dir)
        self._params = dict(params) if params is not None else None
        self._model_fn = check_model_fn(model_fn, params)
        self._trainer = Trainer(
            self._model_fn,
            self.model_dir,
            self.config,
            self._params,
            warm_start_settings(warm_start_from),
        )
        self._eval_strategy: Strategy | None = None

    @property
    def params(self) -> dict[str, Any]:
        """A copy of what was given."""
        return dict(self._params or {})

    @property
    def model_fn(self) -> ModelFn:
        """Model function that the constructor was given."""
        return self._model_fn

    # -- training ----------------------------------------------------------------------------

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> "Estimator":
        """Train until the input ends, or ``steps`` or ``max_steps`` are made.

        Args:
            input_fn: See :func:`~ropewalk.annexes.estimator.inputs.batches`.
            hooks: Are called around every step.
            steps: Number of further steps, of all workers together.
            max_steps: Global step at which to stop; nothing is done if it is there already.
            saving_listeners: Are told of checkpoints, on the chief.

        Returns:
            The Estimator itself.

        Raises:
            ConfigurationError: Both or not positive ``steps`` and ``max_steps``; the input has no
                batch; model_fn returns something else than it should.
            NanLossDuringTrainingError: The loss is not finite.
            RopewalkError: What the strategy and the job raise.
        """
        check_steps(steps, max_steps)
        listeners = check_listeners(saving_listeners)
        call = TrainCall(input_fn, check_hooks(hooks), listeners, steps, max_steps)
        loss = self._trainer.train(call)
        if loss is not None:
            log.info("Loss for final step: %s.", loss)
        return self

    # -- evaluation and use ------------------------------------------------------------------

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Compute the metrics of a checkpoint: those of model_fn, ``loss`` and ``global_step``.

        Args:
            input_fn: See :func:`~ropewalk.annexes.estimator.inputs.batches`.
            steps: Number of batches; None: until the input ends.
            hooks: Hooks to call around every batch.
            checkpoint_path: Path of the checkpoint; None: the newest.
            name: Name of this evaluation, if there are several: results go to ``eval_<name>``.

        Raises:
            CheckpointError: There is no checkpoint, or it is not of this model.
            ConfigurationError: ``steps`` is not positive; the input has no batch.
        """
        if steps is not None and steps <= 0:
            raise ConfigurationError(f"Must specify steps > 0, given: {steps}")
        hooks = check_hooks(hooks)
        began = time.monotonic()
        reader = self._reader(checkpoint_path)
        with self._looking(ModeKeys.EVAL, reader) as (model, session):
            results = evaluate_batches(
                model,
                self._batches(input_fn, ModeKeys.EVAL, model.strategy),
                steps=steps,
                hooks=hooks,
                session=session,
            )
        results["global_step"] = reader.manifest.global_step
        write_results(self.model_dir, name, reader, results, time.monotonic() - began)
        return results

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predictions, one after the other, as they are asked for.

        Args:
            input_fn: See :func:`~ropewalk.annexes.estimator.inputs.batches`; labels are not used.
            predict_keys: Keys of the predictions to yield, if they are a dict; None: all.
            hooks: Hooks to call around every batch.
            checkpoint_path: Path of the checkpoint; None: the newest.
            yield_single_examples: Whether to yield single examples; False: whole batches.

        Raises:
            CheckpointError: There is no checkpoint, or it is not of this model.
            ConfigurationError: The predictions lack these keys, or are of different lengths.
        """
        hooks = check_hooks(hooks)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        reader = self._reader(checkpoint_path)
        with self._looking(ModeKeys.PREDICT, reader) as (model, session):
            yield from predictions_of(
                model,
                self._batches(input_fn, ModeKeys.PREDICT, model.strategy),
                keys=keys,
                hooks=hooks,
                session=session,
                single=yield_single_examples,
            )

    def _batches(self, input_fn: InputFn, mode: str, strategy: Strategy) -> Iterator[Any]:
        return batches(input_fn, strategy, mode=mode, params=self.params, config=self.config)

    @contextmanager
    def _looking(self, mode: str, reader: CheckpointReader) -> Iterator[tuple[Model, RunningModel]]:
        """Make a model with a checkpoint's values, while a training may have others."""
        if self._eval_strategy is None:
            self._eval_strategy = eval_strategy(self.config)
        strategy = self._eval_strategy
        registry = registry_of(strategy, self.model_dir)

        def step() -> int:
            return reader.manifest.global_step

        model = self._model(mode, strategy, Build(registry, ToLookAt(reader), global_step=step))
        session = RunningModel(strategy, registry.variables, step)
        with with_checkpoint_values(registry):
            yield model, session

    def _reader(self, checkpoint_path: str | None) -> CheckpointReader:
        """Open the checkpoint to look at.

        Raises:
            CheckpointError: There is none.
        """
        if checkpoint_path is not None:
            return reader_of(checkpoint_path)
        newest = newest_checkpoint(self.model_dir)
        live = self._trainer.copy_of_live(newest)
        if live is not None:
            return live
        if newest is None:
            raise CheckpointError(
                f"Could not find trained model in model_dir: {self.model_dir}; train first, or "
                "give checkpoint_path",
                path=self.model_dir,
            )
        return newest

    def _model(self, mode: str, strategy: Strategy, build: Build) -> Model:
        return Model(self._model_fn, mode, self._params, self.config, strategy, build)

    # -- what was learned --------------------------------------------------------------------

    def latest_checkpoint(self) -> str | None:
        """Find the path of the newest complete checkpoint; None: there is none."""
        newest = newest_checkpoint(self.model_dir)
        return newest.path if newest is not None else None

    def newest_path(self) -> str:
        """Find the path of what ``evaluate`` evaluates without a ``checkpoint_path``: the newest
        checkpoint, or a copy of what a job trains in this process and has not saved yet.

        Raises:
            CheckpointError: There is none.
        """
        return self._reader(None).path

    def get_variable_names(self) -> list[str]:
        """List the names of the newest checkpoint's variables, and ``global_step``.

        Raises:
            CheckpointError: There is none.
        """
        return sorted({GLOBAL_STEP, *self._reader(None).manifest.variables})

    def get_variable_value(self, name: str) -> Array:
        """Read the newest checkpoint's value of a variable, or its ``global_step``.

        Raises:
            CheckpointError: There is no checkpoint, or no such variable.
        """
        reader = self._reader(None)
        if name == GLOBAL_STEP and name not in reader.manifest.variables:
            return np.asarray(reader.manifest.global_step)
        return reader.read(name)

    def eval_dir(self, name: str | None = None) -> str:
        """Name the folder where results of evaluations go."""
        return eval_dir_of(self.model_dir, name)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any = None,
        checkpoint_path: str | None = None,
    ) -> str:
        """Write the variables of a checkpoint, and what model_fn exports, to a new folder.

        Args:
            export_dir_base: The folder goes in here, named by the time.
            serving_input_receiver_fn: Returns features of a few examples: model_fn is called with
                them, in mode PREDICT, and its ``export_outputs`` are written. None: variables
                alone.
            checkpoint_path: Path of the checkpoint; None: the newest.

        Returns:
            The folder.

        Raises:
            CheckpointError: There is no checkpoint.
        """
        reader = self._reader(checkpoint_path)
        outputs: Mapping[str, Any] = {}
        if serving_input_receiver_fn is None:
            return write_export(export_dir_base, reader, outputs)
        with self._looking(ModeKeys.PREDICT, reader) as (model, _):
            receiver = serving_input_receiver_fn()
            called = model.call(getattr(receiver, "features", receiver), None)
            return write_export(export_dir_base, reader, called[0].spec.export_outputs)


# -- ``add_metrics``: an Estimator with more metrics than its model_fn gives -------------------


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
