"""Temporary folders: those of living processes stay, those of killed ones go; nobody waits long."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from helpers.calls import Calls
from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import StorageError
from ropewalk.core.files import temporary
from ropewalk.core.files.temporary import TemporaryFolder, remove_later
from ropewalk.core.files.trusted_folder import UnsafeFolderError


def has_looked() -> None:
    """Wait until no thread looks for folders that were left, or removes one."""
    wait_until(
        lambda: not {"remove-left", "remover"} & {thread.name for thread in threading.enumerate()},
        scaled(30),
        "the threads to end",
    )


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mine = TemporaryFolder("ropewalk-x")
    has_looked()
    (mine.path / "file").write_text("mine")
    left = tmp_path / mine.path.name.replace(mine.path.name[-8:], "left____")
    left.mkdir()
    (left / "file").write_text("left")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / mine.path.name.replace(mine.path.name[-8:], "link____")
    link.symlink_to(elsewhere)
    of_other_machine = tmp_path / "ropewalk-x-0000-left____"
    of_other_machine.mkdir()
    other = TemporaryFolder("ropewalk-x")
    has_looked()
    wait_until(lambda: not left.exists(), 10, "what was left to go")
    assert elsewhere.exists()
    assert (mine.path / "file").read_text() == "mine"
    mine.remove()
    other.remove()
    mine.remove()
    assert set(tmp_path.glob("ropewalk-x-*")) == {link, of_other_machine}


def test_the_lock_ends_with_the_process_and_is_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = (
        "import os, subprocess, sys\n"
        "from ropewalk.core.files.temporary import TemporaryFolder\n"
        "TemporaryFolder('ropewalk-y')\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert len(list(tmp_path.glob("ropewalk-y-*"))) == 1
    TemporaryFolder("ropewalk-y").remove()
    wait_until(lambda: not list(tmp_path.glob("ropewalk-y-*")), 10, "all to go")


def test_what_was_left_however_deep_keeps_nobody_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mine = TemporaryFolder("ropewalk-z")
    left = tmp_path / mine.path.name.replace(mine.path.name[-8:], "left____")
    mine.remove()
    left.mkdir()
    current = os.open(left, os.O_RDONLY)
    for _ in range(1500):  # more than Python calls itself
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)
    TemporaryFolder("ropewalk-z").remove()
    wait_until(lambda: not list(tmp_path.glob("ropewalk-z-*")), 30, "all to go")


def test_a_folder_that_cannot_be_removed_is_waited_for_no_longer_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    may_end = threading.Event()

    def hang(_: Path) -> None:
        may_end.wait(30)

    monkeypatch.setattr(temporary, "remove_later", partial(remove_later, remove=hang))
    began = time.monotonic()
    TemporaryFolder("ropewalk-w").remove(timeout_s=0.1)
    assert time.monotonic() - began < scaled(5)
    may_end.set()


def test_a_folder_that_a_cleaner_has_removed_is_made_anew_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    monkeypatch.setenv("TMPDIR", str(above))
    folder = TemporaryFolder("ropewalk-v")
    path = folder.path
    (path / "file").write_text("kept")
    assert folder.present() == path
    assert (path / "file").exists()
    shutil.rmtree(above)
    assert folder.present() == path
    assert path.stat().st_mode & 0o777 == 0o700
    TemporaryFolder("ropewalk-v").remove()  # it is locked again: others leave it
    assert path.is_dir()
    folder.remove()
    assert not path.exists()
    assert folder.present() == path
    assert not path.exists()  # the process is about to end


def test_a_folder_that_another_process_takes_for_left_before_it_is_locked_is_made_once_more(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = TemporaryFolder("ropewalk-t")
    has_looked()
    folder.path.rmdir()
    taken = list[int]()

    def lose(_: None, path: Path, mode: int) -> None:
        if not taken:  # what the other process does first
            taken.append(os.open(path, os.O_RDONLY))
            fcntl.flock(taken[0], fcntl.LOCK_EX)
            remove_later(path, then=lambda: os.close(taken[0]))

    calls.after(Path, "mkdir", lose)
    assert folder.present().is_dir()
    assert taken
    monkeypatch.undo()
    folder.remove()


def test_what_somebody_else_put_in_its_place_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = TemporaryFolder("ropewalk-u")
    has_looked()
    folder.path.rmdir()
    folder.path.mkdir()
    with pytest.raises(UnsafeFolderError, match="made again by somebody else; start this process"):
        folder.present()


def test_folders_are_where_the_user_says_else_in_the_cache_folder_else_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def above(**variables: str) -> Path:
        for name in ("TMPDIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        folder = TemporaryFolder("ropewalk-t", max_path_bytes=len(str(tmp_path)) + 60)
        folder.remove()
        return folder.path.parent

    last = tmp_path / "tmp"
    last.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(last))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    chosen = str(tmp_path / "chosen")
    assert above(TMPDIR=chosen, XDG_CACHE_HOME="/nonexistent") == Path(chosen)
    assert above(XDG_CACHE_HOME=str(tmp_path / "cache")) == tmp_path / "cache" / "ropewalk"
    assert above() == home / ".cache" / "ropewalk"
    assert above(TMPDIR=str(tmp_path / ("long" * 10))) == last  # a socket would not fit
    home.chmod(0o777)  # others could put another folder in its place
    assert above() == last


def test_without_a_safe_folder_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(temporary, "_folders_above", lambda: iter([tmp_path]))
    tmp_path.chmod(0o777)
    with pytest.raises(StorageError, match=rf"others may write to {tmp_path} .*Set TMPDIR to a f"):
        TemporaryFolder("ropewalk-s")
