"""Hooks that say when to save, profile a step, and look at the end."""

import logging
import pstats
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.estimator import estimator, input_fn, line
from ropewalk.annexes.estimator import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    EstimatorSpec,
    FinalOpsHook,
    ProfilerHook,
)
from ropewalk.core.errors import ConfigurationError, UnknownVariableError


class Told(CheckpointSaverListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.began = 0

    def begin(self) -> None:
        self.began += 1

    def after_save(self, session: Any, global_step_value: int) -> None:
        self.steps.append(global_step_value)


def steps_saved(model_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("ckpt-")) for path in model_dir.glob("ckpt-*"))


@pytest.mark.parametrize("given_by", ["the caller", "model_fn"])
def test_a_saver_hook_says_when_to_save_instead_of_the_config(
    given_by: str, tmp_path: Path
) -> None:
    listener, mine = Told(), Told()
    hook = CheckpointSaverHook(str(tmp_path), save_steps=4, listeners=[mine])

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = line(features, labels, mode)
        chief_hooks = [hook] if given_by == "model_fn" else []
        return EstimatorSpec(mode, loss=spec.loss, train_op=True, training_chief_hooks=chief_hooks)

    model = estimator(tmp_path, model_fn)
    hooks = [hook] if given_by == "the caller" else []
    model.train(input_fn(), hooks, steps=10, saving_listeners=[listener])
    assert steps_saved(tmp_path) == [4, 8, 10]
    assert listener.steps == mine.steps == [4, 8, 10]
    assert mine.began == 1


def test_a_saver_hook_of_another_directory_saves_there_as_well(tmp_path: Path) -> None:
    hook = CheckpointSaverHook(str(tmp_path / "other"), save_steps=4)
    model = estimator(tmp_path / "model", save_checkpoints_steps=5)
    model.train(input_fn(), [hook], steps=10)
    assert steps_saved(tmp_path / "model") == [5, 10]
    assert steps_saved(tmp_path / "other") == [4, 8, 10]
    w = rw.train.load_checkpoint(str(tmp_path / "other")).read("w")
    np.testing.assert_array_equal(w, model.get_variable_value("w"))


def test_in_a_job_the_chief_alone_saves_to_another_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> None:
        elsewhere = CheckpointSaverHook(str(tmp_path / "other"), save_steps=5)
        of_job = CheckpointSaverHook(str(tmp_path / "model"), save_steps=5)
        estimator(tmp_path / "model").train(input_fn(), [elsewhere, of_job], max_steps=20)

    caplog.set_level(logging.INFO)
    model_dir = str(tmp_path / "model")
    with rw.testing.LocalCluster(workers=1, ps=1, model_dir=model_dir) as cluster:
        cluster.run(program)
    assert steps_saved(tmp_path / "other")[-1] >= 18  # as far as the chief knew
    assert len(steps_saved(tmp_path / "model")) == 1
    assert "as it was started (--save-every-s" in caplog.text


@pytest.mark.parametrize("given", [{}, {"save_secs": 1, "save_steps": 1}], ids=["none", "both"])
def test_a_saver_and_a_profiler_need_one_interval(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        CheckpointSaverHook("model", **given)
    with pytest.raises(ConfigurationError, match="give one of them"):
        ProfilerHook(**given)


def test_a_saver_hook_of_an_evaluation_is_a_mistake(tmp_path: Path) -> None:
    model = estimator(tmp_path).train(input_fn(), steps=1)
    hook = CheckpointSaverHook(str(tmp_path), save_steps=1)
    with pytest.raises(ConfigurationError, match="is a hook of a training"):
        model.evaluate(input_fn(epochs=1), hooks=[hook])


def test_a_profile_names_the_functions_of_the_program(tmp_path: Path) -> None:
    hook = ProfilerHook(save_steps=3, output_dir=str(tmp_path / "profiles"))
    estimator(tmp_path / "model").train(input_fn(), [hook], steps=8)
    found = sorted(path.name for path in (tmp_path / "profiles").iterdir())
    assert found == ["profile-4.prof", "profile-7.prof"]  # not of the first, which makes the model
    stats: Any = pstats.Stats(str(tmp_path / "profiles" / found[0]))
    functions = {name for _, _, name in stats.stats}
    assert "line" in functions


def test_a_profile_that_cannot_be_written_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    hook = ProfilerHook(save_steps=1, output_dir=str(tmp_path / "file"))
    model = estimator(tmp_path / "model").train(input_fn(), [hook], steps=3)
    assert model.latest_checkpoint().endswith("3")
    assert "the profile of step 2 was not written" in caplog.text
    with pytest.raises(ConfigurationError, match="a folder of this machine"):
        ProfilerHook(save_steps=1, output_dir="gs://bucket")


def test_final_values_are_variables_values_of_the_last_step_or_what_a_function_returns(
    tmp_path: Path,
) -> None:
    hook = FinalOpsHook({"w": "w", "last": ["loss"], "norm": lambda s: np.abs(s.read("w")).sum()})
    model = estimator(tmp_path).train(input_fn(), [hook], steps=5)
    w = model.get_variable_value("w")
    np.testing.assert_array_equal(hook.final_ops_values["w"], w)
    assert hook.final_ops_values["norm"] == np.abs(w).sum()
    assert 0 < hook.final_ops_values["last"][0] < 10
    with pytest.raises(UnknownVariableError, match="a hook asks for 'auc'"):
        model.train(input_fn(), [FinalOpsHook("auc")], steps=1)
