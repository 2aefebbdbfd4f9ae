"""An annex can be removed: the rest shows its help, trains and saves, and says what is missing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.processes import ROOT
from ropewalk.core import annexes

# Loads the libraries once; each house that standard input names then has a process of its own.
PROGRAM = """
import gc, os, sys
import click.testing, grpc, llvmlite.binding, numpy as np, pydantic, rich.console, safetensors.numpy

gc.collect()
gc.freeze()


def train():
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.ones(4, np.float32), name="w")
        optimizer = rw.optimizers.SGD(0.5)
    for _ in range(2):
        strategy.run(lambda: optimizer.apply_gradients([(np.ones(4, np.float32), w)]))
    return w.numpy().tolist()


for line in sys.stdin:
    annex, house = line.split()
    if os.fork() == 0:
        break
    os.wait()
else:
    sys.exit()
os.dup2(os.open(f"{house}/said", os.O_WRONLY | os.O_CREAT), 2)
os.chdir(house)
sys.path.insert(0, house)
import ropewalk as rw
from ropewalk.core import annexes
from ropewalk.launch.cli import ropewalk

assert rw.__file__.startswith(house), rw.__file__
assert annex not in annexes.installed()
shown = click.testing.CliRunner().invoke(ropewalk, ["--help"], catch_exceptions=False)
assert shown.exit_code == 0 and "local" in shown.output, shown.output
with rw.testing.LocalCluster(workers=0, ps=1, model_dir="model") as cluster:
    [weights] = cluster.run(train).values()
assert weights == [0.0] * 4 and rw.train.latest_checkpoint("model") is not None
print(annex, flush=True)
os._exit(0)
"""
Build = Callable[[str], Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build(annex)``: a folder with the package as links, but for an annex."""

    def build(annex: str) -> Path:
        package = tmp_path / annex / "ropewalk"
        (package / "annexes").mkdir(parents=True)
        for folder, left_out in (("src/ropewalk", "annexes"), ("annexes", annex)):
            into = package / "annexes" if folder == "annexes" else package
            for entry in (ROOT / folder).iterdir():
                if entry.name not in (left_out, "__pycache__"):
                    (into / entry.name).symlink_to(entry.resolve())
        return package.parent

    return build


def _python(
    *command: str, where: Path, said: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        input=said,
    )


def test_a_job_trains_without_any_one_annex(build: Build, tmp_path: Path) -> None:
    houses = {annex: build(annex) for annex in annexes.installed()}
    names = "".join(f"{annex} {house}\n" for annex, house in houses.items())
    result = _python("-c", PROGRAM, where=tmp_path, said=names)
    said = {annex: (house / "said").read_text() for annex, house in houses.items()}
    assert result.stdout.split() == list(houses), {**said, "": result.stderr}


def test_a_command_without_its_annex_says_which_it_needs(build: Build) -> None:
    result = _python("-m", "ropewalk", "k8s", "render", where=build("kubernetes"))
    assert result.returncode == 2
    assert "`ropewalk k8s` needs the annex kubernetes" in result.stderr


def test_an_option_without_its_annex_says_which_it_needs(build: Build) -> None:
    words = ["-m", "ropewalk", "export", "model", "--table", "users"]
    result = _python(*words, where=build("embedding"))
    assert "ropewalk export --table needs the annex embedding" in result.stderr


def test_a_name_without_its_annex_says_which_it_needs(build: Build) -> None:
    code = "import ropewalk as rw\nrw.training.torch"
    result = _python("-c", code, where=build("torch_bridge"))
    assert "needs the annex torch_bridge" in result.stderr.splitlines()[-1]
    assert "MissingExtraError" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [(), ("-m", "ropewalk", "run")], ids=["python", "run"])
def test_training_in_sync_without_its_annex_says_which_it_needs(
    build: Build, tmp_path: Path, command: tuple[str, ...]
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import ropewalk as rw\nrw.distribute.MultiWorkerMirroredStrategy()\n")
    result = _python(*command, str(program), where=build("ring"))
    assert result.returncode != 0
    assert "needs the annex ring, which was taken out" in result.stderr
