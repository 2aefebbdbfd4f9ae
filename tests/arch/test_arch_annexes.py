"""An annex can be removed: the rest shows its help, trains and saves, and says what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import ROOT
from ropewalk.core import annexes

PROGRAM = """
import numpy as np
import ropewalk as rw
from click.testing import CliRunner
from ropewalk.core import annexes
from ropewalk.launch.cli import ropewalk

assert {annex!r} not in annexes.installed()
shown = CliRunner().invoke(ropewalk, ["--help"], catch_exceptions=False)
assert shown.exit_code == 0 and "local" in shown.output, shown.output


def train():
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.ones(4, np.float32), name="w")
        optimizer = rw.optimizers.SGD(0.5)
    for _ in range(2):
        strategy.run(lambda: optimizer.apply_gradients([(np.ones(4, np.float32), w)]))
    return w.numpy().tolist()


with rw.testing.LocalCluster(workers=0, ps=1, model_dir="model") as cluster:
    print(*cluster.run(train).values())
print(rw.train.latest_checkpoint("model") is not None)
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The package as links, with a folder of annexes of its own."""
    package = tmp_path / "ropewalk"
    package.mkdir()
    for entry in (ROOT / "src" / "ropewalk").iterdir():
        if entry.name not in ("annexes", "__pycache__"):
            (package / entry.name).symlink_to(entry.resolve())
    (package / "annexes").mkdir()
    for entry in (ROOT / "annexes").iterdir():
        if entry.name != "__pycache__":
            (package / "annexes" / entry.name).symlink_to(entry)
    return tmp_path


def _without(house: Path, annex: str, *command: str) -> subprocess.CompletedProcess[str]:
    (house / "ropewalk" / "annexes" / annex).unlink()
    return subprocess.run(
        [sys.executable, *command],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("annex", annexes.installed())
def test_a_job_trains_without_an_annex(house: Path, annex: str) -> None:
    result = _without(house, annex, "-c", PROGRAM.format(annex=annex))
    assert (result.returncode, result.stdout) == (0, "[0.0, 0.0, 0.0, 0.0]\nTrue\n"), result.stderr


def test_a_command_without_its_annex_says_which_it_needs(house: Path) -> None:
    result = _without(house, "kubernetes", "-m", "ropewalk", "k8s", "render")
    assert result.returncode == 2
    assert "`ropewalk k8s` needs the annex kubernetes" in result.stderr


def test_an_option_without_its_annex_says_which_it_needs(house: Path) -> None:
    result = _without(house, "embedding", "-m", "ropewalk", "export", "model", "--table", "users")
    assert "ropewalk export --table needs the annex embedding" in result.stderr


def test_a_name_without_its_annex_says_which_it_needs(house: Path) -> None:
    code = "import ropewalk as rw\nrw.training.torch"
    result = _without(house, "torch_bridge", "-c", code)
    assert "needs the annex torch_bridge" in result.stderr.splitlines()[-1]
    assert "MissingExtraError" in result.stderr.splitlines()[-1]
