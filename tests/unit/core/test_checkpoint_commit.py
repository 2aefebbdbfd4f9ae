"""Writing a checkpoint: values, then the manifest; nothing stays of an attempt that failed."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.checkpoint import Manifest, latest_checkpoint
from ropewalk.core.checkpoint.directory import MANIFEST, commit_over, commit_step
from ropewalk.core.checkpoint.folder import Folder, LocalFolder
from ropewalk.core.errors import PeerLostError, RopewalkError, StorageError


def manifest(step: int) -> Manifest:
    return Manifest(
        global_step=step,
        final=False,
        saved_at="2026-01-01T00:00:00+00:00",
        ropewalk="1",
        variables={},
        tensors=(),
        files={},
    )


def local(path: Path) -> LocalFolder:
    return LocalFolder(str(path), str(path))


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def write_file(folder: Folder, name: str, step: int) -> Manifest:
    folder.make()
    folder.put(name, b"values")
    return manifest(step)


def is_ours(name: str) -> bool:
    return name in ("first", "second", "values")


class NoManifest(LocalFolder):
    """Raises when the manifest is put, before it is there or after."""

    is_late = False

    def put(self, name: str, data: bytes) -> None:
        if name != MANIFEST or self.is_late:
            super().put(name, data)
        if name == MANIFEST:
            raise OSError(errno.EIO, "input/output error")


def test_a_step_is_committed_when_its_manifest_is_there(tmp_path: Path) -> None:
    above = local(tmp_path)

    def write(name: str) -> Manifest:
        made = write_file(above.subfolder(name), "values", 3)
        assert latest_checkpoint(str(tmp_path)) is None
        return made

    info = commit_step(str(tmp_path), 3, write, "the chief")
    assert info == latest_checkpoint(str(tmp_path))
    assert names(tmp_path / "ckpt-0000000003") == [MANIFEST, "values"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        pytest.param(OSError(errno.ENOSPC, "full"), StorageError, id="the disk is full"),
        pytest.param(PeerLostError("ps 1 is gone"), PeerLostError, id="a ps is gone"),
        pytest.param(ValueError("no value"), ValueError, id="a variable has no value"),
        pytest.param(KeyboardInterrupt(), KeyboardInterrupt, id="interrupted"),
    ],
)
def test_a_failed_step_leaves_nothing(
    tmp_path: Path, failure: BaseException, raised: type[BaseException]
) -> None:
    def write(name: str) -> Manifest:
        write_file(local(tmp_path).subfolder(name), "values", 3)
        raise failure

    with pytest.raises(raised):
        commit_step(str(tmp_path), 3, write, "the chief")
    assert names(tmp_path) == []


def test_a_step_without_values_leaves_nothing(tmp_path: Path) -> None:
    def write(name: str) -> None:
        local(tmp_path).subfolder(name).make()

    assert commit_step(str(tmp_path), 3, write, "the chief") is None
    assert names(tmp_path) == []


def test_a_checkpoint_replaces_the_one_in_its_directory(tmp_path: Path) -> None:
    folder = local(tmp_path)
    commit_over(folder, lambda _: write_file(folder, "first", 1), is_ours)
    seen: list[str] = []

    def write(before: list[str]) -> Manifest:
        seen.extend(sorted(before))
        return write_file(folder, "second", 2)

    commit_over(folder, write, is_ours)
    assert seen == ["first", MANIFEST]
    assert names(tmp_path) == [MANIFEST, "second"]


def values_fail(path: Path) -> tuple[Folder, Callable[[list[str]], Any]]:
    folder = local(path)

    def write(_: list[str]) -> Manifest:
        write_file(folder, "second", 2)
        raise PeerLostError("gone")

    return folder, write


def manifest_fails(path: Path) -> tuple[Folder, Callable[[list[str]], Any]]:
    folder = NoManifest(str(path), str(path))
    return folder, lambda _: write_file(folder, "second", 2)


@pytest.mark.parametrize("how", [values_fail, manifest_fails])
def test_the_older_checkpoint_outlives_a_failed_attempt(
    tmp_path: Path, how: Callable[[Path], tuple[Folder, Callable[[list[str]], Any]]]
) -> None:
    first = local(tmp_path)
    commit_over(first, lambda _: write_file(first, "first", 1), is_ours)
    before = first.read(MANIFEST, 10_000)
    folder, write = how(tmp_path)
    with pytest.raises((OSError, RopewalkError)):
        commit_over(folder, write, is_ours)
    assert names(tmp_path) == ["first", MANIFEST]
    assert first.read(MANIFEST, 10_000) == before


def test_values_stay_if_the_error_came_after_their_manifest(tmp_path: Path) -> None:
    folder = NoManifest(str(tmp_path), str(tmp_path))
    folder.is_late = True
    with pytest.raises(OSError, match="input/output"):
        commit_over(folder, lambda _: write_file(folder, "values", 1), is_ours)
    assert names(tmp_path) == [MANIFEST, "values"]


def test_what_is_no_part_of_a_checkpoint_stays_in_its_directory(tmp_path: Path) -> None:
    """Somebody may write a checkpoint to the directory that has all their runs."""
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "notes.txt").write_text("mine")
    (tmp_path / "data.csv").write_text("1,2")
    folder = local(tmp_path)
    commit_over(folder, lambda _: write_file(folder, "first", 1), is_ours)
    commit_over(folder, lambda _: write_file(folder, "second", 2), is_ours)
    assert names(tmp_path) == ["data.csv", MANIFEST, "run-1", "second"]
    assert (tmp_path / "run-1" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "data.csv").read_text() == "1,2"
