"""Finding, naming and removing checkpoints in a model directory (a path or any fsspec URL)."""

import contextlib
import re
from dataclasses import dataclass

from ..errors import CheckpointError, RefusedError
from .file_systems import open_folder, open_fs
from .folder import Folder, UnsafeFileError
from .manifest import MAX_MANIFEST_BYTES, may_be_delta, parse_manifest

__all__ = [
    "MANIFEST", "CheckpointInfo", "checkpoint_name", "checkpoint_path", "latest_checkpoint",
    "list_checkpoints", "new_checkpoint_path", "numbered_checkpoints", "open_fs", "prune",
    "remove_checkpoint", "remove_incomplete", "set_aside",
]  # fmt: skip

MANIFEST = "manifest.json"
_NAME = re.compile(r"^ckpt-(\d{10,19})(?:-again(\d*))?\Z", re.ASCII)
_NUMBERED = re.compile(r"^(?P<name>.+?)-(?P<number>\d+)(?:-again(?P<again>\d*))?\Z")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointInfo:
    """A complete checkpoint."""

    global_step: int
    path: str

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.rsplit("/", 1)[-1]


def checkpoint_path(model_dir: str, global_step: int, *, again: int = 0) -> str:
    """Return the path of a step's checkpoint; ``again``: retry number for this step, 0 is the
    first.
    """
    suffix = ("", "-again")[again] if again < 2 else f"-again{again}"
    return f"{model_dir.rstrip('/')}/ckpt-{global_step:010d}{suffix}"


def new_checkpoint_path(model_dir: str, global_step: int) -> str:
    """Choose a path for a checkpoint of this step, beside complete ones of the same step."""
    folder = open_folder(model_dir)
    taken = [
        again
        for step, again, name in _entries(folder)
        if step == global_step and _is_complete(folder, name)
    ]
    return checkpoint_path(model_dir, global_step, again=max(taken, default=-1) + 1)


def checkpoint_name(name: str) -> str:
    """Check that ``name`` is one that a job gives its checkpoints, and return it.

    Raises:
        RefusedError: It is not.
    """
    if not _NAME.match(name):
        raise RefusedError(f"{name!r:.200} is no name of a job's checkpoint", name=name[:200])
    return name


def list_checkpoints(model_dir: str) -> list[CheckpointInfo]:
    """Complete checkpoints, oldest first: directories with a manifest."""
    folder = open_folder(model_dir)
    return [
        CheckpointInfo(step, f"{model_dir.rstrip('/')}/{name}")
        for step, _, name in _entries(folder)
        if _is_complete(folder, name)
    ]


def latest_checkpoint(model_dir: str) -> CheckpointInfo | None:
    """Find the newest complete checkpoint, or None."""
    checkpoints = list_checkpoints(model_dir)
    return checkpoints[-1] if checkpoints else None


def prune(model_dir: str, keep: int) -> list[str]:
    """Remove all but the newest ``keep`` complete checkpoints; return what was removed.

    Whole checkpoints stay, beside those, as long as a delta that stays cannot be read without them.
    The manifest is removed first, so that a reader never sees a partly removed checkpoint, and the
    newest one first, so that no delta loses its whole checkpoint before it is removed itself.

    Raises:
        OSError: The file system refused.
    """
    checkpoints, folder = list_checkpoints(model_dir), open_folder(model_dir)
    kept = checkpoints[-keep:]
    needed = {info.name for info in kept} | {_base_of(folder, info.name) for info in kept}
    removed = []
    for info in reversed(checkpoints):
        if info.name not in needed:
            remove_checkpoint(info.path)
            removed.append(info.path)
    return removed[::-1]


def _base_of(folder: Folder, name: str) -> str:
    """Find the whole checkpoint that a delta needs; empty: it needs none, or can be read with
    none.
    """
    try:
        text = folder.subfolder(name).read(MANIFEST, MAX_MANIFEST_BYTES)
    except (FileNotFoundError, UnsafeFileError):
        return ""
    if may_be_delta(text):
        with contextlib.suppress(CheckpointError):
            base = parse_manifest(text, path=f"{folder.url}/{name}").base
            return base.checkpoint if base is not None else ""
    return ""


def remove_checkpoint(url: str) -> None:
    """Remove a complete checkpoint, its manifest first."""
    above, _, name = url.rstrip("/").rpartition("/")
    folder = open_folder(above or ("/" if url.startswith("/") else "."))
    folder.subfolder(name).remove(MANIFEST)
    folder.remove(name)


def set_aside(model_dir: str, name: str) -> str:
    """Rename a damaged checkpoint so that no reader takes it for one; returns its new name."""
    folder = open_folder(model_dir)
    taken, number = set(folder.names()), 1
    while (to := f"{name}.damaged{number if number > 1 else ''}") in taken:
        number += 1
    folder.rename(name, to)
    return to


def numbered_checkpoints(directory: str, name: str = "") -> list[CheckpointInfo]:
    """Complete checkpoints ``<name>-<number>``, of a job or a program, the lowest number first.

    Args:
        directory: Path or fsspec URL; need not exist.
        name: Name of the checkpoints of a program; empty: any name. A job's in the same directory,
            whose numbers have ten digits, do not count.
    """
    folder, numbered = open_folder(directory), []
    for entry in folder.names():
        match = _NUMBERED.match(entry)
        is_job = match is not None and len(match["number"]) > 1 and match["number"][0] == "0"
        wanted = match and (not name or (name == match["name"] and not is_job))
        if match and wanted and _is_complete(folder, entry):
            info = CheckpointInfo(int(match["number"]), f"{directory.rstrip('/')}/{entry}")
            numbered.append(((info.global_step, _times(match["again"]), info.path), info))
    return [info for _, info in sorted(numbered)]


def remove_incomplete(model_dir: str) -> list[str]:
    """Remove and return unfinished checkpoints of a killed job. Only for the job's chief."""
    folder, removed = open_folder(model_dir), []
    for _, _, name in _entries(folder):
        if not _is_complete(folder, name):
            folder.remove(name)
            removed.append(f"{model_dir.rstrip('/')}/{name}")
    return removed


def _is_complete(folder: Folder, name: str) -> bool:
    """Return whether there is a manifest; a link or a FIFO in its place is for the reader to
    refuse.
    """
    with contextlib.suppress(OSError, RefusedError):
        return MANIFEST in folder.subfolder(name).names()
    return False


def _entries(folder: Folder) -> list[tuple[int, int, str]]:
    """List the checkpoints: step, number of earlier checkpoints of that step, and name of each."""
    matches = [(match, name) for name in folder.names() if (match := _NAME.match(name))]
    return sorted((int(match[1]), _times(match[2]), name) for match, name in matches)


def _times(again: str | None) -> int:
    return 0 if again is None else int(again or 1)
