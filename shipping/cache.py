"""Packages that were unpacked, by digest: what is run twice is sent and unpacked once.

The folder is this user's alone, and several processes may share it. Whoever runs a package holds a
shared lock (``flock``) on its folder. To evict is to lock a folder for oneself alone, rename it and
remove it; so what is in use stays, and a process that is killed holds nothing.

A program that writes into its package changes it for the next one: it belongs in a working
directory of its own, with ``PYTHONPYCACHEPREFIX`` or ``PYTHONDONTWRITEBYTECODE`` set.
"""

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Self

from ..core.errors import LimitExceededError, StorageError
from ..core.files.tree_removal import remove_tree
from ..core.files.trusted_folder import check_private
from .package import MAX_FILES, MAX_PACKAGE_BYTES, check_digest
from .unpacking import TEMPORARY, unpack

_EVICTED = ".evicted-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_BEHIND_S = 60.0  # between making a folder and locking it pass microseconds


class PackageUse:
    """A package that is not evicted until it is released, or this process and its forks are gone.

    Attributes:
        path: Its folder.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """It may be evicted. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class PackageCache:
    """Unpacked packages in a folder of this user. Thread-safe; processes may share the folder.

    Args:
        folder: Made with mode 0700 if it is missing.
        max_bytes: Bound on the files of all packages together; for a moment one package more is
            there. Unit: bytes.
        max_package_bytes: Bound on those of one. Unit: bytes.
        max_files: Bound on the number of files, and of folders, of one package.

    Raises:
        StorageError: The folder cannot be made, or somebody else could have written into it.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        max_package_bytes: int = MAX_PACKAGE_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_package_bytes = min(max_package_bytes, max_bytes)
        self._max_files = max_files
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = check_private(folder.absolute())
            self._remove_leftovers()
        except OSError as error:
            raise StorageError(
                f"packages cannot be kept in {folder}: {error.strerror or error}", path=folder
            ) from error

    def path_of(self, digest: str) -> Path | None:
        """Where a package is now; None: it is not there. It may be evicted at any time.

        Raises:
            PackageError: This is no digest.
        """
        path = self._folder / check_digest(digest)
        return path if path.is_dir() else None

    def use(self, digest: str) -> PackageUse | None:
        """Hold a package, as the most recently used one; None: it is not there.

        Raises:
            PackageError: This is no digest.
            StorageError: The file system knows no locks.
        """
        path = self._folder / check_digest(digest)
        descriptor = _lock(path, fcntl.LOCK_SH)
        if descriptor is None:
            return None
        with contextlib.suppress(OSError):  # a matter of order alone
            os.utime(descriptor)
        return PackageUse(path, descriptor)

    def add(self, data: bytes, digest: str) -> PackageUse:
        """Unpack a package unless it is there, evict others over the bound, and hold it.

        Raises:
            PackageError, StorageError: See :func:`~.unpacking.unpack`.
            LimitExceededError: Also if it does not fit beside the packages that are in use.
        """
        if (present := self.use(digest)) is not None:
            return present
        path = self._folder / digest
        try:
            unpack(
                data,
                digest,
                path,
                max_bytes=self._max_package_bytes,
                max_files=self._max_files,
            )
        except StorageError:
            # Another thread or process has added it meanwhile.
            if (present := self.use(digest)) is not None:
                return present
            raise
        used = self.use(digest)
        if used is None:
            raise LimitExceededError(
                f"package {digest[:12]} was evicted at once: packages of other jobs need all of "
                f"the {self._max_bytes} bytes for packages in {self._folder}; allow more",
                limit=self._max_bytes,
            )
        if (size := self._evict()) > self._max_bytes:
            used.release()
            _evict(path)
            raise LimitExceededError(
                f"package {digest[:12]} does not fit: with those in use there are {size} bytes in "
                f"{self._folder}, over the limit of {self._max_bytes}; wait for a job to end, or "
                "allow more",
                package=digest[:12],
                value=size,
                limit=self._max_bytes,
            )
        return used

    def _evict(self) -> int:
        """Remove what was used least recently until the rest fits; returns the rest's bytes."""
        found = []
        for path in self._folder.iterdir():
            if not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    found.append((path.lstat().st_mtime_ns, path, _bytes_below(path)))
        total = sum(size for _, _, size in found)
        for _, path, size in sorted(found):
            if total <= self._max_bytes:
                break
            if _evict(path):
                total -= size
        return total

    def _remove_leftovers(self) -> None:
        """Remove what killed processes have left half unpacked or half removed."""
        for path in self._folder.iterdir():
            if path.name.startswith((TEMPORARY, _EVICTED)):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.lstat().st_mtime > _LEFT_BEHIND_S:
                        _evict(path)


def _evict(path: Path) -> bool:
    """Remove a package that is not in use; False: it is in use, or gone."""
    descriptor = _lock(path, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    try:
        away = path.with_name(f"{_EVICTED}{secrets.token_hex(8)}")
        path.rename(away)
        with contextlib.suppress(OSError):  # what is left is tried again by the next process
            remove_tree(away)
    finally:
        os.close(descriptor)
    return True


def _lock(path: Path, kind: int) -> int | None:
    """An open, locked folder; None: it is not there, or others have it locked."""
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # It may have been renamed between the two calls.
        if path.lstat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"{path} cannot be locked: {error.strerror or error}; choose a folder on a local disk",
            path=path,
        ) from error
    os.close(descriptor)
    return None


def _bytes_below(folder: Path) -> int:
    """Sizes of all files of a folder and those below; what vanishes meanwhile counts nothing."""
    total, folders = 0, [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total
