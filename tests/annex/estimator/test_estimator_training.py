"""Estimators in one process: training goes on where it stopped, and evaluations see checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.estimator import WEIGHTS, estimator, input_fn, line, points
from ropewalk.annexes.estimator import (
    CheckpointSaverListener,
    EstimatorSpec,
    ModeKeys,
    SessionRunArgs,
    SessionRunHook,
)


@pytest.fixture(params=["none", "ps", "two replicas"])
def strategy(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What makes the strategy of a training."""
    if request.param != "two replicas":
        yield {"none": None, "ps": rw.distribute.ParameterServerStrategy}[request.param]
        return
    rw.config.set_logical_cpu_devices(2)
    yield rw.distribute.MirroredStrategy
    rw.config.set_logical_cpu_devices(1)


def test_a_training_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(
    strategy: Any, tmp_path: Path
) -> None:
    # The slots of Adam would show: without them the second half begins with other steps.
    def batch() -> Any:
        return points(count=16)

    whole = estimator(tmp_path / "whole", train_distribute=strategy).train(batch, max_steps=20)
    estimator(tmp_path / "parts", train_distribute=strategy).train(batch, max_steps=10)
    again = estimator(tmp_path / "parts", train_distribute=strategy)
    again.train(batch, steps=5)  # from 10 on
    again.train(batch, max_steps=20)
    assert again.latest_checkpoint().endswith("ckpt-0000000020")
    np.testing.assert_array_equal(again.get_variable_value("w"), whole.get_variable_value("w"))
    assert again.get_variable_names() == ["global_step", "w"]
    again.train(batch, max_steps=20)  # nothing to do
    assert again.latest_checkpoint().endswith("ckpt-0000000020")


def test_evaluations_and_predictions_are_of_the_newest_checkpoint_or_of_a_given_one(
    strategy: Any, tmp_path: Path
) -> None:
    # One strategy may do both: an evaluation leaves alone what is trained.
    made = strategy() if strategy is not None else None
    model = estimator(
        tmp_path, train_distribute=made, eval_distribute=made, save_checkpoints_steps=50
    )
    model.train(input_fn(), max_steps=200)
    x, y = points(seed=1)
    results = model.evaluate(input_fn(epochs=1, seed=1))
    w = model.get_variable_value("w")
    np.testing.assert_allclose(results["mse"], np.mean((x @ w - y) ** 2), rtol=1e-5)
    np.testing.assert_allclose(results["loss"], results["mse"], rtol=1e-5)
    assert results["global_step"] == 200
    np.testing.assert_allclose(w, WEIGHTS, atol=0.05)
    older = model.evaluate(
        input_fn(epochs=1, seed=1), checkpoint_path=str(tmp_path / "ckpt-0000000050")
    )
    assert older["global_step"] == 50
    assert older["mse"] > results["mse"]
    predicted = [each["y"] for each in model.predict(input_fn(epochs=1, seed=1), ["y"])]
    np.testing.assert_allclose(predicted, x @ w, rtol=1e-5)
    model.train(input_fn(), steps=1)
    assert model.latest_checkpoint().endswith("ckpt-0000000201")
    assert np.abs(model.get_variable_value("w") - w).max() < 0.1  # not the older one's


def test_an_evaluation_under_servers_runs_on_the_devices_of_its_process(tmp_path: Path) -> None:
    replicas = []

    def counting(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        context = rw.distribute.get_replica_context()
        assert context is not None
        replicas.append(context.num_replicas_in_sync)
        return line(features, labels, mode)

    estimator(tmp_path).train(input_fn(), steps=1)
    rw.config.set_logical_cpu_devices(2)
    try:
        model = estimator(tmp_path, counting, eval_distribute=rw.distribute.ParameterServerStrategy)
        x, y = points(seed=1)
        results = model.evaluate(input_fn(epochs=1, seed=1))
    finally:
        rw.config.set_logical_cpu_devices(1)
    assert set(replicas) == {2}
    expected = np.mean((x @ model.get_variable_value("w") - y) ** 2)
    np.testing.assert_allclose(results["mse"], expected, rtol=1e-5)


def test_whole_batches_of_predictions(tmp_path: Path) -> None:
    model = estimator(tmp_path).train(input_fn(), steps=2)
    found = list(model.predict(input_fn(batch_size=48, epochs=1), yield_single_examples=False))
    assert [each["twice"].shape for each in found] == [(48,), (16,)]


def test_an_evaluation_takes_the_steps_it_is_given(tmp_path: Path) -> None:
    model = estimator(tmp_path).train(input_fn(), steps=2)
    x, y = points(count=16)
    w = model.get_variable_value("w")
    results = model.evaluate(input_fn(), steps=2, name="two")
    np.testing.assert_allclose(results["mse"], np.mean((x @ w - y) ** 2), rtol=1e-5)
    assert rw.estimator.read_eval_metrics(model.eval_dir("two"))[2]["mse"] == results["mse"]


def test_the_input_may_be_a_batch_an_iterable_or_a_function_of_what_it_asks_for(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []

    def given(mode: str, params: Any) -> Any:
        seen.append((mode, params))
        return [points(), points(seed=1)]  # two batches

    model = rw.estimator.Estimator(line, str(tmp_path), params={"rate": 0.1})
    model.train(given)
    assert seen == [(ModeKeys.TRAIN, {"rate": 0.1})]
    assert model.latest_checkpoint() == str(tmp_path / "ckpt-0000000002")
    model.train(points, steps=3)  # the same batch again and again
    assert model.latest_checkpoint() == str(tmp_path / "ckpt-0000000005")


class Noting(SessionRunHook, CheckpointSaverListener):
    """Writes down what it is called for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(("created", list(session.variables)))

    def before_run(self, run_context: Any) -> SessionRunArgs:
        self.calls.append("before")
        return SessionRunArgs({"step": "global_step", "mean": "mean_x"})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append(run_values.results)

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("saving", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> Any:
        self.calls.append(("saved", global_step_value, float(session.read("w")[0]) != 0))

    def end(self, session: Any, global_step_value: int | None = None) -> None:
        self.calls.append("end")


def recording(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    rw.estimator.record("mean_x", 7.0)
    return line(features, labels, mode)


def test_hooks_and_listeners_are_called_in_order(tmp_path: Path) -> None:
    hook = Noting()
    estimator(tmp_path, recording, save_checkpoints_steps=2).train(
        input_fn(), hooks=[hook], steps=3, saving_listeners=[hook]
    )

    def step(number: int) -> list[Any]:
        return ["before", {"step": number, "mean": 7.0}]

    assert hook.calls == [
        "begin", "begin", "before", ("created", ["w"]), {"step": 1, "mean": 7.0},
        *step(2), ("saving", 2), ("saved", 2, True),
        *step(3), ("saving", 3), ("saved", 3, True), "end", "end",
    ]  # fmt: skip


def test_a_hook_and_a_listener_can_end_a_training(tmp_path: Path) -> None:
    class Stopping(CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> bool:
            return global_step_value >= 4

    model = estimator(tmp_path, save_checkpoints_steps=2)
    model.train(input_fn(), hooks=[rw.estimator.StopAtStepHook(num_steps=3)])
    assert model.latest_checkpoint().endswith("ckpt-0000000003")
    model.train(input_fn(), saving_listeners=[Stopping()])
    assert model.latest_checkpoint().endswith("ckpt-0000000005")


def test_hooks_of_model_fn_see_every_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ropewalk")

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = line(features, labels, mode)
        hook = rw.estimator.LoggingTensorHook(
            {"first": labels[0]}, every_n_iter=1, formatter=lambda v: f"saw {float(v['first']):.4f}"
        )
        return EstimatorSpec(mode, loss=spec.loss, train_op=True, training_hooks=[hook])

    estimator(tmp_path, model_fn).train(input_fn(), steps=3)
    _, y = points()
    said = [record.message for record in caplog.records if record.message.startswith("saw")]
    assert said == [f"saw {y[8 * i]:.4f}" for i in range(3)]


def test_once_makes_one_object_for_each_training_and_evaluation(tmp_path: Path) -> None:
    made: list[str] = []

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        def make(what: str) -> Any:
            made.append(f"{what} {mode}")
            return rw.Variable(np.zeros(3, np.float32), name=what)

        first, second = rw.estimator.once(make, "w"), rw.estimator.once(make, "v")
        assert (first.name, second.name) == ("w", "v")
        return line(features, labels, mode)  # whose w is another one

    model = estimator(tmp_path, model_fn).train(input_fn(), steps=3)
    model.evaluate(input_fn(epochs=1))
    assert made == ["w train", "v train", "w eval", "v eval"]
    assert model.get_variable_names() == ["global_step", "v", "w", "w_1"]
    assert model.get_variable_value("global_step") == 3
    no_interval = estimator(tmp_path / "other", model_fn, save_checkpoints_steps=0)
    assert no_interval.train(input_fn(), steps=2).latest_checkpoint() is not None


def test_model_fn_knows_the_global_step_before_its_batch(strategy: Any, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        seen.append((mode, rw.estimator.get_global_step()))
        return line(features, labels, mode)

    model = estimator(tmp_path, model_fn, train_distribute=strategy)
    model.train(input_fn(), steps=2).train(input_fn(), steps=2)
    model.evaluate(input_fn(), steps=1)
    train, evaluation = rw.estimator.ModeKeys.TRAIN, rw.estimator.ModeKeys.EVAL
    assert sorted(set(seen)) == [(evaluation, 4), *((train, step) for step in range(4))]
    with pytest.raises(RuntimeError, match="is of use in a model_fn"):
        rw.estimator.get_global_step()


def test_what_train_op_makes_belongs_to_the_model_and_it_may_give_the_loss(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        def train_op() -> float:  # as a bridge that shares its arrays with the first update
            late = rw.Variable(np.zeros((), np.float32), name="late")
            late.assign_add(1)
            return float(late)

        return EstimatorSpec(mode, train_op=train_op)

    for steps in (3, 5):
        model = estimator(tmp_path, model_fn).train(input_fn(), max_steps=steps)
        assert model.get_variable_value("late") == steps


@pytest.mark.parametrize("first", ["in model_fn", "in train_op"])
def test_a_train_op_of_two_optimizers_is_one_step(
    strategy: Any, first: str, tmp_path: Path
) -> None:
    batches = 0

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        nonlocal batches
        batches += 1
        one = rw.Variable(np.zeros(2, np.float32), name="one")
        other = rw.Variable(np.zeros(2, np.float32), name="other")

        def update(variable: Any) -> None:
            gradient = np.ones(2, np.float32)
            rw.optimizers.SGD(1.0).apply_gradients([(gradient, variable)])

        def train_op() -> None:
            if first == "in train_op":
                update(one)
            update(other)

        if first == "in model_fn":
            update(one)
        return EstimatorSpec(mode, loss=0.0, train_op=train_op)

    model = estimator(tmp_path, model_fn, train_distribute=strategy)
    model.train(input_fn(), max_steps=20)
    replicas = 2 if strategy is rw.distribute.MirroredStrategy else 1
    assert batches == 20 * replicas
    assert model.latest_checkpoint().endswith("ckpt-0000000020")
    for name in ("one", "other"):
        assert model.get_variable_value(name).tolist() == [-20 * replicas] * 2


def test_metrics_of_ropewalk_count_over_all_batches_and_begin_anew(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        mean = rw.metrics.Mean(name="mean")
        mean.update_state(labels)
        spec = line(features, labels, mode)
        return EstimatorSpec(mode, loss=spec.loss, train_op=True, eval_metric_ops={"mean": mean})

    model = estimator(tmp_path, model_fn).train(input_fn(), steps=3)
    for _ in range(2):
        results = model.evaluate(input_fn(epochs=1, seed=1))
        np.testing.assert_allclose(results["mean"], points(seed=1)[1].mean(), rtol=1e-5)


def test_metrics_can_be_added_to_an_estimator(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = line(features, labels, mode, params)
        spec.predictions = {"first": features[:, 0]}
        return spec

    def metric_fn(labels: Any, predictions: Any) -> Any:
        return {"first": rw.estimator.metrics.mean(predictions["first"], labels > 0)}

    model = estimator(tmp_path, model_fn).train(input_fn(), steps=2)
    results = rw.estimator.add_metrics(model, metric_fn).evaluate(input_fn(epochs=1))
    x, y = points()
    np.testing.assert_allclose(results["first"], x[y > 0, 0].mean(), rtol=1e-5)
    assert {"mse", "loss", "global_step"} < results.keys()


def test_a_warm_start_takes_values_where_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    first = estimator(tmp_path / "first").train(input_fn(), max_steps=100)

    def other(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        w = rw.Variable(np.zeros(3, np.float32), name="weights")
        return EstimatorSpec(mode, loss=np.mean(w.read_value()), train_op=True)

    settings = rw.estimator.WarmStartSettings(
        str(tmp_path / "first"), "wei", var_name_to_prev_var_name={"weights": "w"}
    )
    second = rw.estimator.Estimator(other, str(tmp_path / "second"), warm_start_from=settings)
    second.train(input_fn(), steps=1)
    np.testing.assert_array_equal(
        second.get_variable_value("weights"), first.get_variable_value("w")
    )


def test_an_export_has_the_variables_and_what_model_fn_writes(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = line(features, labels, mode)
        if mode == ModeKeys.PREDICT:
            spec.export_outputs["shape.txt"] = lambda path: Path(path).write_text(
                str(features.shape)
            )
        return spec

    model = estimator(tmp_path / "model", model_fn).train(input_fn(), steps=3)
    receiver = rw.estimator.build_raw_serving_input_receiver_fn(np.zeros((2, 3), np.float32))
    folder = Path(model.export_saved_model(str(tmp_path / "exports"), receiver))
    assert folder.parent == tmp_path / "exports"
    assert (folder / "shape.txt").read_text() == "(2, 3)"
    from safetensors.numpy import load_file

    saved = load_file(folder / "variables.safetensors")
    np.testing.assert_array_equal(saved["w"], model.get_variable_value("w"))


def test_a_training_ends_where_a_replica_would_have_no_examples(tmp_path: Path) -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        model = estimator(tmp_path, train_distribute=rw.distribute.MirroredStrategy)
        model.train(input_fn(batch_size=13, epochs=1))  # 5 batches, in pairs
        assert model.latest_checkpoint().endswith("ckpt-0000000002")
    finally:
        rw.config.set_logical_cpu_devices(1)
