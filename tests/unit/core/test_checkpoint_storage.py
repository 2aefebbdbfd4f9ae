"""Which failures to write are permanent, and how they read."""

import errno
import os
from pathlib import Path

import pytest

from ropewalk.core.checkpoint import folder as folders
from ropewalk.core.checkpoint.storage import check_writable, storage_error
from ropewalk.core.errors import ConfigurationError, PeerLostError, StorageError


def test_a_directory_that_can_be_written_is_made_and_left_empty(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "runs" / "model"), "the chief")
    assert list((tmp_path / "runs" / "model").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param("file", "it is a file, not a folder", id="a file"),
        pytest.param("file/model", "or is below one", id="below a file"),
        pytest.param("/proc/nobody/model", "the path cannot be made", id="nowhere"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named_with_the_cause(
    tmp_path: Path, path: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=why) as caught:
        check_writable(str(tmp_path / path), "/job:chief/task:0")
    assert caught.value.message.startswith(f"/job:chief/task:0 cannot write to {tmp_path / path}")


def test_an_unknown_file_system_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="nofs://bucket/model"):
        check_writable("nofs://bucket/model", "the chief")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StorageError),
        (errno.EROFS, StorageError),
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.EIO, PeerLostError),
        (errno.ETIMEDOUT, PeerLostError),
        (None, PeerLostError),
    ],
    ids=str,
)
def test_a_cause_that_stays_asks_for_no_restart(number: int | None, kind: type[Exception]) -> None:
    error = OSError(number, os.strerror(number)) if number else OSError("the bucket is busy")
    made = storage_error(error, "/model", "/job:ps/task:0")
    assert type(made) is kind
    assert made.exit_code == (7 if kind is StorageError else 138)


def test_a_folder_that_is_kept_does_not_change_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "_starts", {})
    folders.keep_folder("runs/model/")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("runs/model", "runs/model/ckpt-1", "runs/models", str(tmp_path / "whole")):
        folders.open_folder(name).make()
    made = ("runs/model/ckpt-1", "elsewhere/runs/models", "whole")
    assert all((tmp_path / name).is_dir() for name in made)
    assert not (tmp_path / "elsewhere/runs/model").exists()
