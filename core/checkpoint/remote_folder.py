"""Folders of object stores, and of other file systems of fsspec."""

import contextlib
from collections.abc import Iterator
from typing import IO, Any, cast

from .folder import Folder, check_size, plain_name


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
