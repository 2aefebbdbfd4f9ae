"""rw.metrics: Keras's numbers, over all replicas and workers."""

import os
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy, PerReplica, Strategy

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 4, 60)
ONE_HOT = np.eye(4)[LABELS]
LOGITS = RNG.normal(size=(60, 4)) + ONE_HOT
BINARY = RNG.integers(0, 2, 60)
PROBABILITIES = np.clip(RNG.normal(0.35 + 0.3 * BINARY, 0.25), 0, 1).astype(np.float32)
WEIGHTS = RNG.uniform(0, 2, 60).astype(np.float32)

CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "Mean": ({}, (LOGITS,)),
    "Sum": ({}, (LOGITS,)),
    "Accuracy": ({}, (LABELS, LOGITS.argmax(1))),
    "BinaryAccuracy": ({"threshold": 0.4}, (BINARY, PROBABILITIES)),
    "BinaryAccuracy of logits": ({"threshold": 0.0}, (BINARY, PROBABILITIES - 0.5)),
    "CategoricalAccuracy": ({}, (ONE_HOT, LOGITS)),
    "SparseCategoricalAccuracy": ({}, (LABELS[:, None], LOGITS)),
    "TopKCategoricalAccuracy": ({"k": 2}, (ONE_HOT, LOGITS)),
    "SparseTopKCategoricalAccuracy": ({"k": 2}, (LABELS, LOGITS)),
    "AUC": ({}, (BINARY, PROBABILITIES)),
    "AUC of PR": ({"curve": "PR"}, (BINARY, PROBABILITIES)),
    "AUC minoring": ({"summation_method": "minoring"}, (BINARY, PROBABILITIES)),
    "AUC of PR majoring": (
        {"summation_method": "majoring", "curve": "PR", "num_thresholds": 17},
        (BINARY, PROBABILITIES),
    ),
    "AUC at thresholds": ({"thresholds": [0.2, 0.5, 0.9]}, (BINARY, PROBABILITIES)),
}


@pytest.fixture(params=["none", "mirrored", "ps", "ps with replicas"])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    if request.param in ("mirrored", "ps with replicas"):
        rw.config.set_logical_cpu_devices(3)
    if request.param.startswith("ps"):
        return ParameterServerStrategy()
    return MirroredStrategy() if request.param == "mirrored" else rw.distribute.get_strategy()


@pytest.fixture(scope="module")
def keras_metrics() -> Any:
    """Keras's, on its NumPy backend unless another was chosen before."""
    with pytest.MonkeyPatch.context() as patch:  # processes that other tests start have no such
        patch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "numpy"))
        return pytest.importorskip("keras", reason="Keras is not installed").metrics


# Keras divides by zero, and takes the result where it does not.
@pytest.mark.filterwarnings("ignore:(invalid|divide):RuntimeWarning")
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_keras(case: str, weighted: bool, keras_metrics: Any) -> None:
    options, arguments = CASES[case]
    mine = getattr(rw.metrics, case.split(maxsplit=1)[0])(**options)
    theirs = getattr(keras_metrics, case.split(maxsplit=1)[0])(**options)
    for part in (slice(0, 13), slice(13, 60)):
        batch = [array[part] for array in arguments]
        for metric in (mine, theirs):
            metric.update_state(*batch, sample_weight=WEIGHTS[part] if weighted else None)
    # Keras adds up in float32, over 60 examples.
    np.testing.assert_allclose(mine.result(), float(theirs.result()), rtol=2e-6)


@pytest.mark.parametrize("case", ["Mean", "SparseCategoricalAccuracy", "AUC"])
def test_replicas_with_uneven_parts_add_up(strategy: Strategy, case: str) -> None:
    options, arguments = CASES[case]
    kind = getattr(rw.metrics, case)
    alone = kind(**options)
    alone.update_state(*arguments)
    with strategy.scope():
        metric = kind(**options)
    count = strategy.num_replicas_in_sync
    cuts = [0, *range(7, 7 + count - 1), 60]  # 7, 1, …, the rest

    def parts(array: Any) -> Any:
        each = [array[cuts[i] : cuts[i + 1]] for i in range(count)]
        return PerReplica(each) if count > 1 else each[0]

    def step(*batch: Any) -> Any:
        metric.update_state(*batch)
        return metric.result()

    inside = strategy.run(step, args=tuple(parts(array) for array in arguments))
    for result in (*strategy.experimental_local_results(inside), metric.result()):
        np.testing.assert_allclose(result, alone.result(), rtol=1e-12)
    metric.reset_state()
    assert metric.result() == 0


def test_nothing_counted_is_zero() -> None:
    assert rw.metrics.Mean().result() == rw.metrics.AUC().result() == 0


def test_an_empty_part_changes_nothing() -> None:
    mean = rw.metrics.Mean()
    assert mean([1.0, 3.0]) == 2
    mean.update_state(np.zeros((0, 4)))
    assert mean.result() == 2
    assert mean(5.0, sample_weight=2.0) == 3.5


def test_a_count_is_exact_beyond_floats() -> None:
    total = rw.metrics.Sum()
    for value in (2.0**24, 1.0, 1.0):
        total.update_state(value)
    assert total.result() == 2**24 + 2


def test_a_function_becomes_a_metric() -> None:
    def squared(true: Any, pred: Any, scale: float) -> Any:
        return scale * (true - pred) ** 2

    metric = rw.metrics.MeanMetricWrapper(squared, scale=10.0)
    metric.update_state(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    assert (metric.name, metric.result()) == ("squared", 25.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rw.metrics.AUC(curve="roc"), "curve must be"),
        (lambda: rw.metrics.AUC(summation_method="mean"), "summation_method must be"),
        (lambda: rw.metrics.AUC(num_thresholds=1), "at least 2"),
        (lambda: rw.metrics.AUC(thresholds=[2.0]), r"in \[0, 1\]"),
        (lambda: rw.metrics.Precision(thresholds=1.5), "between 0 and 1"),
        (lambda: rw.metrics.AUC().update_state([1], [1.5]), "from_logits=True"),
        (lambda: rw.metrics.Accuracy().update_state(np.ones(2), np.ones(3)), r"\(2,\).*\(3,\)"),
        (
            lambda: rw.metrics.SparseCategoricalAccuracy().update_state(LABELS[:5], LOGITS),
            "one label per row",
        ),
    ],
    ids=["curve", "method", "thresholds", "outside", "threshold", "logits", "shapes", "rows"],
)
def test_wrong_arguments_are_value_errors(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_several_thresholds_are_several_metrics() -> None:
    with pytest.raises(TypeError, match=r"Recall is one number.*a metric for each"):
        rw.metrics.Recall(thresholds=[0.2, 0.5])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "options", "instead"),
    [
        ("Precision", {"top_k": 2}, "k largest scores of each row"),
        ("Recall", {"class_id": 0}, r"y_true\[\.\.\., class_id\]"),
        ("AUC", {"multi_label": True}, "a metric for each label"),
        ("AUC", {"label_weights": np.ones(2)}, "weigh their results"),
        ("AUC", {"treshold": 0.5}, "has no option 'treshold'$"),
    ],
)
def test_an_option_of_keras_that_is_not_here_says_what_to_write(
    metric: str, options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(TypeError, match=f"{metric} .*{instead}"):
        getattr(rw.metrics, metric)(**options)


def test_an_option_of_keras_that_is_switched_off_may_be_given() -> None:
    metric = rw.metrics.Precision(top_k=None, class_id=None)
    metric.update_state([1, 0], [0.9, 0.8])
    assert metric.result() == 0.5
    assert rw.metrics.AUC(multi_label=False, label_weights=None).name == "auc"


@pytest.mark.parametrize("case", ["Sum", "SparseCategoricalAccuracy", "AUC"])
def test_a_partitioner_does_not_cut_a_metric(case: str) -> None:
    """Else its total and its count could be read at different moments."""
    options, arguments = CASES[case]
    whole = getattr(rw.metrics, case)(**options)
    whole.update_state(*arguments)
    partitioner = rw.distribute.partitioners.FixedShardsPartitioner(2)
    strategy = ParameterServerStrategy(variable_partitioner=partitioner)
    with strategy.scope():
        metric = getattr(rw.metrics, case)(**options)
        cut: Any = rw.Variable(np.zeros(2, np.float32), name="cut")
    strategy.run(metric.update_state, args=arguments)
    assert metric.result() == whole.result()
    assert isinstance(cut, rw.distribute.ShardedVariable), "others are cut"
    assert not isinstance(metric.variables[0], rw.distribute.ShardedVariable)
