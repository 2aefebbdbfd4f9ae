"""The loop of an Estimator's evaluator, beside a job that removes its older checkpoints."""

import logging
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from helpers.estimator import estimator, input_fn
from ropewalk.annexes.estimator import training_and_evaluation
from ropewalk.annexes.estimator.training_and_evaluation import _Evaluator


class TrainsOn(rw.estimator.LatestExporter):
    """Before its first export the job goes on, and removes what was evaluated."""

    def __init__(self, job: Any) -> None:
        super().__init__("latest")
        self.exported: list[str] = []
        self._job = job

    def export(self, *arguments: Any) -> str | None:
        if self._job.latest_checkpoint().endswith("10"):
            self._job.train(input_fn(), max_steps=20)
        path = super().export(*arguments)
        self.exported.append(arguments[2][-2:])
        return path


def test_a_checkpoint_that_is_gone_before_its_export_is_passed_over_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(training_and_evaluation, "runtime_of_task", lambda *_: None)
    job = estimator(tmp_path, keep_checkpoint_max=1)
    job.train(input_fn(), max_steps=10)
    exporter = TrainsOn(job)
    spec = rw.estimator.EvalSpec(
        input_fn(epochs=1), exporters=exporter, start_delay_secs=0, throttle_secs=0
    )
    with caplog.at_level(logging.WARNING):
        _Evaluator(
            estimator(tmp_path, keep_checkpoint_max=1),
            rw.estimator.TrainSpec(input_fn(), max_steps=20),
            spec,
        ).run()
    assert exporter.exported == ["20"]
    assert "ckpt-0000000010 was removed before it was exported" in caplog.text
    assert "keep_checkpoint_max=1" in caplog.text
