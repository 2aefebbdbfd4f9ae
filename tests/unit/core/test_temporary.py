"""Temporary folders: those of living processes stay, those of killed ones go."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.core.temporary import TemporaryFolder


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = TemporaryFolder("windlass-x")
    (mine.path / "file").write_text("mine")
    left = tmp_path / "windlass-x-left"
    left.mkdir()
    (left / "file").write_text("left")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "windlass-x-link").symlink_to(elsewhere)
    other = TemporaryFolder("windlass-x")
    assert not left.exists()
    assert elsewhere.exists()
    assert (mine.path / "file").read_text() == "mine"
    mine.remove()
    other.remove()
    mine.remove()
    assert [path.name for path in tmp_path.glob("windlass-x-*")] == ["windlass-x-link"]


def test_the_lock_ends_with_the_process_and_is_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        "import os, subprocess, sys\n"
        "from windlass.core.temporary import TemporaryFolder\n"
        "TemporaryFolder('windlass-y')\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert len(list(tmp_path.glob("windlass-y-*"))) == 1
    TemporaryFolder("windlass-y").remove()
    assert list(tmp_path.glob("windlass-y-*")) == []
