"""Mistakes of Estimator programs: each has an error that names it, of TensorFlow's kind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.estimator import estimator, input_fn, line, points
from ropewalk.annexes.estimator import EstimatorSpec, ModeKeys
from ropewalk.core.errors import (
    CheckpointError,
    ConfigurationError,
    ShapeMismatchError,
    UnknownVariableError,
)

e = rw.estimator


def returning(make: Callable[[str], Any]) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        return make(mode)

    return model_fn


def unfit(function: Any) -> Any:
    """A model_fn that a type checker would refuse."""
    return function


@pytest.mark.parametrize(
    ("model_fn", "said"),
    [
        pytest.param(
            returning(lambda mode: 3),
            r"should return an EstimatorSpec, it returned a int when .* \(ModeKeys.TRAIN\)",
            id="kind",
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(mode, loss=unfit("0.5"), train_op=True)),
            "Loss must be a number, it is '0.5'",
            id="loss-of-letters",
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(ModeKeys.EVAL, loss=1.0)),
            "mode='train' and returned an EstimatorSpec of mode 'eval'",
            id="another-mode",
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(mode, loss=1.0)), "Missing train_op", id="train_op"
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(mode, train_op=True)), "Missing loss", id="loss"
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(mode, train_op=lambda: None)),
            "or a train_op that returns it",
            id="loss-of-train_op",
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec(mode, loss=np.ones(8), train_op=True)),
            r"Loss must be scalar, it has shape \(8,\)",
            id="loss-of-a-batch",
        ),
        pytest.param(
            lambda features: None, "does not take labels, but input_fn returns labels", id="labels"
        ),
        pytest.param(
            returning(lambda mode: EstimatorSpec("trian", loss=1.0)),
            "mode='trian'.: the mode is one of",
            id="no-mode",
        ),
    ],
)
def test_what_model_fn_returns_is_checked(model_fn: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        estimator(tmp_path, model_fn).train(input_fn(), steps=1)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"predictions": None}, ConfigurationError, "Missing predictions"),
        ({"predictions": 1, "eval_metric_ops": [1]}, TypeError, "eval_metric_ops must be a dict"),
        ({"predictions": 1, "training_hooks": [1]}, TypeError, "SessionRunHook instances"),
    ],
)
def test_a_spec_is_checked(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        EstimatorSpec(ModeKeys.PREDICT, **given)


no_function: Any = None
no_config: Any = "x"
number: Any = 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(
            lambda: e.Estimator(unfit(lambda labels: None)),
            "must include features",
            id="fn",
        ),
        pytest.param(
            lambda: e.Estimator(unfit(lambda features: None), params={"a": 1}),
            "does not include params argument, but params",
            id="params",
        ),
        pytest.param(
            lambda: e.Estimator(unfit(lambda features, extra: None)),
            "has the argument 'extra'",
            id="extra",
        ),
        pytest.param(
            lambda: e.Estimator(line, "a", e.RunConfig(model_dir="b")),
            "'a' in constructor and 'b' in RunConfig",
            id="model_dirs",
        ),
        pytest.param(lambda: e.RunConfig(model_dir=""), "model_dir is empty", id="empty"),
        pytest.param(
            lambda: e.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
            "give one of them",
            id="steps-and-seconds",
        ),
        *(
            pytest.param(partial(e.RunConfig, **given), said, id="-".join(given))
            for said, given in (
                ("must be positive", {"log_step_count_steps": 0}),
                ("must be positive", {"keep_checkpoint_every_n_hours": 0}),
                ("must be positive", {"session_creation_timeout_secs": 0}),
                ("must not be negative", {"save_checkpoints_steps": -1}),
                ("must not be negative", {"save_checkpoints_secs": -2}),
                ("must be integer", {"tf_random_seed": 1.5}),
                ('one argument "op"', {"device_fn": 3}),
                ('one argument "op"', {"device_fn": lambda: "/cpu:0"}),
            )
        ),
        pytest.param(
            lambda: e.Estimator(line, config=no_config), "instance of `RunConfig`", id="config"
        ),
        pytest.param(
            lambda: e.Estimator(no_function), "model_fn must be provided", id="no-model_fn"
        ),
        pytest.param(lambda: e.LatestExporter(number), "named like a folder", id="exporter-name"),
        pytest.param(lambda: e.RunConfig().replace(stepz=1), "has no 'stepz'", id="replace"),
        pytest.param(lambda: e.TrainSpec(input_fn(), max_steps=0), "max_steps > 0", id="max_steps"),
        pytest.param(lambda: e.EvalSpec(input_fn(), steps=0), "steps > 0", id="eval-steps"),
        pytest.param(
            lambda: e.EvalSpec(input_fn(), throttle_secs=-1), "throttle_secs >= 0", id="throttle"
        ),
        pytest.param(
            lambda: e.EvalSpec(input_fn(), exporters=[e.LatestExporter("a"), e.BestExporter("a")]),
            "unique names",
            id="exporters",
        ),
        pytest.param(lambda: e.LatestExporter("a", exports_to_keep=0), "positive", id="keep"),
        pytest.param(e.StopAtStepHook, "give one of them", id="stop"),
        pytest.param(lambda: e.numpy_input_fn(*points()), "shuffle must be provided", id="shuffle"),
        pytest.param(
            lambda: e.numpy_input_fn(np.ones(3), np.ones(4), shuffle=False), "mismatched", id="xy"
        ),
    ],
)
def test_what_the_program_says_is_checked(
    make: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda m: m.train(input_fn(), steps=1, max_steps=1), ConfigurationError, "both steps and"),
        (lambda m: m.train(input_fn(), steps=0), ConfigurationError, "steps > 0"),
        (lambda m: m.train(input_fn(), max_steps=-1), ConfigurationError, "max_steps > 0"),
        (lambda m: m.train(input_fn(), hooks=[1], steps=1), TypeError, "must be a SessionRunHook"),
        (lambda m: m.train(3, steps=1), TypeError, "input_fn must be a function"),
        (lambda m: m.train(lambda: None, steps=1), ConfigurationError, "input_fn returned None"),
        (lambda m: m.train(lambda: "a.csv", steps=1), ConfigurationError, "returned 'a.csv'; ret"),
        (lambda m: m.train(list, steps=1), ConfigurationError, "returned no batch"),
        (lambda m: m.train(lambda: [(1, 2, 3)], steps=1), ConfigurationError, "has 3 parts"),
        (lambda m: m.evaluate(input_fn(), steps=0), ConfigurationError, "steps > 0"),
        (lambda m: m.evaluate(input_fn()), CheckpointError, "Could not find trained model"),
        (lambda m: next(m.predict(input_fn())), CheckpointError, "Could not find trained model"),
        (lambda m: m.get_variable_names(), CheckpointError, "Could not find trained model"),
    ],
)
def test_calls_are_checked(
    call: Callable[[Any], Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        call(estimator(tmp_path))


def test_params_are_a_mapping() -> None:
    given: Any = "x"
    with pytest.raises(TypeError, match="params must map names to values, got 'x'"):
        rw.estimator.Estimator(line, params=given)


def test_an_evaluation_that_sees_nothing_says_so(tmp_path: Path) -> None:
    model = estimator(tmp_path).train(input_fn(), steps=1)
    with pytest.raises(ConfigurationError, match="no batch to evaluate"):
        model.evaluate(list)
    with pytest.raises(ConfigurationError, match=r"one output from \['y', 'twice'\], provided"):
        next(model.predict(input_fn(), ["z"]))


def test_a_checkpoint_of_another_model_is_named(tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), steps=1)

    def other(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        w = rw.Variable(np.zeros(4, np.float32), name=name)
        return EstimatorSpec(mode, loss=w.read_value().mean(), train_op=True)

    name = "w"
    with pytest.raises(ShapeMismatchError, match=r"'w' with shape \(3,\), model_fn makes 'w' with"):
        estimator(tmp_path, other).evaluate(input_fn())
    with pytest.raises(ShapeMismatchError):
        estimator(tmp_path, other).train(input_fn(), steps=1)
    name = "v"
    with pytest.raises(CheckpointError, match="has no variable 'v'; it has 'w'"):
        estimator(tmp_path, other).evaluate(input_fn())


@pytest.mark.parametrize("servers", [False, True])
def test_a_training_does_not_go_on_in_the_directory_of_another_model(
    servers: bool, tmp_path: Path
) -> None:
    estimator(tmp_path).train(input_fn(), steps=3)
    seen = []

    def other(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        v = rw.Variable(np.zeros(3, np.float32), name="v")
        seen.append(v)
        rw.optimizers.SGD(0.1).apply_gradients([(np.ones(3, np.float32), v)])
        return EstimatorSpec(mode, loss=1.0, train_op=True)

    def program() -> None:
        estimator(tmp_path, other).train(input_fn(), steps=1)

    def in_a_job() -> None:
        with rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster:
            cluster.run(program)

    said = "ckpt-0000000003 is of another model: it has 'w', and model_fn makes 'v'"
    with pytest.raises(CheckpointError, match=said):
        (in_a_job if servers else program)()
    assert len(seen) == 1
    assert [path.name for path in tmp_path.glob("ckpt-*")] == ["ckpt-0000000003"]


def test_a_model_that_has_grown_goes_on_and_the_log_names_what_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator(tmp_path).train(input_fn(), steps=3)

    def grown(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        rw.Variable(np.zeros(3, np.float32), name="bias")
        return line(features, labels, mode)

    estimator(tmp_path, grown).train(input_fn(), steps=1)
    assert "has no 'bias': it begins anew" in caplog.text


def test_a_variable_of_another_shape_for_the_next_batch_is_named(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        w = rw.Variable(np.zeros(len(features), np.float32), name="w")
        return EstimatorSpec(mode, loss=w.read_value().mean(), train_op=True)

    with pytest.raises(ConfigurationError, match=r"'w' with shape \(16,\); for the batch before"):
        estimator(tmp_path, model_fn).train(input_fn(batch_size=48, epochs=1))


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        rw.Variable(np.zeros(3, np.float32), name="w")
        return EstimatorSpec(mode, loss=float("nan"), train_op=True)

    model = estimator(tmp_path, model_fn)
    with pytest.raises(RuntimeError, match="loss = nan at global step 1") as caught:
        model.train(input_fn(), steps=3)
    assert isinstance(caught.value, e.NanLossDuringTrainingError)
    assert model.latest_checkpoint() is None


def test_a_hook_that_asks_for_what_is_not_there_is_told_what_is(tmp_path: Path) -> None:
    hook = e.LoggingTensorHook(["accuracy"], every_n_iter=1)
    with pytest.raises(UnknownVariableError, match="'accuracy', and the step has 'loss'"):
        estimator(tmp_path).train(input_fn(), hooks=[hook], steps=1)


def test_two_estimators_do_not_share_variables_under_one_strategy(tmp_path: Path) -> None:
    strategy = rw.distribute.MirroredStrategy()
    estimator(tmp_path / "a", train_distribute=strategy).train(input_fn(), steps=1)
    with pytest.raises(ConfigurationError, match="'w' under this MirroredStrategy already"):
        estimator(tmp_path / "b", train_distribute=strategy).train(input_fn(), steps=1)


def test_once_and_record_are_for_model_fn() -> None:
    with pytest.raises(RuntimeError, match="in a model_fn"):
        e.once(dict)
    with pytest.raises(RuntimeError, match="in a model_fn"):
        e.record("a", 1)
