"""The files of one folder, of this machine's file systems or of any that fsspec knows.

Checkpoints are read and written through a :class:`Folder` alone, so how files are opened safely and
replaced in one step is decided here. Names are those of single files: nothing leads out of a
folder.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from ..errors import ConfigurationError, RefusedError
from ..files.temporary import remove_tree
from ..files.trusted_folder import check_shared

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_NOT_PLAIN = re.compile(r"[/\0-\x1f]|^\.{0,2}$")


class Folder(Protocol):
    """A folder, which need not exist. Thread-safe.

    Attributes:
        url: Path or URL as the user named it, for messages and for people.
    """

    url: str

    def subfolder(self, name: str) -> "Folder":
        """Return a folder in this one."""
        ...

    def beside(self, name: str) -> "Folder":
        """Return a folder beside this one, in the one that it is in."""
        ...

    def make(self) -> None:
        """Make the folder, and those above it, if they are missing.

        Raises:
            OSError: The file system refused.
        """
        ...

    def check_trusted(self) -> None:
        """Check that no other user of this machine could have planted the folder; it exists.

        Raises:
            UnsafeFolderError: One could have.
        """
        ...

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading.

        Raises:
            FileNotFoundError: There is none.
            UnsafeFileError: It is a link, a FIFO or a device.
            OSError: The file system refused.
        """
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read all of a file; errors as of :meth:`open`, and UnsafeFileError: it is larger than
        that.
        """
        ...

    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Write a file, in place of an older one; on stable storage when the block has ended.

        Raises:
            UnsafeFileError: A link, a FIFO or a device has the name.
            OSError: The file system refused.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small file in one step: readers see the older one or this one, whole.

        Raises:
            OSError: The file system refused.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: there is none."""
        ...

    def names(self) -> list[str]:
        """List the entries of the folder; none if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; a link without what it leads to."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Rename a file or folder."""
        ...


class UnsafeFileError(OSError):
    """A link, a FIFO, a device or a huge file has the place of a file or folder."""


def check_size(num_bytes: int, most_bytes: int) -> None:
    """Check that a file may be read as a whole.

    Raises:
        UnsafeFileError: It is larger than that.
    """
    if num_bytes > most_bytes:
        raise UnsafeFileError(
            errno.EFBIG, f"has {num_bytes} bytes, at most {most_bytes} are read: it is no such file"
        )


def plain_name(name: str) -> str:
    """Check that ``name`` is that of a single file or folder, and return it.

    Raises:
        RefusedError: It leads elsewhere, or is none.
    """
    if _NOT_PLAIN.search(name) or len(name) > 255:
        raise RefusedError(f"{name!r:.200} is no plain name of a file", name=name[:200])
    return name


# -- A folder of this machine: no link is followed, and a crash loses nothing ------------------
# The folder that was configured is the user's, and may be a link. What is below it is reached name
# by name with ``openat`` and ``O_NOFOLLOW``, so a link that somebody put there leads nowhere, and
# opened with ``O_NONBLOCK``, so that a FIFO does not make anybody wait. What we make is for this
# user alone; in a folder that its group may write to (a volume with ``fsGroup``, a folder of a
# team) it is for the group too. Modes of what exists are left alone.

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


# -- Folders of object stores, and of other file systems of fsspec -----------------------------


class RemoteFolder:
    """Folder of an object store or other fsspec file system. See :class:`~.folder.Folder`."""

    def __init__(self, url: str, fs: Any, root: str) -> None:
        self.url = url
        self._fs, self._root = fs, root

    def subfolder(self, name: str) -> Folder:
        """Return a folder in this one."""
        plain_name(name)
        return RemoteFolder(f"{self.url}/{name}", self._fs, f"{self._root}/{name}")

    def beside(self, name: str) -> Folder:
        """Return a folder beside this one."""
        plain_name(name)
        url, root = (place.rpartition("/")[0] for place in (self.url, self._root))
        return RemoteFolder(f"{url}/{name}", self._fs, f"{root}/{name}")

    def make(self) -> None:
        """Make the folder."""
        self._fs.makedirs(self._root, exist_ok=True)

    def check_trusted(self) -> None:
        """Check nothing: the store decides who may write."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        return cast(IO[bytes], self._fs.open(self._path(name), "rb"))

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read all of a file."""
        check_size(self.size(name) or 0, most_bytes)
        return bytes(self._fs.cat_file(self._path(name)))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file, in place of an older one."""
        with self._fs.open(self._path(name), "wb") as stream:
            yield stream

    def put(self, name: str, data: bytes) -> None:
        """Write a small file in one step."""
        self._fs.pipe_file(self._path(name), data)  # a store puts whole objects

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: there is none."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.size(self._path(name)))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """List the entries of the folder."""
        self._fs.invalidate_cache()
        if not self._fs.isdir(self._root):
            return []
        paths = self._fs.ls(self._root, detail=False)
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def remove(self, name: str) -> None:
        """Remove a file or a folder."""
        self._fs.rm(self._path(name), recursive=True)

    def rename(self, name: str, to: str) -> None:
        """Rename a file or folder."""
        self._fs.mv(self._path(name), self._path(to), recursive=True)

    def _path(self, name: str) -> str:
        if set("*?[") & set(name):  # fsspec would take it for a pattern
            raise FileNotFoundError(f"{self.url}/{name}")
        return f"{self._root}/{plain_name(name)}"


# -- Folders by path or URL: of this machine, or of any file system that fsspec knows ----------
# A path does not load fsspec, which takes 0.04 s of every task's start.

_TEMPORARY = re.compile(r"^\.(.+\.tmp|write-test)-[0-9a-f]{8,32}$")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def open_fs(url: str) -> "tuple[AbstractFileSystem, str]":
    """Open the file system of a path or URL; returns (fsspec file system, path on it)."""
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(url)
    return fs, str(path)


_starts: dict[str, str] = {}  # of relative paths that do not change with the working directory


def keep_folder(path: str) -> None:
    """Have a relative path, and those below it, mean what they mean now from now on.

    A program may change the working directory of its process.
    """
    _starts[path.rstrip("/") or "/"] = os.getcwd()


def _start_of(path: str) -> str:
    kept = (start for each, start in _starts.items() if f"{path}/".startswith(f"{each}/"))
    return next(kept, "") or os.getcwd()


def open_folder(url: str) -> Folder:
    """Open the folder of a path or URL.

    Raises:
        ConfigurationError: It has a NUL.
        ValueError: No file system has such URLs.
        ImportError: The package for it is not installed.
    """
    if "\0" in url:
        raise ConfigurationError(f"the path {url!r:.200} has a NUL; take it out")
    plain = url.rstrip("/") or "/"
    if not _URL.match(url):
        # As fsspec has it: ".." is left to the system, which follows links.
        return LocalFolder(plain, os.path.join(_start_of(plain), os.path.expanduser(plain)))
    from fsspec.implementations.local import LocalFileSystem

    fs, path = open_fs(url)
    if isinstance(fs, LocalFileSystem):
        return LocalFolder(plain, path)
    return RemoteFolder(url.rstrip("/"), fs, path.rstrip("/"))


def remove_temporaries(folder: Folder) -> None:
    """Remove what killed writers left behind; only for who writes there alone."""
    for name in folder.names():
        if _TEMPORARY.match(name):
            with contextlib.suppress(FileNotFoundError):
                folder.remove(name)
