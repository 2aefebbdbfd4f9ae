"""Results of evaluations as they are kept: as JSON, and in event files for TensorBoard."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.checkpoint import CheckpointReader
from ...training.evaluations import Evaluation, read_evaluations, write_evaluation
from .arrays import is_scalar, to_float
from .summary_writers import summary_writer

log = logging.getLogger(__name__)


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
