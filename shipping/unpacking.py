"""Unpacking a package: into a folder that appears whole or not at all.

Files are written into a folder beside the one that is asked for, which nobody but this user can
enter, and that is renamed when every byte of it is on disk. Each is opened from the folder above it
with ``O_NOFOLLOW`` and ``O_EXCL``. Nothing is executed.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from ..core.errors import StorageError
from ..core.files.tree_removal import remove_tree
from .archive import ArchivedFile, read_archive
from .package import LIMITS, PackageLimits, check_digest

_TEMPORARY = ".unpacking-"  # begins the name of a folder that is being filled

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(data: bytes, digest: str, folder: Path, limits: PackageLimits = LIMITS) -> None:
    """Unpack a package into a new folder.

    The folder and those in it get mode 0700, files 0644 or 0755, all in the name of this process's
    user. If anything fails, nothing is left behind; a process that is killed leaves a folder whose
    name begins with ``.unpacking-``.

    Args:
        data: The package.
        digest: Digest of the package, which is its name, from a trusted sender.
        folder: Folder to be made; the one above it exists and is safe
            (:mod:`~ropewalk.core.files.trusted_folder`).
        limits: Bounds.

    Raises:
        PackageError: Another digest, damaged, or an entry that no package may have: absolute,
            ``..``, a link, a device, a name twice, a control character in a name.
        LimitExceededError: Over a bound.
        StorageError: The folder exists, or cannot be written.
    """
    check_digest(digest)
    temporary = folder.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        temporary.mkdir(mode=0o700)
        top = os.open(temporary, _FOLDER)
        try:
            names = [_write(file, top) for file in read_archive(data, digest, limits)]
            _sync(temporary, names)
            if os.path.lexists(folder):  # an empty folder would be replaced
                raise FileExistsError(errno.EEXIST, "it exists", str(folder))
            temporary.rename(folder)
        finally:
            os.close(top)
    except OSError as error:
        raise StorageError(
            f"package {digest[:12]} cannot be unpacked into {folder}: {error.strerror or error}",
            path=folder,
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it has been renamed, or was never made
            remove_tree(temporary)


def _write(file: ArchivedFile, top: int) -> str:
    *folders, name = file.name.split("/")
    parent = os.dup(top)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=parent)
            above, parent = parent, os.open(part, _FOLDER, dir_fd=parent)
            os.close(above)
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
    finally:
        os.close(parent)
    with os.fdopen(descriptor, "wb") as stream:
        for chunk in file.chunks:
            stream.write(chunk)
        os.fchmod(descriptor, 0o755 if file.executable else 0o644)
    return file.name


def _sync(folder: Path, names: list[str]) -> None:
    """Wait until all is on disk: after a loss of power no script may be empty.

    In a second round, since the first sync makes file systems write what all files need.
    """
    folders = {folder}
    for name in names:
        path = folder / name
        _sync_one(path)
        folders.update(path.parents[: name.count("/")])
    for directory in folders:
        _sync_one(directory)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
