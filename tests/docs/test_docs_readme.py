"""The README's programs, saved as train.py, in every way in which the README says to start it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.clusters import HandStarted, as_command, tf_configs
from helpers.pages import ROOT, examples
from helpers.waiting import scaled

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
ANSWER = "w [ 1.  -2.   0.5]"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the program, with the strategy given, and returns its folder."""

    def write(strategy: str = "ParameterServerStrategy") -> Path:
        text = examples(ROOT / "README.md")[1]
        assert "ParameterServerStrategy()" in text
        (tmp_path / "train.py").write_text(text.replace("ParameterServerStrategy", strategy))
        return tmp_path

    return write


def run(command: str, folder: Path) -> str:
    """Output of a command, which must succeed."""
    code, output, errors = processes.run(
        as_command(command.split()), timeout_s=scaled(60), cwd=folder, env=dict(os.environ)
    )
    assert code == 0, output + errors
    return output


@pytest.mark.parametrize("starter", ["python", "ropewalk run", "ropewalk local --workers 2 --ps 2"])
def test_the_first_lines_of_all(starter: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(examples(ROOT / "README.md")[0])
    assert "[1. 1. 1.]" in run(f"{starter} train.py", tmp_path)


def test_the_jax_program_on_a_local_cluster(tmp_path: Path) -> None:
    """Where one worker may have compiled its step when the others have made all of them."""
    pytest.importorskip("jax")
    (tmp_path / "train.py").write_text(examples(ROOT / "docs" / "jax.md")[0])
    output = run("ropewalk local --workers 2 --ps 2 train.py", tmp_path)
    assert len(re.findall(r"loss 0\.0\d\d\d$", output, flags=re.MULTILINE)) == 3, output


# A fork stands in for `python FILE` and for the command, not for `python -m`.
AS_A_MODULE = pytest.param("python -m train", marks=pytest.mark.real_start)


@pytest.mark.parametrize(
    "command",
    ["python train.py", AS_A_MODULE, "ropewalk run train.py", "ropewalk run -m train"],
)
def test_alone(command: str, write: Write) -> None:
    assert ANSWER in run(command, write("ParameterServerStrategy"))


def test_on_a_local_cluster(write: Write) -> None:
    output = run("ropewalk local --workers 2 --ps 2 -m train", write("ParameterServerStrategy"))
    assert output.count(ANSWER) == 3, output


def test_in_five_processes_with_tf_config(write: Write) -> None:
    folder = write("ParameterServerStrategy")
    ended = HandStarted(["python", "train.py"], tf_configs(chief=1, worker=2, ps=2), folder).wait()
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(ended, 0), ended
    for task, end in ended.items():
        assert (ANSWER in end.text) == (not task.startswith("ps")), end.text


def test_the_same_program_on_the_devices_of_one_machine(write: Write) -> None:
    assert ANSWER in run("python train.py", write("MirroredStrategy"))


def test_the_same_program_in_sync_on_a_local_cluster(write: Write) -> None:
    folder = write("MultiWorkerMirroredStrategy")
    output = run("ropewalk local --ps 0 --no-chief --workers 3 train.py", folder)
    assert output.count(ANSWER) == 3, output


def test_the_same_program_in_sync_in_three_processes(write: Write) -> None:
    folder = write("MultiWorkerMirroredStrategy")
    ended = HandStarted(["ropewalk", "run", "train.py"], tf_configs(worker=3), folder).wait()
    assert [end.code for end in ended.values()] == [0, 0, 0], ended
    assert all(ANSWER in end.text for end in ended.values()), ended
