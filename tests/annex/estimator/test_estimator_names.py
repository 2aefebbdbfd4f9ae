"""Every name of tf.estimator, and of tf.compat.v1.train's hooks, is here or says what to write."""

import re

import pytest

import ropewalk as rw
from helpers.pages import ROOT
from ropewalk.annexes.estimator.inputs import ELSEWHERE, EXPERIMENTAL
from ropewalk.api import estimator as public

# Of TensorFlow 2.15, the last with tf.estimator; model_to_estimator was tf.keras.estimator's.
TENSORFLOW = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
    "BoostedTreesClassifier",
    "BoostedTreesEstimator",
    "BoostedTreesRegressor",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "Head",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "LogisticRegressionHead",
    "ModeKeys",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "PoissonRegressionHead",
    "ProfilerHook",
    "RegressionHead",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "regressor_parse_example_spec",
    "tpu",
    "train_and_evaluate",
]
OF_EXPERIMENTAL = [
    "InMemoryEvaluatorHook",
    "KMeans",
    "LinearSDCA",
    "RNNClassifier",
    "RNNEstimator",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
PAGE = (ROOT / "docs" / "estimator.md").read_text()


def test_every_name_is_here_or_is_explained_and_never_both() -> None:
    assert {n for n in TENSORFLOW if n not in public.__all__} == ELSEWHERE.keys() - {
        "TPUEstimator", "TPUEstimatorSpec", "pandas_input_fn",
    }  # fmt: skip
    here = {name for name in OF_EXPERIMENTAL if name in vars(rw.estimator.experimental)}
    assert set(OF_EXPERIMENTAL) - here == EXPERIMENTAL.keys()


def test_the_page_has_every_name() -> None:
    table = PAGE[PAGE.index("## Every name") :]
    named = set(re.findall(r"`(?:experimental\.)?(\w+)[^`]*`", table))
    assert {*TENSORFLOW, *OF_EXPERIMENTAL, *ELSEWHERE} - named == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DNNClassifier", "rw.estimator has no 'DNNClassifier': .*canned-estimators.md"),
        ("export", "rw.estimator.ServingInputReceiver"),
        ("Nonsense", "module 'rw.estimator' has no attribute 'Nonsense'"),
    ],
)
def test_a_name_that_is_not_here_says_what_to_write(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(rw.estimator, name)


def test_input_functions_are_found_where_programs_look_for_them() -> None:
    assert rw.estimator.inputs.numpy_input_fn is rw.estimator.numpy_input_fn
    with pytest.raises(AttributeError, match=r"numpy_input_fn\({name: frame"):
        _ = rw.estimator.inputs.pandas_input_fn  # type: ignore[attr-defined]


def test_a_name_of_experimental_says_so_too() -> None:
    with pytest.raises(AttributeError, match="has no 'KMeans': scikit"):
        _ = rw.estimator.experimental.KMeans  # type: ignore[attr-defined]


def test_the_pages_that_messages_name_are_there() -> None:
    for text in (*ELSEWHERE.values(), *EXPERIMENTAL.values()):
        for page in re.findall(r"docs/[\w-]+\.md", text):
            assert (ROOT / page).exists()
