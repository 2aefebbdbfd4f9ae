"""Finding, naming and removing checkpoints in a model directory (a path or any fsspec URL)."""

import re
from dataclasses import dataclass
from typing import Any

import fsspec

MANIFEST = "manifest.json"
_NAME = re.compile(r"^ckpt-(\d{10})(-again)?$")
_NUMBERED = re.compile(r"^(?P<name>.+?)-(?P<number>\d+)(?:-again)?$")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointInfo:
    """A complete checkpoint."""

    global_step: int
    path: str


def checkpoint_path(model_dir: str, global_step: int, *, again: bool = False) -> str:
    """Path of a step's checkpoint; ``again``: beside an existing one of the same step."""
    return f"{model_dir.rstrip('/')}/ckpt-{global_step:010d}{'-again' if again else ''}"


def open_fs(url: str) -> tuple[Any, str]:
    """(file system, path on it) of a path or URL."""
    fs, path = fsspec.core.url_to_fs(url)
    return fs, str(path)


def list_checkpoints(model_dir: str) -> list[CheckpointInfo]:
    """Complete checkpoints, oldest first: directories with a manifest."""
    return [
        CheckpointInfo(step, f"{model_dir.rstrip('/')}/{name}")
        for step, name, complete in _entries(model_dir)
        if complete
    ]


def latest_checkpoint(model_dir: str) -> CheckpointInfo | None:
    """The newest complete checkpoint, or None."""
    found = list_checkpoints(model_dir)
    return found[-1] if found else None


def prune(model_dir: str, keep: int) -> list[str]:
    """Remove all but the newest ``keep`` complete checkpoints; return what was removed.

    The manifest is removed first, so that a reader never sees a partly removed checkpoint.
    """
    removed = []
    for info in list_checkpoints(model_dir)[:-keep]:
        remove_checkpoint(info.path)
        removed.append(info.path)
    return removed


def remove_checkpoint(url: str) -> None:
    """Remove a complete checkpoint, its manifest first."""
    fs, path = open_fs(url)
    fs.rm_file(f"{path}/{MANIFEST}")
    fs.rm(path, recursive=True)


def numbered_checkpoints(directory: str, name: str = "") -> list[CheckpointInfo]:
    """Complete checkpoints ``<name>-<number>``, of a job or a program, the lowest number first.

    Args:
        directory: Path or fsspec URL; need not exist.
        name: Of the checkpoints of a program; empty: whatever they are called. A job's in the same
            directory, whose numbers have ten digits, are not meant.
    """
    found = []
    for entry in _names_in(directory):
        match = _NUMBERED.match(entry)
        is_job = match is not None and len(match["number"]) > 1 and match["number"][0] == "0"
        if match and (not name or (name == match["name"] and not is_job)):
            fs, path = open_fs(f"{directory.rstrip('/')}/{entry}")
            if fs.exists(f"{path}/{MANIFEST}"):
                info = CheckpointInfo(int(match["number"]), f"{directory.rstrip('/')}/{entry}")
                found.append(info)
    return sorted(found)


def remove_incomplete(model_dir: str) -> list[str]:
    """Remove and return unfinished checkpoints of a killed job. Only for the job's chief."""
    removed = []
    for _, name, complete in _entries(model_dir):
        if not complete:
            url = f"{model_dir.rstrip('/')}/{name}"
            fs, path = open_fs(url)
            fs.rm(path, recursive=True)
            removed.append(url)
    return removed


def _names_in(directory: str) -> list[str]:
    fs, root = open_fs(directory)
    fs.invalidate_cache()
    if not fs.isdir(root):
        return []
    return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False)]


def _entries(model_dir: str) -> list[tuple[int, str, bool]]:
    fs, root = open_fs(model_dir)
    entries = []
    for name in _names_in(model_dir):
        match = _NAME.match(name)
        if match:
            entries.append((int(match[1]), name, bool(fs.exists(f"{root}/{name}/{MANIFEST}"))))
    return sorted(entries)
