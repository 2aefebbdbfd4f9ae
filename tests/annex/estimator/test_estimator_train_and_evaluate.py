"""train_and_evaluate: a process alone in turn, tasks of a cluster each its part; exporters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.estimator import estimator, input_fn
from ropewalk.annexes.estimator import (
    EvalSpec,
    Exporter,
    SessionRunHook,
    TrainSpec,
    train_and_evaluate,
)
from ropewalk.annexes.estimator.exporters import smaller_loss
from ropewalk.core.errors import ConfigurationError


class Noting(Exporter):
    """Writes down what it is told."""

    name = "noting"

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Any,
        is_the_final_export: bool,
    ) -> str:
        assert export_path == f"{estimator.model_dir}/export/noting"
        assert checkpoint_path.endswith(f"{eval_result['global_step']:010d}")
        self.told.append((eval_result["global_step"], is_the_final_export))
        return f"export {len(self.told)}"


class Steps(SessionRunHook):
    """Notes the global step."""

    seen = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen = run_values.values["global_step"]


@pytest.mark.parametrize(
    ("throttle", "steps"),
    [
        pytest.param(0, [5, 10, 15, 20], id="every-checkpoint"),
        pytest.param(600, [5, 20], id="throttled"),
    ],
)
def test_a_process_alone_evaluates_its_checkpoints_and_the_last_as_final(
    throttle: float, steps: list[int], tmp_path: Path
) -> None:
    model, noting = estimator(tmp_path, save_checkpoints_steps=5), Noting()
    found = train_and_evaluate(
        model,
        TrainSpec(input_fn(), max_steps=20),
        EvalSpec(input_fn(), steps=2, throttle_secs=throttle, exporters=noting),
    )
    assert noting.told == [(step, step == 20) for step in steps]
    assert found is not None
    assert found[0] is not None
    assert found[0]["global_step"] == 20
    assert found[1] == [f"export {len(steps)}"]
    assert train_and_evaluate(
        model, TrainSpec(input_fn(), max_steps=20), EvalSpec(input_fn(), exporters=noting)
    ) == (None, None)
    assert len(noting.told) == len(steps)


def test_a_training_that_ends_with_its_input_is_evaluated_once_at_the_end(tmp_path: Path) -> None:
    model, noting = estimator(tmp_path, save_checkpoints_steps=5), Noting()
    train_and_evaluate(
        model, TrainSpec(input_fn(epochs=1)), EvalSpec(input_fn(), steps=1, exporters=[noting])
    )
    assert noting.told == [(5, False), (8, True)]


def test_exporters_keep_the_latest_the_best_and_the_final_one(tmp_path: Path) -> None:
    model = estimator(tmp_path, save_checkpoints_steps=5)
    exporters = [
        rw.estimator.LatestExporter("latest", exports_to_keep=2),
        rw.estimator.BestExporter("best", compare_fn=lambda best, now: now["loss"] > best["loss"]),
        rw.estimator.FinalExporter("final"),
    ]
    train_and_evaluate(
        model,
        TrainSpec(input_fn(), max_steps=20),
        EvalSpec(input_fn(epochs=1), None, throttle_secs=0, exporters=exporters),
    )

    def exported(name: str) -> int:
        return sum(path.is_dir() for path in (tmp_path / "export" / name).iterdir())

    # The loss falls, so the first checkpoint is the one that this compare_fn takes for the best.
    assert (exported("latest"), exported("best"), exported("final")) == (2, 1, 1)


def test_the_best_export_is_remembered_over_a_restart(tmp_path: Path) -> None:
    model = estimator(tmp_path / "model").train(input_fn(), steps=1)
    path, where = model.latest_checkpoint(), str(tmp_path / "best")
    assert rw.estimator.BestExporter().export(model, where, path, {"loss": 2.0}, False)
    again = rw.estimator.BestExporter()
    assert again.export(model, where, path, {"loss": 2.5}, True) is None
    assert again.export(model, where, path, {"loss": float("nan")}, True) is None
    assert again.export(model, where, path, {"loss": 1.5}, False)
    with pytest.raises(ConfigurationError, match="has no loss"):
        smaller_loss({"loss": 1}, {})


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"], ids=repr)
def test_a_damaged_note_of_the_best_export_is_named_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    model = estimator(tmp_path / "model").train(input_fn(), steps=1)
    path, where = model.latest_checkpoint(), tmp_path / "best"
    assert rw.estimator.BestExporter().export(model, str(where), path, {"loss": 2.0}, False)
    [note] = [each for each in where.iterdir() if each.is_file()]
    note.write_text(text, encoding="latin-1")
    assert rw.estimator.BestExporter().export(model, str(where), path, {"loss": 2.5}, False)
    assert f"{note} is not used" in caplog.text


def test_an_early_stop_ends_the_training(tmp_path: Path) -> None:
    model = estimator(tmp_path, save_checkpoints_steps=5)
    hook = rw.estimator.experimental.stop_if_no_decrease_hook(
        model, "loss", max_steps_without_decrease=0, run_every_secs=None, run_every_steps=1
    )
    train_and_evaluate(
        model,
        TrainSpec(input_fn(), max_steps=20, hooks=[hook]),
        EvalSpec(input_fn(), steps=1, throttle_secs=0),
    )
    assert model.latest_checkpoint().endswith("ckpt-0000000006")  # the step after the evaluation


def test_an_early_stop_of_the_chief_ends_every_worker(tmp_path: Path) -> None:
    def program() -> int:
        model = estimator(tmp_path, experimental_max_worker_delay_secs=0)
        steps = Steps()
        hook = rw.estimator.experimental.make_early_stopping_hook(
            model, lambda: steps.seen >= 20, run_every_secs=None, run_every_steps=1
        )
        train_and_evaluate(
            model, TrainSpec(input_fn(), max_steps=1_000_000, hooks=[steps, hook]),
            EvalSpec(input_fn()),
        )  # fmt: skip
        return steps.seen

    with rw.testing.LocalCluster(workers=2, ps=1, model_dir=str(tmp_path)) as cluster:
        seen = cluster.run(program)
    # A worker that begins late may see a few steps only.
    assert 20 <= max(seen.values()) < 5000, seen


def test_an_evaluation_within_a_training(tmp_path: Path) -> None:
    model = estimator(tmp_path, save_checkpoints_steps=4)
    hook = rw.estimator.experimental.InMemoryEvaluatorHook(
        model, input_fn(epochs=1), every_n_iter=5, name="within"
    )
    model.train(input_fn(), hooks=[hook], steps=10)
    assert sorted(rw.estimator.read_eval_metrics(model.eval_dir("within"))) == [4, 8, 10]


def test_chief_and_workers_of_a_job_train_one_model(tmp_path: Path) -> None:
    model_dir = tmp_path / "model"

    def program() -> Any:
        model = estimator(model_dir, experimental_max_worker_delay_secs=0)
        assert model.config.num_ps_replicas == 2
        spec = TrainSpec(input_fn(), max_steps=150)
        assert train_and_evaluate(model, spec, EvalSpec(input_fn())) is None
        if not model.config.is_chief:
            return None
        # The job has not saved yet: what is evaluated is what it trains.
        return model.evaluate(input_fn(epochs=1))

    with rw.testing.LocalCluster(workers=2, ps=2, model_dir=str(model_dir)) as cluster:
        results = cluster.run(program)
        pushes = sum(server.store.counters().pushes for server in cluster.servers)
    [found] = [each for each in results.values() if each is not None]
    assert 150 <= found["global_step"] <= 152
    assert found["mse"] < 0.2
    assert pushes >= 150
    model = estimator(model_dir)
    assert model.evaluate(input_fn(epochs=1))["global_step"] >= 150
    assert np.abs(model.get_variable_value("w")).sum() > 1


def test_a_job_that_saves_elsewhere_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    def program() -> None:
        estimator(tmp_path / "mine").train(input_fn(), steps=1)

    elsewhere = tmp_path / "theirs"
    with (
        rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(elsewhere)) as cluster,
        pytest.raises(ConfigurationError, match=f"saves to {elsewhere}, the Estimator's"),
    ):
        cluster.run(program)
    with (
        rw.testing.LocalCluster(workers=0, ps=1) as cluster,
        pytest.raises(ConfigurationError, match="has no model directory and saves nothing"),
    ):
        cluster.run(program)
