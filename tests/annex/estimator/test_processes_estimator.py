"""A moved Estimator program: alone, and on every task of TF_CONFIG by plain ``python``."""

import re
import sys
from pathlib import Path

import pytest

import ropewalk as rw
from helpers import processes
from helpers.clusters import HandStarted, tf_configs
from helpers.pages import ROOT, examples
from helpers.waiting import scaled

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]

PROGRAM = str(ROOT / "examples" / "estimator_digits.py")


def test_the_example_learns_the_digits_alone_and_resumes(tmp_path: Path) -> None:
    def run(steps: int) -> tuple[str, str]:
        command = [sys.executable, PROGRAM, "--model_dir", "model", "--max_steps", str(steps)]
        code, output, errors = processes.run(command, timeout_s=scaled(60), cwd=tmp_path)
        assert code == 0, errors
        return output, errors

    run(400)
    output, errors = run(1000)
    assert "ckpt-0000000400" in errors  # from which it goes on
    [accuracy] = re.findall(r"^test accuracy ([\d.]+)$", output, flags=re.MULTILINE)
    assert float(accuracy) >= 0.9
    saved = sorted(path.name for path in (tmp_path / "model").glob("ckpt-*"))
    assert saved == ["ckpt-0000000600", "ckpt-0000000800", "ckpt-0000001000"]


def test_the_pages_program_runs_as_the_page_starts_it(tmp_path: Path) -> None:
    page = ROOT / "docs" / "estimator.md"
    [program] = [each for each in examples(page) if "train_and_evaluate(" in each]
    (tmp_path / "train.py").write_text(program)
    [line] = re.findall(r"^ropewalk (local .* train\.py)$", page.read_text(), flags=re.MULTILINE)
    arguments = line.replace("--workers 2 --ps 2", "--workers 1 --ps 1").split()
    command = [*processes.ROPEWALK, *arguments]
    code, output, errors = processes.run(command, timeout_s=scaled(90), cwd=tmp_path)
    assert code == 0, output + errors
    results = rw.training.read_evaluations(str(tmp_path / "model"))
    assert results[-1].global_step >= 300
    assert results[-1].metrics["loss"] < 0.05
    [export] = (tmp_path / "model" / "export" / "final").iterdir()
    assert (export / "variables.safetensors").exists()


def test_every_role_does_its_part_and_ends(tmp_path: Path) -> None:
    configs = tf_configs(chief=1, worker=1, ps=1, evaluator=1)
    # No task is told of the model directory, nor how often to save, but by the program.
    command = ["python", PROGRAM, "--model_dir", "model"]
    ended = HandStarted(command, configs, tmp_path, ROPEWALK_HEARTBEAT_S="0.1").wait(90)
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(ended, 0), ended
    assert "Loss for final step" in ended["chief:0"].text
    assert "Loss for final step" in ended["worker:0"].text
    assert "Saving dict for global step" in ended["evaluator:0"].text
    results = rw.training.read_evaluations(str(tmp_path / "model"))
    assert results[-1].final
    assert results[-1].global_step >= 1000
    assert results[-1].metrics["accuracy"] >= 0.9
    assert len(list((tmp_path / "model").glob("ckpt-*"))) <= 3  # keep_checkpoint_max
    [export] = (tmp_path / "model" / "export" / "final").iterdir()
    assert (export / "variables.safetensors").exists()
