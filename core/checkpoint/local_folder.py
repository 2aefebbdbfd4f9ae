"""A folder of this machine: opened without following links, written so that a crash loses nothing.

The folder that was configured is the user's, and may be a link. What is below it is reached name by
name with ``openat`` and ``O_NOFOLLOW``, so a link that somebody put there leads nowhere, and opened
with ``O_NONBLOCK``, so that a FIFO does not make anybody wait. What we make is for this user alone;
in a folder that its group may write to (a volume with ``fsGroup``, a folder of a team) it is for
the group too. Modes of what exists are left alone.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..files.tree_removal import remove_tree
from ..files.trusted_folder import check_shared
from .folder import Folder, UnsafeFileError, check_size, plain_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalFolder:
    """See :class:`~.folder.Folder`.

    Args:
        url: Path as the user named it.
        root: Absolute path of the folder that was configured.
        below: Names of folders from there to this one.
    """

    def __init__(self, url: str, root: str, below: tuple[str, ...] = ()) -> None:
        self.url = url
        self._root, self._below = root, below

    def subfolder(self, name: str) -> Folder:
        """Return a folder in this one."""
        below = (*self._below, plain_name(name))
        return LocalFolder(f"{self.url}/{name}", self._root, below)

    def beside(self, name: str) -> Folder:
        """Return a folder beside this one."""
        above, slash, _ = self.url.rpartition("/")
        url = f"{above}{slash}{plain_name(name)}"
        if self._below:
            return LocalFolder(url, self._root, (*self._below[:-1], name))
        return LocalFolder(url, os.path.join(os.path.dirname(self._root), name))

    def make(self) -> None:
        """Make the folder."""
        if not os.path.isdir(self._root):
            _make_private(self._root)
        for depth, name in enumerate(self._below):
            with self._descriptor(depth) as parent:
                _make_one(name, parent)

    def check_trusted(self) -> None:
        """Check that no other user could have planted the folder that was configured."""
        check_shared(Path(self._root))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        with self._descriptor() as folder:
            return os.fdopen(self._open_below(name, os.O_RDONLY, folder), "rb")

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read all of a file."""
        with self.open(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            check_size(size, most_bytes)
            return stream.read(size)  # which takes as much memory as it is asked for

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file, in place of an older one."""
        with self._descriptor() as folder:
            with contextlib.suppress(FileNotFoundError):
                os.close(self._open_below(name, os.O_RDONLY, folder))  # a file, or refused
                os.unlink(name, dir_fd=folder)
            with self._new_file(name, folder) as stream:
                yield stream
            os.fsync(folder)

    def put(self, name: str, data: bytes) -> None:
        """Write a small file in one step."""
        temporary = f".{plain_name(name)}.tmp-{secrets.token_hex(8)}"
        with self._descriptor() as folder:
            try:
                with self._new_file(temporary, folder) as stream:
                    stream.write(data)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: there is none."""
        try:
            with self.open(name) as stream:
                return os.fstat(stream.fileno()).st_size
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """List the entries of the folder."""
        try:
            with self._descriptor() as folder:
                return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        """Remove a file or a folder."""
        with self._descriptor() as folder:
            status = os.stat(plain_name(name), dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                remove_tree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def rename(self, name: str, to: str) -> None:
        """Rename a file or folder."""
        with self._descriptor() as folder:
            os.rename(plain_name(name), plain_name(to), src_dir_fd=folder, dst_dir_fd=folder)

    @contextlib.contextmanager
    def _descriptor(self, depth: int | None = None) -> Iterator[int]:
        """Open the folder, or one on the way to it."""
        current = os.open(self._root, _FOLDER)
        try:
            for name in self._below[:depth]:
                try:
                    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        what = f"{name} is a link or a file, no folder"
                        raise UnsafeFileError(errno.ENOTDIR, what) from error
                    raise
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    @staticmethod
    def _open_below(name: str, flags: int, folder: int) -> int:
        try:
            descriptor = os.open(plain_name(name), flags | _BELOW, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                what = "link" if error.errno == errno.ELOOP else "FIFO or device"
                raise UnsafeFileError(errno.ELOOP, f"is a {what}, no file") from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UnsafeFileError(errno.ELOOP, "is a folder, a FIFO or a device, no file")
        return descriptor

    @contextlib.contextmanager
    def _new_file(self, name: str, folder: int) -> Iterator[IO[bytes]]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BELOW
        descriptor = os.open(plain_name(name), flags, 0o600, dir_fd=folder)
        _share(descriptor, folder, 0o060)
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())


def _make_private(path: str) -> None:
    """Make a folder and those above it."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        parent = os.open(os.path.dirname(folder), _FOLDER)
        try:
            _make_one(os.path.basename(folder), parent)
        finally:
            os.close(parent)


def _make_one(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _share(descriptor, parent, 0o070)
    finally:
        os.close(descriptor)
    os.fsync(parent)


def _share(descriptor: int, folder: int, bits: int) -> None:
    """Give what we made to the group, if it is the one that may write to the folder it is in."""
    above, status = os.fstat(folder), os.fstat(descriptor)
    shared = above.st_mode & stat.S_IWGRP and not above.st_mode & stat.S_IWOTH
    if shared and status.st_gid == above.st_gid:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | bits)
