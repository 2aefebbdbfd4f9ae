"""EstimatorSpec: what a model_fn says of one batch.

There is no graph: a model_fn is called for every batch, with arrays, and what it returns are the
values of this batch. ``train_op`` is the update, or what will make it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.errors import ConfigurationError
from .hooks import SessionRunHook, all_of
from .metrics import is_scalar

# -- Modes in which a model_fn is called --------------------------------------------------------


class ModeKeys:
    """The modes of ``tf.estimator.ModeKeys``: strings, so that a program may compare them with its
    own.
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


ALL_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


class Scaffold:
    """A function that is called once when training begins from nothing, as
    ``tf.compat.v1.train.Scaffold``. As ``tf.compat.v1.train.Scaffold``.

    Args:
        init_fn: ``init_fn(scaffold, session)``, on the chief, after the variables were made and if
            there was no checkpoint.
    """

    def __init__(self, init_fn: Callable[[Any, Any], Any] | None = None) -> None:
        self.init_fn = init_fn


class EstimatorSpec:
    """The result of a model_fn, as ``tf.estimator.EstimatorSpec``. As
    ``tf.estimator.EstimatorSpec``.

    Args:
        mode: Mode that model_fn was given.
        predictions: array, or dict of arrays, the first axis of examples; needed in PREDICT.
        loss: A number; needed in TRAIN and EVAL. In TRAIN it may be left to ``train_op``.
        train_op: Needed in TRAIN. A function without arguments makes the update: it is called when
            model_fn has returned, and may return the loss. Anything else says that the update is
            made already, as what ``apply_gradients`` in model_fn has done.
        eval_metric_ops: Metrics by name: what ``rw.estimator.metrics`` returns, an object with
            ``result`` (of ``rw.metrics``, Keras), a number (its mean over the batches), or a
            function that is called when all batches were seen.
        export_outputs: Writers by file name: a function that is given a path and writes what serves
            the model.
        training_chief_hooks: Hooks of training, on the chief alone.
        training_hooks: Hooks of training, on every worker.
        scaffold: Called when training begins.
        evaluation_hooks: Hooks of an evaluation.
        prediction_hooks: Hooks of predictions.

    Raises:
        ConfigurationError: Something that the mode needs is missing, or the loss is no number.
        TypeError: Something is of another kind.
    """

    def __init__(
        self,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Callable[[str], Any]] | None = None,
        training_chief_hooks: Sequence[SessionRunHook] | None = None,
        training_hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        evaluation_hooks: Sequence[SessionRunHook] | None = None,
        prediction_hooks: Sequence[SessionRunHook] | None = None,
    ) -> None:
        if mode not in ALL_MODES:
            raise ConfigurationError(
                f"EstimatorSpec(mode={mode!r}): the mode is one of ModeKeys.TRAIN, EVAL, PREDICT"
            )
        if mode == ModeKeys.TRAIN and train_op is None:
            raise ConfigurationError(
                "Missing train_op: in ModeKeys.TRAIN an EstimatorSpec has a function that makes "
                "the update, or True if model_fn has made it"
            )
        if mode == ModeKeys.PREDICT and predictions is None:
            raise ConfigurationError(
                "Missing predictions: in ModeKeys.PREDICT an EstimatorSpec has an array or a dict "
                "of arrays"
            )
        if loss is None and (mode == ModeKeys.EVAL or _has_no_loss(mode, train_op)):
            raise ConfigurationError(f"Missing loss: in mode {mode!r} an EstimatorSpec has one")
        if isinstance(loss, str):
            raise ConfigurationError(f"Loss must be a number, it is {loss!r}")
        if loss is not None and not is_scalar(loss):
            raise ConfigurationError(
                f"Loss must be scalar, it has shape {np.shape(loss)}; take the mean over the batch"
            )
        self.mode = mode
        self.predictions = predictions
        self.loss = loss
        self.train_op = train_op
        self.eval_metric_ops = dict(_a_mapping(eval_metric_ops, "eval_metric_ops"))
        self.export_outputs = dict(_a_mapping(export_outputs, "export_outputs"))
        self.training_chief_hooks = _hooks(training_chief_hooks, "training_chief_hooks")
        self.training_hooks = _hooks(training_hooks, "training_hooks")
        self.evaluation_hooks = _hooks(evaluation_hooks, "evaluation_hooks")
        self.prediction_hooks = _hooks(prediction_hooks, "prediction_hooks")
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            raise TypeError(f"scaffold must be a Scaffold, got {type(scaffold).__name__}")
        self.scaffold = scaffold


def _has_no_loss(mode: str, train_op: Any) -> bool:
    return mode == ModeKeys.TRAIN and not callable(train_op)


def _a_mapping(mapping: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{name} must be a dict, got {type(mapping).__name__}")
    return mapping


def _hooks(hooks: Sequence[SessionRunHook] | None, name: str) -> tuple[SessionRunHook, ...]:
    message = f"All hooks must be SessionRunHook instances; {name} has a {{0.__class__.__name__}}"
    return tuple(all_of(SessionRunHook, hooks, message))
