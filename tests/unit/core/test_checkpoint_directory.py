"""Finding, naming and removing checkpoints: what is half there does not exist."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from helpers.calls import Calls
from ropewalk.core.checkpoint import (
    CheckpointInfo,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    prune,
    remove_incomplete,
)
from ropewalk.core.checkpoint import folder as folders
from ropewalk.core.checkpoint.folder import open_folder
from ropewalk.core.errors import RefusedError


@pytest.fixture(params=["local", "memory"])
def model_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty model directory, as a path and as a URL."""
    if request.param == "local":
        yield str(tmp_path)
        return
    memory = fsspec.filesystem("memory")
    yield "memory://directory-test/model"
    if memory.exists("/directory-test"):
        memory.rm("/directory-test", recursive=True)


def _make(model_dir: str, step: int, *, complete: bool = True, again: bool = False) -> str:
    path = checkpoint_path(model_dir, step, again=again)
    fs, root = fsspec.core.url_to_fs(path)
    fs.makedirs(root, exist_ok=True)
    fs.pipe_file(f"{root}/ps-0.safetensors", b"data")
    if complete:
        fs.pipe_file(f"{root}/manifest.json", b"{}")
    return path


def _steps(model_dir: str) -> list[int]:
    return [info.global_step for info in list_checkpoints(model_dir)]


def _names(model_dir: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(model_dir)
    return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False))


def test_a_checkpoint_is_named_by_its_step_so_that_names_sort() -> None:
    assert checkpoint_path("s3://bucket/run/", 42) == "s3://bucket/run/ckpt-0000000042"
    assert checkpoint_path("/a", 9) < checkpoint_path("/a", 10)


def test_a_directory_nobody_made_has_no_checkpoints(model_dir: str) -> None:
    assert list_checkpoints(f"{model_dir}/nothing") == []
    assert latest_checkpoint(f"{model_dir}/nothing") is None
    assert prune(f"{model_dir}/nothing", 1) == []
    assert remove_incomplete(f"{model_dir}/nothing") == []


def test_checkpoints_are_listed_oldest_first_with_their_paths(model_dir: str) -> None:
    for step in (30, 5, 200):
        _make(model_dir, step)
    assert list_checkpoints(model_dir + "/") == [
        CheckpointInfo(step, checkpoint_path(model_dir, step)) for step in (5, 30, 200)
    ]
    assert latest_checkpoint(model_dir) == CheckpointInfo(200, checkpoint_path(model_dir, 200))


def test_a_checkpoint_without_a_manifest_does_not_exist(model_dir: str) -> None:
    _make(model_dir, 1)
    _make(model_dir, 2, complete=False)
    assert _steps(model_dir) == [1]
    latest = latest_checkpoint(model_dir)
    assert latest is not None
    assert latest.global_step == 1


def test_a_second_checkpoint_of_a_step_does_not_touch_the_first_and_comes_after_it(
    model_dir: str,
) -> None:
    first = _make(model_dir, 7)
    second = _make(model_dir, 7, again=True)
    assert first != second
    assert list_checkpoints(model_dir) == [CheckpointInfo(7, first), CheckpointInfo(7, second)]
    assert latest_checkpoint(model_dir) == CheckpointInfo(7, second)
    assert prune(model_dir, 1) == [first]


def test_other_files_and_directories_are_left_alone(model_dir: str) -> None:
    _make(model_dir, 1)
    fs, root = fsspec.core.url_to_fs(model_dir)
    for name in ("ckpt-7", "ckpt-0000000002.tmp", "eval", "xckpt-0000000003"):
        fs.makedirs(f"{root}/{name}", exist_ok=True)
        fs.pipe_file(f"{root}/{name}/manifest.json", b"{}")
    before = _names(model_dir)
    assert _steps(model_dir) == [1]
    assert remove_incomplete(model_dir) == []
    assert prune(model_dir, 1) == []
    assert _names(model_dir) == before


def test_pruning_keeps_the_newest_and_says_what_went(model_dir: str) -> None:
    for step in range(1, 6):
        _make(model_dir, step)
    assert prune(model_dir, 2) == [checkpoint_path(model_dir, step) for step in (1, 2, 3)]
    assert _steps(model_dir) == [4, 5]
    assert _names(model_dir) == ["ckpt-0000000004", "ckpt-0000000005"]


@pytest.mark.parametrize("keep", [3, 4, 100])
def test_pruning_removes_nothing_while_there_are_few(model_dir: str, keep: int) -> None:
    for step in range(1, 4):
        _make(model_dir, step)
    assert prune(model_dir, keep) == []
    assert _steps(model_dir) == [1, 2, 3]


def test_pruning_neither_counts_nor_touches_what_is_being_written(model_dir: str) -> None:
    for step in (1, 2):
        _make(model_dir, step)
    _make(model_dir, 3, complete=False)
    assert prune(model_dir, 1) == [checkpoint_path(model_dir, 1)]
    assert _names(model_dir) == ["ckpt-0000000002", "ckpt-0000000003"]


def test_pruning_that_is_interrupted_leaves_no_half_checkpoint_visible(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        _make(str(tmp_path), step)

    calls.fail(folders, "remove_tree", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prune(str(tmp_path), 1)
    assert _steps(str(tmp_path)) == [2]
    first = tmp_path / "ckpt-0000000001"
    assert [path.name for path in first.iterdir()] == ["ps-0.safetensors"]
    monkeypatch.undo()
    assert remove_incomplete(str(tmp_path)) == [str(first)]


def test_what_a_killed_job_left_unfinished_is_removed_and_named(model_dir: str) -> None:
    _make(model_dir, 1)
    for step in (2, 3):
        _make(model_dir, step, complete=False)
    assert remove_incomplete(model_dir) == [checkpoint_path(model_dir, step) for step in (2, 3)]
    assert _names(model_dir) == ["ckpt-0000000001"]
    assert remove_incomplete(model_dir) == []


@pytest.mark.parametrize("where", ["{tmp}/m", "memory://beside/m", "m"])
def test_a_folder_beside_another_is_the_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """However it was reached: below the model directory, by its own path, or here."""
    monkeypatch.chdir(tmp_path)
    above = open_folder(where.format(tmp=tmp_path))
    other = above.subfolder("ckpt-1")
    other.make()
    other.put("a", b"1")
    for folder in (above.subfolder("ckpt-2"), open_folder(f"{above.url}/ckpt-2")):
        assert folder.beside("ckpt-1").read("a", 1) == b"1"
        assert folder.beside("ckpt-1").url == f"{above.url}/ckpt-1"
        with pytest.raises(RefusedError):
            folder.beside("..")
