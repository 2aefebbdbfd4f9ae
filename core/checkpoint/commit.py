"""The one way to write a checkpoint: the values, then the manifest, in one step.

Readers take a directory for a checkpoint only if it has a manifest, so the manifest commits the
values. An attempt that fails before that leaves nothing behind: what it wrote is removed, and a
checkpoint that was there before stays valid.
"""

import logging
from collections.abc import Callable

from ..errors import CheckpointError
from .directory import MANIFEST, CheckpointInfo, new_checkpoint_path
from .folder import Folder, UnsafeFileError
from .manifest import MAX_MANIFEST_BYTES, Manifest, manifest_bytes, parse_manifest
from .storage import open_model_dir, storage_error

log = logging.getLogger(__name__)


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
