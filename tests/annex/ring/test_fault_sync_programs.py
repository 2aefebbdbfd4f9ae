"""Synchronous programs that differ between workers: who is named, and with which exit code."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
rank = strategy.extended.input_pipeline_id
SHAPE, STEPS = (4,), 5
# CHANGE
with strategy.scope():
    w = rw.Variable(np.zeros(SHAPE, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
for step in range(STEPS):
    # STEP
    strategy.run(lambda: optimizer.apply_gradients([(np.ones(SHAPE, np.float32), w)]))
"""


@pytest.mark.parametrize(
    ("change", "step", "code", "words"),
    [
        pytest.param(
            "STEPS = 5 + 3 * rank", "", 5, "it makes more steps. A restart would end the same way",
            id="uneven steps",
        ),
        pytest.param(
            "SHAPE = (4 + rank,)", "", 5,
            "workers create different variables: worker:0 'w' as float32[4], worker:1 'w' as float32[5]",
            id="another shape",
        ),
        pytest.param(
            "", "strategy.extended.any_worker(True) if rank and step == 2 else None", 5,
            "every worker must make the same calls",
            id="another call",
        ),
        pytest.param("", "assert rank == 0 or step < 3, 'boom'", 1, "boom", id="a program that fails"),
    ],
)  # fmt: skip
def test_workers_that_do_different_things_are_told_what_and_not_to_restart(
    run_cli: Cli, tmp_path: Path, change: str, step: str, code: int, words: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("# CHANGE", change).replace("# STEP", step or "pass"))
    result = run_cli(
        "local", "--plain", "--workers", "2", "--ps", "0", "--no-chief", "--model-dir",
        str(tmp_path / "model"), str(program), timeout_s=60,
    )  # fmt: skip
    said = result.stdout + result.stderr
    assert result.returncode == code, said
    assert words in " ".join(said.split()), said
    assert "is lost" not in said, said
    assert "over a limit" not in said, said


def test_a_synchronous_job_shows_steps_losses_and_its_status(run_cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    step = "rw.training.report(total_steps=60, loss=1 / (step + 1)); __import__('time').sleep(0.05)"
    program.write_text(PROGRAM.replace("# CHANGE", "STEPS = 60").replace("# STEP", step))
    result = run_cli(
        "local", "--plain", "--workers", "2", "--ps", "0", "--no-chief", "--model-dir", "model",
        str(program), timeout_s=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert re.search(r"running: step \d+/60 .* loss 0\.\d+", result.stdout), result.stdout
    status = run_cli("status", "model")
    assert "global step 60/60" in status.stdout
    for worker in ("worker:0", "worker:1"):
        assert re.search(rf"{worker} +done .* 60 .* loss 0\.01667", status.stdout), status.stdout
