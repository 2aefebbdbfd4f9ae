"""Input: what an input_fn returns, as batches for the replicas of this process.

As under an Estimator of TensorFlow, a batch of the input is one replica's: with several replicas
consecutive batches go to consecutive ones.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import ConfigurationError
from ...core.public_face import public_getattr
from ...core.terminal import counted
from ...distribute.base.values import leaves
from ...distribute.data.dataset import Dataset
from ...distribute.data.factories import from_arrays
from ...distribute.strategies.strategy import Strategy
from .model_calls import call_with_known

__all__ = ["numpy_input_fn"]

# -- Names of ``tf.estimator`` and of ``tf.compat.v1.train``'s hooks that are not here, and what
# to write instead

_CANNED = "write it as a model of Keras or JAX, ten lines: docs/canned-estimators.md"
_HEAD = "its loss and metrics are lines of your model_fn: docs/canned-estimators.md"
_EXPORT = "EstimatorSpec(export_outputs={'file name': write}) writes what is exported"
_TPU = "rw.distribute.TPUStrategy(…) as RunConfig's train_distribute"
_PARSE = "there are no protocol buffers to parse: read records in input_fn"

ELSEWHERE: dict[str, str] = {
    "BaselineClassifier": _CANNED,
    "BaselineEstimator": _CANNED,
    "BaselineRegressor": _CANNED,
    "BinaryClassHead": _HEAD,
    "BoostedTreesClassifier": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "BoostedTreesEstimator": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "BoostedTreesRegressor": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "DNNClassifier": _CANNED,
    "DNNEstimator": _CANNED,
    "DNNLinearCombinedClassifier": _CANNED,
    "DNNLinearCombinedEstimator": _CANNED,
    "DNNLinearCombinedRegressor": _CANNED,
    "DNNRegressor": _CANNED,
    "FeedFnHook": "nothing is fed: input_fn gives the batches, and params what model_fn needs",
    "GlobalStepWaiterHook": "RunConfig(experimental_max_worker_delay_secs=…) says how much later a "
    "worker begins",
    "Head": _HEAD,
    "LinearClassifier": _CANNED,
    "LinearEstimator": _CANNED,
    "LinearRegressor": _CANNED,
    "LogisticRegressionHead": _HEAD,
    "MultiClassHead": _HEAD,
    "MultiHead": _HEAD,
    "MultiLabelHead": _HEAD,
    "PoissonRegressionHead": _HEAD,
    "RegressionHead": _HEAD,
    "VocabInfo": "warm-start the table under its name, and give vocabularies one order",
    "classifier_parse_example_spec": _PARSE,
    "regressor_parse_example_spec": _PARSE,
    "export": "rw.estimator.ServingInputReceiver and build_raw_serving_input_receiver_fn; "
    + _EXPORT,
    "pandas_input_fn": "rw.estimator.numpy_input_fn({name: frame[name].to_numpy() for name in "
    "frame}, y, …)",
    "tpu": _TPU,
    "TPUEstimator": "Estimator, with " + _TPU,
    "TPUEstimatorSpec": "EstimatorSpec, with " + _TPU,
}
"""Names of ``tf.estimator``, its v1 names, and ``tf.compat.v1.train``'s hooks."""

EXPERIMENTAL: dict[str, str] = {
    "KMeans": "scikit-learn's MiniBatchKMeans",
    "LinearSDCA": "rw.optimizers.Ftrl: docs/canned-estimators.md",
    "RNNClassifier": _CANNED,
    "RNNEstimator": _CANNED,
    "build_raw_supervised_input_receiver_fn": _EXPORT,
    "call_logit_fn": "call your function",
    "dnn_logit_fn_builder": _CANNED,
    "linear_logit_fn_builder": _CANNED,
    "make_stop_at_checkpoint_step_hook": "rw.estimator.StopAtStepHook(last_step=…)",
}
"""Names of ``tf.estimator.experimental``."""


InputFn = Callable[..., Any]


def batches(
    input_fn: InputFn, strategy: Strategy, *, mode: str, params: Any, config: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield (features, labels) of each step; labels are None where the input has none.

    Args:
        input_fn: Called once, with those of ``mode``, ``params``, ``config`` and ``input_context``
            that it names. Returns a dataset or any iterable of batches, each ``features`` or
            ``(features, labels)``; or one such batch of arrays, which then comes again and again.
        strategy: Strategy whose replicas get the batches.
        mode: Mode of the model.
        params: Hyperparameters of the Estimator.
        config: Configuration of the Estimator.

    Raises:
        ConfigurationError: It returns nothing, or no batch.
        TypeError: It is no function.
    """
    if not callable(input_fn):
        raise TypeError(f"input_fn must be a function, got {type(input_fn).__name__}")

    def opened(input_context: Any) -> Any:
        arguments = {
            "mode": mode, "params": params, "config": config, "input_context": input_context,
        }  # fmt: skip
        return source_of(input_fn, arguments)

    for element in strategy.distribute_datasets_from_function(opened):
        yield features_and_labels(element)


def source_of(input_fn: InputFn, known: Mapping[str, Any]) -> Any:
    """Make what can be iterated over for the batches of an input_fn.

    Args:
        input_fn: The user's.
        known: Arguments, of which it gets those that it names.

    Raises:
        ConfigurationError: It returns nothing of use.
    """
    source = call_with_known(input_fn, known)
    if source is None:
        raise ConfigurationError("input_fn returned None; return a dataset, or an iterable")
    if isinstance(source, Dataset):
        return source
    if _is_batch(source):
        return Dataset.from_tensors(source).repeat()
    if isinstance(source, str | bytes):
        raise ConfigurationError(
            f"input_fn returned {source!r:.80}; return what is read from it: a dataset, or an "
            "iterable of batches"
        )
    if isinstance(source, Mapping):
        raise ConfigurationError(
            "input_fn returned a dict that is no batch of arrays; return (features, labels), a "
            "dataset, or an iterable of such"
        )
    return source


def _is_batch(value: Any) -> bool:
    """Return whether a value is one batch: an array, a dict of arrays, or a pair of such."""
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, Mapping) or (isinstance(value, tuple) and len(value) == 2):
        arrays = [leaf for leaf in leaves(value) if leaf is not None]
        return bool(arrays) and all(hasattr(leaf, "shape") for leaf in arrays)
    return False


def features_and_labels(element: Any) -> tuple[Any, Any]:
    """Split a batch into its two parts; labels are None where it has one.

    Raises:
        ConfigurationError: It has more.
    """
    if isinstance(element, tuple | list):
        if len(element) == 2:
            return element[0], element[1]
        if len(element) == 1:
            return element[0], None
        raise ConfigurationError(
            "input_fn should return (features, labels), a batch has "
            f"{counted(len(element), 'part')}"
        )
    return element, None


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    seed: int = 0,
) -> InputFn:
    """Make an input_fn of arrays, as ``tf.compat.v1.estimator.inputs.numpy_input_fn``. As
    ``tf.compat.v1.estimator.inputs.numpy_input_fn``.

    Args:
        x: Array, or dict of arrays, whose first axis is that of examples.
        y: Labels in the same form; None: there are none.
        batch_size: Batch size of one replica.
        num_epochs: Number of passes over the data; None: without end.
        shuffle: Whether examples come in a random order; required.
        seed: Seed of the random orders.

    Raises:
        ConfigurationError: ``shuffle`` is not given, or the lengths differ.
    """
    if not isinstance(shuffle, bool):
        raise ConfigurationError(
            f"shuffle must be provided and explicitly set as boolean (it is recommended to set it "
            f"as True for training); got {shuffle!r}"
        )
    lengths = sorted({len(leaf) for leaf in leaves((x, y)) if leaf is not None})
    if len(lengths) != 1:
        raise ConfigurationError(f"Length of tensors in x and y is mismatched: {lengths}")
    arrays = x if y is None else (x, y)

    def input_fn() -> Dataset:
        return from_arrays(arrays, batch_size, shuffle=shuffle, seed=seed, epochs=num_epochs)

    return input_fn


if not TYPE_CHECKING:  # programs write rw.estimator.inputs.numpy_input_fn, too
    __getattr__ = public_getattr("rw.estimator.inputs", globals(), instead=ELSEWHERE)
