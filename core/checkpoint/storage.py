"""Whether a model directory can be written: tried before training, not found out after it.

A cause that a restart would meet again, such as a missing permission or a full disk, is a
:class:`~windlass.core.errors.StorageError`, whose exit code asks for no restart. Others, such as a
file server that does not answer, may pass.
"""

import errno
import secrets

from ..errors import ConfigurationError, PeerLostError, StorageError, WindlassError
from .directory import open_fs

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


def check_writable(model_dir: str, writer: str) -> None:
    """Make the directory, write a small file there and remove it.

    Args:
        model_dir: Path or fsspec URL.
        writer: Who would write there, for the message.

    Raises:
        StorageError: It cannot be written, and that will not pass.
        ConfigurationError: It is no URL of a file system that is installed here.
        PeerLostError: It cannot be written now.
    """
    try:
        fs, root = open_fs(model_dir)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"model_dir {model_dir!r} cannot be used: {error}") from error
    name = f"{root}/.write-test-{secrets.token_hex(4)}"
    try:
        fs.makedirs(root, exist_ok=True)
        fs.pipe_file(name, b"windlass")
        fs.rm_file(name)
    except OSError as error:
        raise storage_error(error, model_dir, writer) from error


def storage_error(error: OSError, path: str, writer: str) -> WindlassError:
    """The error for a directory that could not be written.

    Args:
        error: What the file system said.
        path: Where.
        writer: Who tried: ``/job:ps/task:0``.
    """
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
