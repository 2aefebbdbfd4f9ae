"""Folders by path or URL: of this machine, or of any file system that fsspec knows.

A path does not load fsspec, which takes 0.04 s of every task's start.
"""

import contextlib
import os
import re
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .folder import Folder
from .local_folder import LocalFolder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

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

    from .remote_folder import RemoteFolder

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
