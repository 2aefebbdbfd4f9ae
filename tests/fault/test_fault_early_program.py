"""A task's program begins before the rest of its cluster is there."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import processes
from ropewalk.net.this_machine import free_ports

Start = Callable[..., "subprocess.Popen[str]"]

TRAIN = """
print("imported", flush=True)
import numpy as np
import ropewalk as rw
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(2, np.float32), name="w")
print("trained on", rw.training.task_type(), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a task of a cluster of one chief and one ps, whose program has the given text."""
    chief, ps = free_ports(2)
    spec = {"chief": [f"127.0.0.1:{chief}"], "ps": [f"127.0.0.1:{ps}"]}
    started: list[subprocess.Popen[str]] = []

    def start(role: str, text: str = TRAIN, **flags: str) -> "subprocess.Popen[str]":
        program = tmp_path / f"{role}.py"
        program.write_text(text)
        config = {"cluster": spec, "task": {"type": role, "index": 0}}
        given = [part for name, value in flags.items() for part in (f"--{name}", value)]
        process = processes.start(
            [*processes.ROPEWALK, "run", "--job-id", "mine", *given, str(program)],
            env={"PATH": "/usr/bin", "HOME": str(tmp_path), "TF_CONFIG": json.dumps(config)},
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_program_imports_while_its_task_waits_for_a_ps(start: Start) -> None:
    chief = start("chief")
    assert first_line(chief) == "imported"  # there is no ps yet
    ps = start("ps")
    output, errors = chief.communicate(timeout=60)
    assert (chief.returncode, output.split()[0]) == (0, "trained"), errors
    assert ps.wait(60) == 0


def test_a_program_that_needs_no_cluster_is_done_with_its_job(start: Start) -> None:
    chief, ps = start("chief", "print('imported')"), start("ps")
    assert chief.wait(60) == 0
    assert ps.wait(60) == 0


def test_a_program_that_fails_before_its_task_has_joined_fails_the_job(start: Start) -> None:
    chief, ps = start("chief", "import no_such_module"), start("ps")
    _, errors = chief.communicate(timeout=60)
    assert chief.returncode == 1
    assert errors.count("ModuleNotFoundError: No module named 'no_such_module'") >= 1
    assert ps.wait(60) == 138
    assert "no_such_module" in (ps.stderr.read() if ps.stderr else "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(TRAIN, 140, id="as soon as it needs its cluster"),
        pytest.param("import time; time.sleep(60)", 140, id="also if it never does"),
        pytest.param("raise SystemExit(3)", 3, id="with its own error if it has one"),
    ],
)
def test_a_program_ends_whose_task_cannot_join(start: Start, text: str, code: int) -> None:
    chief = start("chief", text, **{"join-timeout-s": "2", "drain-grace-s": "1"})
    _, errors = chief.communicate(timeout=50)  # the program that sleeps would take 60
    assert chief.returncode == code, errors
    assert "Traceback" not in errors
    assert ("waited 2 s (join_timeout_s)" in errors) is (code == 140), errors


def test_a_path_is_that_of_the_folder_where_the_task_was_started(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    chief = start("chief", f"import os; os.chdir('elsewhere')\n{TRAIN}", **{"model-dir": "model"})
    ps = start("ps", **{"model-dir": "model"})
    _, errors = chief.communicate(timeout=60)
    assert (chief.returncode, ps.wait(60)) == (0, 0), errors
    assert list((tmp_path / "model").glob("ckpt-*"))
    assert not list((tmp_path / "elsewhere").iterdir())
