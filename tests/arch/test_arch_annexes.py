"""An annex can be removed: using what it brought says which one it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import ROOT


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


def test_a_command_without_its_annex_says_which_it_needs(house: Path) -> None:
    result = _without(house, "kubernetes", "-m", "ropewalk", "k8s", "render")
    assert result.returncode == 2
    assert "`ropewalk k8s` needs the annex kubernetes" in result.stderr


def test_a_name_without_its_annex_says_which_it_needs(house: Path) -> None:
    code = "import ropewalk as rw\nrw.training.torch"
    result = _without(house, "torch_bridge", "-c", code)
    assert "needs the annex torch_bridge" in result.stderr.splitlines()[-1]
    assert "MissingExtraError" in result.stderr.splitlines()[-1]
