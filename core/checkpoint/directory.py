"""The checkpoints in a model directory: they are found, named, chosen, written and removed.

The directory is a path or any fsspec URL.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import CheckpointError, RefusedError
from .folder import Folder, UnsafeFileError, open_folder
from .manifest import MAX_MANIFEST_BYTES, Manifest, manifest_bytes, may_be_delta, parse_manifest
from .storage import open_model_dir, storage_error

log = logging.getLogger(__name__)

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


def prune(
    model_dir: str, keep: int, *, name: str | None = None, saved: str | None = None
) -> list[str]:
    """Remove all but the newest ``keep`` complete checkpoints; return what was removed.

    Args:
        model_dir: Path or fsspec URL.
        keep: Number of checkpoints that stay.
        name: Name of the checkpoints of a program; None: those of a job.
        saved: Path of the checkpoint that was saved last, the newest whatever its number is.

    Whole checkpoints stay, beside those, as long as a delta that stays cannot be read without them.
    The manifest is removed first, so that a reader never sees a partly removed checkpoint, and the
    newest one first, so that no delta loses its whole checkpoint before it is removed itself.

    Raises:
        OSError: The file system refused.
    """
    folder = open_folder(model_dir)
    found = list_checkpoints(model_dir) if name is None else numbered_checkpoints(model_dir, name)
    checkpoints = sorted(found, key=lambda info: info.path == saved)
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


# -- Choice of the checkpoint to go on from: the newest one that is whole ----------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a choice among checkpoints.

    Attributes:
        chosen: Checkpoint to go on from; None: there is no checkpoint.
        damaged: Newer ones, the newest first, each with what is wrong with it.
    """

    chosen: CheckpointInfo | None = None
    damaged: tuple[tuple[CheckpointInfo, CheckpointError], ...] = ()


def choose_intact(
    found: Sequence[CheckpointInfo], verify: Callable[[CheckpointInfo], None]
) -> Choice:
    """Choose the newest checkpoint that ``verify`` accepts.

    Only damage leads to an older one: a file server that does not answer is the caller's error, or
    the job would go back for a moment's trouble.

    Args:
        found: Complete checkpoints, the oldest first.
        verify: Reads one, all of it; raises CheckpointError if it is damaged.

    Raises:
        CheckpointError: There are some, and all are damaged; has what is wrong with each.
    """
    damaged: list[tuple[CheckpointInfo, CheckpointError]] = []
    for info in reversed(found):
        try:
            verify(info)
        except CheckpointError as error:
            damaged.append((info, error))
        else:
            return Choice(info, tuple(damaged))
    if not damaged:
        return Choice()
    if len(damaged) == 1:
        only = damaged[0][1]
        raise CheckpointError(
            f"{only.message}. There is no other checkpoint; restore the file, or remove the "
            "checkpoint or name another model_dir to begin anew",
            **only.fields,
        )
    reasons = "; ".join(what.message for _, what in damaged)
    raise CheckpointError(
        f"all {len(damaged)} checkpoints are damaged: {reasons}. Restore one, or remove them or "
        "name another model_dir to begin anew",
        path=damaged[0][0].path,
    )


# -- The one way to write a checkpoint: the values, then the manifest, in one step -------------
# Readers take a directory for a checkpoint only if it has a manifest, so the manifest commits the
# values. An attempt that fails before that leaves nothing behind: what it wrote is removed, and a
# checkpoint that was there before stays valid.


def commit_step(
    model_dir: str, global_step: int, write: Callable[[str], Manifest | None], writer: str
) -> CheckpointInfo | None:
    """Write the checkpoint of a step into a directory of its own.

    Args:
        model_dir: Path or fsspec URL.
        global_step: The step, which is a part of the directory's name.
        write: Called with the name of the new directory in ``model_dir``; writes the values there
            and returns the manifest that describes them, or None if there is nothing to save.
        writer: The task that writes, for messages.

    Returns:
        The new checkpoint; None if there was nothing to save.

    Raises:
        StorageError: The directory cannot be written, and that will not pass.
        PeerLostError: The directory cannot be written now.
        RopewalkError: ``write`` raised it.
    """
    path = model_dir
    try:
        info = CheckpointInfo(global_step, new_checkpoint_path(model_dir, global_step))
        path = info.path
        committed = _commit_new(open_model_dir(model_dir), info.name, write)
    except OSError as error:
        raise storage_error(error, path, writer) from error
    return info if committed else None


def _commit_new(above: Folder, name: str, write: Callable[[str], Manifest | None]) -> bool:
    try:
        manifest = write(name)
        if manifest is not None:
            above.subfolder(name).put(MANIFEST, manifest_bytes(manifest))
            return True
    except BaseException:
        _discard(above, [name])
        raise
    _discard(above, [name])
    return False


def commit_over(
    folder: Folder, write: Callable[[list[str]], Manifest], is_ours: Callable[[str], bool]
) -> None:
    """Write a checkpoint in place of one that may be in the same directory.

    The older checkpoint is valid until the manifest is replaced; its files are removed afterwards.
    What else is in the directory stays.

    Args:
        folder: The checkpoint's directory, which need not exist.
        write: Called with the names in ``folder`` before the attempt, none of which it may
            overwrite; writes the values and returns the manifest that describes them.
        is_ours: Whether a file of this name was written by an attempt that was killed.

    Raises:
        OSError: The file system refused.
    """
    folder.make()
    before = folder.names()
    replaced = _files_of(folder) if MANIFEST in before else set()
    data = b""
    try:
        data = manifest_bytes(write(before))
        folder.put(MANIFEST, data)
    except BaseException:
        if not _may_be_committed(folder, data):
            _discard(folder, sorted(set(folder.names()) - set(before)))
        raise
    for name in before:
        if name in replaced or is_ours(name):
            folder.remove(name)


def _files_of(folder: Folder) -> set[str]:
    """List the files of the checkpoint in a folder; none if its manifest cannot be read."""
    try:
        manifest = parse_manifest(folder.read(MANIFEST, MAX_MANIFEST_BYTES), path=folder.url)
    except (CheckpointError, OSError):
        return set()
    return set(manifest.files) - {MANIFEST}


def _may_be_committed(folder: Folder, data: bytes) -> bool:
    """Return whether the new manifest may be in place: an error can follow the rename that puts
    it.
    """
    if not data:
        return False
    try:
        return folder.read(MANIFEST, MAX_MANIFEST_BYTES) == data
    except (FileNotFoundError, UnsafeFileError):
        return False
    except OSError:
        return True


def _discard(folder: Folder, names: list[str]) -> None:
    for name in names:
        try:
            folder.remove(name)
        except OSError as error:
            log.debug("nothing to remove at %s/%s: %s", folder.url, name, error)
