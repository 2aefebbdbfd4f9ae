"""An evaluation, and predictions: a model_fn over an input, with the values of a checkpoint."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.errors import ConfigurationError
from ...training.evaluations import Evaluation, read_evaluations, write_evaluation
from .hooks import HookCalls, RunningModel, SessionRunHook
from .metrics import MetricSums, is_scalar, to_float, to_numpy
from .model_calls import Model
from .recording import summary_writer
from .training_loop import values_of

log = logging.getLogger(__name__)

# -- Results of evaluations as they are kept: as JSON, and in event files for TensorBoard -------


def eval_dir_of(model_dir: str, name: str | None) -> str:
    """Name the folder of an evaluation's results."""
    return f"{model_dir.rstrip('/')}/{f'eval_{name}' if name else 'eval'}"


def write_results(
    model_dir: str,
    name: str | None,
    reader: CheckpointReader,
    results: Mapping[str, Any],
    seconds: float,
) -> None:
    """Keep the scalars of an evaluation, and log them.

    Args:
        model_dir: Model directory of the Estimator.
        name: Name of the evaluation; None: the usual one.
        reader: Reader of the checkpoint.
        results: Results by name.
        seconds: Duration of the evaluation. Unit: seconds.
    """
    step = reader.manifest.global_step
    numbers = {
        key: to_float(value)
        for key, value in results.items()
        if is_scalar(value) and np.asarray(value).dtype.kind in "fiub"
    }
    shown = ", ".join(f"{key} = {value:.6g}" for key, value in numbers.items())
    log.info("Saving dict for global step %d: %s", step, shown)
    metrics = {key: value for key, value in numbers.items() if key != "global_step"}
    evaluation = Evaluation(
        global_step=step,
        checkpoint=reader.path,
        final=reader.manifest.final,
        metrics=metrics,
        seconds=seconds,
    )
    write_evaluation(model_dir, evaluation, name or "")
    writer = summary_writer(eval_dir_of(model_dir, name))
    for key, value in metrics.items():
        writer.add_scalar(key, value, step)
    writer.flush()


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """Read the metrics by global step, as in ``tf.estimator.experimental``. As
    ``tf.estimator.experimental``'s of this name.

    Args:
        eval_dir: Folder of the results, as of ``estimator.eval_dir(name)``.
    """
    model_dir, _, folder = eval_dir.rstrip("/").rpartition("/")
    evaluations = read_evaluations(model_dir, folder.removeprefix("eval").removeprefix("_"))
    return {evaluation.global_step: evaluation.metrics for evaluation in evaluations}


def evaluate_batches(
    model: Model,
    batches: Iterator[tuple[Any, Any]],
    *,
    steps: int | None,
    hooks: Sequence[SessionRunHook],
    session: RunningModel,
) -> dict[str, Any]:
    """Compute the metrics of an input, with ``loss``: the mean over its batches.

    Args:
        model: Model in mode EVAL.
        batches: The input.
        steps: Maximum number of batches; None: all.
        hooks: Hooks of the caller.
        session: The running model that hooks get as their session.

    Raises:
        ConfigurationError: There is no batch.
    """
    calls = HookCalls(list(hooks), session)
    sums, losses, seen = MetricSums(), [0.0, 0], 0
    calls.begin()
    for features, labels in islice(batches, steps):
        calls.before_run()
        called = model.call(features, labels)
        seen += 1
        calls.model_called(called[0].spec.evaluation_hooks)
        with_examples = [part for part in called if part.examples != 0]
        own = [float(to_numpy(part.loss).reshape(())) for part in with_examples]
        for part in with_examples:
            sums.add(part.spec.eval_metric_ops)
        losses[0] += sum(own)
        losses[1] += len(own)
        loss = float(np.mean(own)) if own else 0.0
        calls.after_run(values_of(called, loss, session.global_step))
        if session.should_stop():
            break
    if not losses[1]:
        raise ConfigurationError(
            "input_fn returned no batch to evaluate; look at what it reads, or at steps"
        )
    if steps is not None and seen < steps and not session.should_stop():
        log.info("the input ended after %d of %d steps", seen, steps)
    # A metric of model_fn called loss wins: it knows how its batches weigh.
    results = {"loss": np.float64(losses[0] / losses[1]), **sums.results()}
    calls.end()
    return results


def predictions_of(
    model: Model,
    batches: Iterator[tuple[Any, Any]],
    *,
    keys: Sequence[str] | None,
    hooks: Sequence[SessionRunHook],
    session: RunningModel,
    single: bool,
) -> Iterator[Any]:
    """Predictions, as they are made: of one example each, or of one batch.

    Args:
        model: Model in mode PREDICT.
        batches: The input.
        keys: Keys of the predictions to yield; None: all.
        hooks: Hooks of the caller.
        session: The running model that hooks get as their session.
        single: Whether to yield single examples.

    Raises:
        ConfigurationError: The predictions lack these keys, or are of different lengths.
    """
    calls = HookCalls(list(hooks), session)
    calls.begin()
    for features, labels in batches:
        calls.before_run()
        called = model.call(features, labels)
        calls.model_called(called[0].spec.prediction_hooks)
        for part in called:
            if part.examples == 0:
                continue
            chosen = _chosen(part.spec.predictions, keys)
            yield from _examples(chosen) if single else [chosen]
        calls.after_run(values_of(called, 0.0, session.global_step))
        if session.should_stop():
            break
    calls.end()


def _chosen(predictions: Any, keys: Sequence[str] | None) -> Any:
    if not isinstance(predictions, dict):
        if keys is not None:
            raise ConfigurationError(
                "predict_keys argument is not valid in case of non-dict predictions"
            )
        return to_numpy(predictions)
    wanted = predictions if keys is None else {k: v for k, v in predictions.items() if k in keys}
    if not wanted:
        raise ConfigurationError(
            f"Expected to run at least one output from {list(predictions)}, provided "
            f"{list(keys or ())}"
        )
    return {key: to_numpy(value) for key, value in wanted.items()}


def _examples(predictions: Array | dict[str, Array]) -> Iterable[Any]:
    if not isinstance(predictions, dict):
        yield from predictions
        return
    lengths = {key: len(value) if value.ndim else None for key, value in predictions.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        raise ConfigurationError(
            f"Batch length of predictions should be same; they are {lengths}. Or ask for whole "
            "batches: yield_single_examples=False"
        )
    for number in range(next(iter(lengths.values())) or 0):
        yield {key: value[number] for key, value in predictions.items()}
