"""The programs of docs/accelerate.md: alone they compute what they do without Ropewalk."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

import ropewalk as rw
from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled
from ropewalk.core.task import TaskId

pytestmark = pytest.mark.bridges

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

PAGE = (ROOT / "docs" / "accelerate.md").read_text()
PROGRAMS = re.findall(r"^``` {\.python \.accelerate}\n(.*?)^```", PAGE, flags=re.M | re.S)
WITHOUT = (  # what a program of Hugging Face alone has in the place of a line of ours
    ("_, self.optimizer = rw.training.torch.prepare(strategy, self.model, optimizer)", "pass"),
    ('"epoch" if strategy.should_save else "no"', '"epoch"'),
    ("if strategy.should_save:", "if True:"),
    ("data[worker::workers]", "data"),
)
NUMBERS = range(3)


def test_the_page_has_these_programs() -> None:
    assert len(PROGRAMS) == len(NUMBERS)


def loss_of(command: list[str], code: str, folder: Path) -> float:
    (folder / "train.py").write_text(code)
    status, output, errors = processes.run(
        [*command, "train.py"],
        timeout_s=scaled(150),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert status == 0, output + errors
    return float(re.findall(r"loss ([\d.]+)$", output, flags=re.MULTILINE)[-1])


@pytest.mark.parametrize("number", NUMBERS)
def test_alone_a_program_computes_what_it_does_without(number: int, tmp_path: Path) -> None:
    program = plain = PROGRAMS[number]
    for ours, theirs in WITHOUT:
        plain = plain.replace(ours, theirs)
    lines = plain.splitlines()
    plain = "\n".join(each for each in lines if not re.search(r"\b(rw|strategy)\b", each))
    found = loss_of([sys.executable], program, tmp_path)
    assert found == pytest.approx(loss_of([sys.executable], plain, tmp_path), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("number", NUMBERS)
def test_several_workers_learn_it_together(number: int, tmp_path: Path) -> None:
    command = [*processes.ROPEWALK, "local", "--plain", "--workers", "2", "--ps", "1"]
    assert loss_of(command, PROGRAMS[number], tmp_path) < 0.2
    assert (tmp_path / "model" / "model.safetensors").is_file() == (number == 1)


def test_a_worker_that_is_killed_is_missed_by_no_other(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[0])
    result = rw.testing.run_script(
        str(tmp_path / "train.py"),
        workers=2,
        ps=1,
        model_dir=str(tmp_path / "model"),
        faults=rw.testing.FaultPlan().kill("worker", 1, at_step=20),
        timeout_s=scaled(150),
    )
    assert result.exit_code == 0, result.text
    assert result.exits[TaskId("worker", 1)] == -signal.SIGKILL
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)$", result.text, flags=re.M)]
    assert len(losses) == 2, result.text
    assert max(losses) < 0.2
