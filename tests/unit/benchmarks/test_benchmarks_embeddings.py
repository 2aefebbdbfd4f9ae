"""Steps on tables beside TensorFlow's: ratios, and why there are none."""

from pathlib import Path

import pytest
from benchmarks import embedding_steps
from benchmarks.compare import Outcome
from rich.table import Table

pytestmark = pytest.mark.annex("embedding")

OURS = {"dense, shm": 0.005, "growing, tcp": 0.04}


def cells(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> list[list[object]]:
    """Columns of what is shown."""
    monkeypatch.setattr(embedding_steps, "run_script", lambda *_, **__: outcome)
    table = Table("", "")
    embedding_steps.beside_tensorflow(table, OURS, Path("python"))
    return [list(column.cells) for column in table.columns]


def test_a_ratio_is_their_time_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [{"case": "sparse", "median_ms": 40.0}, {"case": "sparse-pull", "median_ms": 9.0}]
    outcome = Outcome({"system": "tensorflow 2", "results": results})
    names, values = cells(monkeypatch, outcome)
    assert names == ["tensorflow 2, dense: both", "  to dense, shm", "  to growing, tcp"]
    assert values == ["40.0 ms", "8.0×", "1.0×"]


def test_without_tensorflow_the_reason_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    _, values = cells(monkeypatch, Outcome({}, "exit code 1: No module named 'tensorflow'"))
    assert values == ["no figures: exit code 1: No module named 'tensorflow'"]
