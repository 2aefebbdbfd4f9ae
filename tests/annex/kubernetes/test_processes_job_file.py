"""A job file, run as processes of this machine."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.jobfile import DIGITS

RunCli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]


def test_the_digits_train_by_their_job_file(run_cli: RunCli, tmp_path: Path) -> None:
    model = tmp_path / "model"
    done = run_cli(
        "local", "--plain", "--job", str(DIGITS), "--ps", "1", "--no-evaluator",
        "--model-dir", str(model),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # Of the file: two workers, and checkpoints by steps before the last one.
    for task in ("ps:0", "chief:0", "worker:0", "worker:1"):
        assert task in done.stdout
    accuracy = float(done.stdout.partition("last values: ")[2].split()[0])
    assert accuracy >= 0.95
    saved = [path.name for path in model.glob("ckpt-*")]
    assert len(saved) >= 2


ROLES = """\
import os, sys
import ropewalk as rw
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    total = rw.Variable(0.0, name="total")
print("said", os.environ["WORD"], *sys.argv[1:], flush=True)
"""
JOB = """\
name: roles
program: code/train.py
arguments: [--rate, 1e-3]
environment: {WORD: everybody}
roles:
  worker: {count: 1, arguments: [--mine], environment: {WORD: mine}}
settings: {wait_for_workers: 1}
"""


def test_a_role_has_arguments_and_variables_of_its_own(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(ROLES)
    job = tmp_path / "ropewalk.yaml"
    job.write_text(JOB)
    done = run_cli("local", "--plain", "--job", str(job), "--model-dir", str(tmp_path / "model"))
    assert done.returncode == 0, done.stdout + done.stderr
    said = {line.strip() for line in done.stdout.splitlines() if "| said" in line}
    assert said == {
        "chief:0 | said everybody --rate 1e-3",
        "worker:0 | said mine --rate 1e-3 --mine",
    }


def test_a_mistake_in_the_file_is_shown_with_its_line(run_cli: RunCli, tmp_path: Path) -> None:
    job = tmp_path / "ropewalk.yaml"
    job.write_text(JOB.replace("count: 1", "cuont: 1"))
    done = run_cli("local", "--job", str(job))
    assert done.returncode == 2
    assert f"{job}:6:12: roles.worker.cuont: there is no such field; did you mean count?" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr
