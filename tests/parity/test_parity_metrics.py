"""``rw.metrics`` give what the metrics of Keras give under ``tf.distribute``."""

from typing import Any

import numpy as np
import pytest

from helpers.parity import Side, TensorFlow, alike, differ, distributed

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

LABELS = [0, 1, 2, 1, 0, 2]
ONE_HOT = np.eye(3)[LABELS].tolist()
SCORES = [
    [0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3],
    [0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6],
]  # fmt: skip
TRUE, GUESSED = [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]


def metrics(side: Side) -> Any:
    return side.root.keras.metrics if isinstance(side, TensorFlow) else side.root.metrics


# Name: the metric's class, its options, the arguments of a batch.
CASES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "mean": ("Mean", {}, ([1.0, 2.0, 6.0],)),
    "mean of a number": ("Mean", {}, (5.0,)),
    "mean of integers": ("Mean", {}, ([1, 2],)),
    "mean of rows": ("Mean", {}, ([[1.0, 2.0], [3.0, 5.0]],)),
    "mean of NaN": ("Mean", {}, (float("nan"),)),
    "sum": ("Sum", {}, ([1.0, 2.0],)),
    "accuracy": ("Accuracy", {}, ([1, 2, 3], [1, 2, 4])),
    "accuracy of columns": ("Accuracy", {}, ([[1], [2], [3]], [[1], [2], [4]])),
    "accuracy of other shapes": ("Accuracy", {}, ([1, 2, 3], [1, 2])),
    "binary": ("BinaryAccuracy", {}, ([1, 1, 0, 0], [0.9, 0.4, 0.6, 0.2])),
    "binary at the threshold": ("BinaryAccuracy", {}, ([1, 0], [0.5, 0.5])),
    "binary with a threshold": ("BinaryAccuracy", {"threshold": 0.3}, ([1, 0], [0.4, 0.2])),
    "binary of logits": ("BinaryAccuracy", {"threshold": 0.0}, ([1, 0, 1], [0.4, -0.2, -3.0])),
    "binary of columns": ("BinaryAccuracy", {}, ([[1, 0], [1, 1]], [[0.9, 0.1], [0.4, 0.8]])),
    "categorical": ("CategoricalAccuracy", {}, (ONE_HOT, SCORES)),
    "sparse": ("SparseCategoricalAccuracy", {}, (LABELS, SCORES)),
    "sparse of a column": ("SparseCategoricalAccuracy", {}, ([[n] for n in LABELS], SCORES)),
    "sparse of other shapes": ("SparseCategoricalAccuracy", {}, ([0, 1], SCORES)),
    "top k": ("TopKCategoricalAccuracy", {"k": 2}, (ONE_HOT, SCORES)),
    "sparse top k": ("SparseTopKCategoricalAccuracy", {"k": 2}, (LABELS, SCORES)),
    "sparse top one": ("SparseTopKCategoricalAccuracy", {"k": 1}, (LABELS, SCORES)),
    "AUC": ("AUC", {}, (TRUE, GUESSED)),
    "AUC of precision": ("AUC", {"curve": "PR"}, (TRUE, GUESSED)),
    "AUC of few thresholds": ("AUC", {"num_thresholds": 3}, (TRUE, GUESSED)),
    "AUC at thresholds": ("AUC", {"thresholds": [0.2, 0.5]}, (TRUE, GUESSED)),
    "AUC of one threshold": ("AUC", {"num_thresholds": 1}, (TRUE, GUESSED)),
    "AUC of another curve": ("AUC", {"curve": "XX"}, (TRUE, GUESSED)),
}


@pytest.mark.parametrize("batches", [0, 1, 2], ids=str)
@pytest.mark.parametrize("case", CASES)
@alike()
def test_a_metric_has_the_same_result(side: Side, case: str, batches: int) -> Any:
    kind, options, batch = CASES[case]
    metric = getattr(metrics(side), kind)(**options)
    for _ in range(batches):
        metric.update_state(*batch)
    return float(metric.result())


@pytest.mark.parametrize("weight", [0.5, "each", "zeros"], ids=str)
@pytest.mark.parametrize("case", ["mean", "sum", "accuracy", "sparse", "AUC"])
@alike()
def test_weights_of_examples_count_alike(side: Side, case: str, weight: Any) -> Any:
    kind, options, batch = CASES[case]
    count = len(batch[0])
    weights = {"each": list(range(count)), "zeros": [0] * count}.get(weight, weight)
    metric = getattr(metrics(side), kind)(**options)
    metric.update_state(*batch, sample_weight=weights)
    return float(metric.result())


@alike(gives=["loss", 2.0, 3.0, 7.0])
def test_a_metric_is_named_called_and_reset_alike(side: Side) -> Any:
    metric = metrics(side).Mean(name="loss")
    called = [float(metric(2.0)), float(metric(4.0))]
    metric.reset_state()
    metric.update_state(7.0)
    return [metric.name, *called, float(metric.result())]


@alike()
def test_a_function_becomes_a_metric(side: Side) -> Any:
    def error(true: Any, guessed: Any) -> Any:
        return abs(true - guessed)

    metric = metrics(side).MeanMetricWrapper(error, name="error")
    metric.update_state(side.array([1.0, 2.0]), side.array([2.0, 4.0]))
    return [float(metric.result()), metric.name]


@alike(gives=[3.0, 0.5])
def test_replicas_are_counted_together(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        mean, accuracy = metrics(side).Mean(), metrics(side).SparseCategoricalAccuracy()

    def step(value: Any, labels: Any, scores: Any) -> None:
        mean.update_state(value)
        accuracy.update_state(labels, scores)

    strategy.run(
        step,
        (
            distributed(side, strategy, [1.0], [5.0]),
            distributed(side, strategy, [0, 2], [1, 2], dtype="int32"),
            distributed(side, strategy, SCORES[:2], SCORES[2:4]),
        ),
    )
    return [float(mean.result()), float(accuracy.result())]


@differ(theirs="value", ours="ValueError", words="from_logits=True")
def test_scores_that_are_no_probabilities_are_refused(side: Side) -> Any:
    """Keras counts them at the nearest threshold."""
    metrics(side).AUC().update_state([0, 1], [-0.5, 1.5])


@differ(theirs="float32", ours="float64")
def test_results_are_of_double_precision(side: Side) -> Any:
    """Counts stay exact above 2**24."""
    metric = metrics(side).Mean()
    metric.update_state(3.0)
    return np.asarray(metric.result()).dtype.name
