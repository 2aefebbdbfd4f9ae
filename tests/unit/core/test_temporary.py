"""Temporary folders: those of living processes stay, those of killed ones go; nobody waits long."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers.waiting import scaled, wait_until
from windlass.core import temporary
from windlass.core.remover import Remover
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
    wait_until(lambda: not left.exists(), 10, "what was left to go")
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
    wait_until(lambda: not list(tmp_path.glob("windlass-y-*")), 10, "all to go")


def test_what_was_left_however_deep_keeps_nobody_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "windlass-z-left"
    left.mkdir()
    current = os.open(left, os.O_RDONLY)
    for _ in range(1500):  # more than Python calls itself
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)
    TemporaryFolder("windlass-z").remove()
    wait_until(lambda: not list(tmp_path.glob("windlass-z-*")), 30, "all to go")


def test_a_folder_that_cannot_be_removed_is_waited_for_no_longer_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    may_end = threading.Event()

    def hang(_: float, __: Path) -> None:
        may_end.wait(30)

    remover = Remover(hang)
    monkeypatch.setattr(temporary, "_remover", remover)
    began = time.monotonic()
    TemporaryFolder("windlass-w").remove(timeout_s=0.1)
    assert time.monotonic() - began < scaled(5)
    may_end.set()
