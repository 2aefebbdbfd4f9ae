"""Whether a model directory can be written: tried before training, not found out after it.

A cause that a restart would meet again, such as a missing permission or a full disk, is a
:class:`~ropewalk.core.errors.StorageError`, whose exit code asks for no restart. Others, such as a
file server that does not answer, may pass.
"""

import errno
import re
import secrets

from ..errors import (
    CheckpointError,
    ConfigurationError,
    PeerLostError,
    RefusedError,
    RopewalkError,
    StorageError,
)
from ..files.trusted_folder import UnsafeFolderError
from .folder import Folder, UnsafeFileError, open_folder

_PERMANENT = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than allowed",
    errno.ENOTDIR: "it is a file, not a folder, or is below one",
    errno.EEXIST: "it is a file, not a folder",
    errno.EISDIR: "a folder is in the way",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOENT: "the path cannot be made",
}
_REMEDY = {
    errno.ENOSPC: "free some, keep fewer checkpoints (--keep-checkpoints)",
    errno.EDQUOT: "free some, keep fewer checkpoints (--keep-checkpoints)",
}


_DAMAGED = {
    errno.ENOENT: "is missing",
    errno.ENOTDIR: "is missing: its folder is a file",
    errno.EISDIR: "is a folder, no file",
    errno.EIO: "cannot be read: the disk reports an error",
}


def open_model_dir(model_dir: str) -> Folder:
    """Open the model directory, which need not exist.

    Raises:
        ConfigurationError: It is no URL of a file system that is installed here.
    """
    try:
        return open_folder(model_dir)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"model_dir {model_dir!r} cannot be used: {error}") from error


def check_writable(model_dir: str, writer: str) -> None:
    """Make the directory, write a small file there and remove it.

    Args:
        model_dir: Path or fsspec URL.
        writer: Name of the task that would write there, for the message.

    Raises:
        StorageError: It cannot be written, and that will not pass.
        ConfigurationError: It is no URL of a file system that is installed here.
        PeerLostError: It cannot be written now.
    """
    folder, probe = open_model_dir(model_dir), secrets.token_hex(8)
    write_probe(folder, probe, writer)
    try:
        folder.remove(probe_name(probe))
    except OSError as error:
        raise storage_error(error, model_dir, writer) from error


def probe_name(probe: str) -> str:
    """Name the file that :func:`write_probe` writes.

    Raises:
        RefusedError: ``probe`` is not 16 hexadecimal digits.
    """
    if not re.fullmatch(r"[0-9a-f]{16}", probe):
        raise RefusedError(f"{probe!r:.99} are not 16 hexadecimal digits")
    return f".write-test-{probe}"


def write_probe(folder: Folder, probe: str, writer: str) -> None:
    """Make the directory and leave a small file there, for another task to find.

    Args:
        folder: The model directory.
        probe: Hexadecimal digits, drawn for this.
        writer: Name of the task that writes, as in :func:`check_writable`, with its errors.
    """
    try:
        folder.make()
        folder.check_trusted()
        folder.put(probe_name(probe), writer.encode())
    except OSError as error:
        raise storage_error(error, folder.url, writer) from error


def storage_error(error: OSError, path: str, writer: str) -> RopewalkError:
    """Make the error for a directory that could not be written.

    Args:
        error: Error of the file system.
        path: Directory that could not be written.
        writer: Task that tried to write: ``/job:ps/task:0``.
    """
    if isinstance(error, UnsafeFolderError):
        return StorageError(
            f"{writer} does not use {path}: {error}. Another user of this machine could put "
            "checkpoints there; name a directory of your own with --model-dir",
            path=path,
            writer=writer,
        )
    if isinstance(error, UnsafeFileError):
        return StorageError(
            f"{writer} does not write to {path}: {error.strerror}. Somebody else put it there; "
            "remove it, or name another directory with --model-dir",
            path=path,
            writer=writer,
        )
    number = error.errno
    if number is None and isinstance(error, PermissionError):  # of an object store
        number = errno.EACCES
    if number in _PERMANENT:
        remedy = _REMEDY.get(number, "name another with --model-dir, or make it writable")
        return StorageError(
            f"{writer} cannot write to {path}: {_PERMANENT[number]}; {remedy}. The chief and every "
            "ps write there",
            path=path,
            writer=writer,
        )
    return PeerLostError(
        f"{writer} could not write to {path}: {error.strerror or error}", path=path, writer=writer
    )


def read_error(error: OSError, path: str) -> RopewalkError:
    """Make the error for a file of a checkpoint that could not be read: damage, or not its
    fault.
    """
    if isinstance(error, UnsafeFileError):
        return CheckpointError(f"{path} {error.strerror}", path=path)
    number = errno.ENOENT if isinstance(error, FileNotFoundError) else error.errno
    if number in _DAMAGED:
        return CheckpointError(f"{path} {_DAMAGED[number]}", path=path)
    if isinstance(error, PermissionError):
        return StorageError(f"{path} cannot be read: permission denied", path=path)
    return PeerLostError(f"{path} could not be read: {error.strerror or error}", path=path)
