"""Removing a folder with all that is in it, however deep, large or strange a program has made it.

``shutil.rmtree`` calls itself for each level and so ends with ``RecursionError`` after a thousand;
a path ends at 4096 bytes. Here nothing is called for a level and no path is longer than a name: a
folder that has something in it is moved up to the top, and emptied there. Three files are open at
a time. Links are not followed, and what is mounted below is left alone.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOST_STUCK = 1000
"""Number of entries that cannot be removed and are worked around; with more it gives up."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_NO_RIGHT = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Remains:
    """Entries that are still there.

    Attributes:
        stuck: Entries that cannot be removed; those below them are not counted.
        error: The first reason; None: nothing is stuck, only the time was up.
    """

    stuck: int = 0
    error: OSError | None = None


def remove_tree(path: str | Path, *, dir_fd: int | None = None, timeout_s: float = 600.0) -> None:
    """Remove a folder with all that is in it.

    Args:
        path: Path of the folder.
        dir_fd: Folder in which a relative path begins; None: the current folder.
        timeout_s: Limit for a folder into which files are still being written. Unit: seconds.

    Raises:
        OSError: Something cannot be removed, or the path is missing or not a folder. The rest has
            been removed nevertheless.
        TimeoutError: It took too long.
    """
    remains = remove_for(timeout_s, path, dir_fd=dir_fd)
    if remains is None:
        return
    raise remains.error or TimeoutError(
        errno.ETIMEDOUT, f"it was not removed within {timeout_s:g} s", str(path)
    )


def remove_for(
    seconds: float,
    path: str | Path,
    *,
    dir_fd: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Remains | None:
    """Remove as much of a folder as the time allows; call it again to continue.

    Args:
        seconds: Longest time to work. Unit: seconds.
        path: Path of the folder.
        dir_fd: Folder in which a relative path begins; None: the current folder.
        clock: Replaced in tests.

    Returns:
        Entries that are still there; None: there are none.
    """
    try:
        above = os.open(Path(path).parent, _FOLDER & ~os.O_NOFOLLOW, dir_fd=dir_fd)
    except OSError as error:
        return Remains(1, error)
    try:
        return _Removal(clock() + seconds, clock).remove(Path(path).name, above)
    finally:
        os.close(above)


class _TimeIsUpError(Exception):
    """The caller's time is over."""


class _Removal:
    """A call of :func:`remove_for`. Its state is on disk, so that the next one goes on from
    there.
    """

    def __init__(self, until: float, clock: Callable[[], float]) -> None:
        self._until = until
        self._clock = clock
        self._stuck: set[str] = set()  # names in the top folder
        self._error: OSError | None = None
        self._mount = (0, "")  # that of all folders which are looked into

    def remove(self, name: str, above: int) -> Remains | None:
        try:
            top = open_folder(name, above)
        except OSError as error:
            return Remains(1, error)
        try:
            self._mount = _mount_of(above)
            self._check_mount(top, name)
            while True:
                while self._look(top) and len(self._stuck) <= MOST_STUCK:
                    pass
                if self._stuck:
                    break
                try:
                    os.rmdir(name, dir_fd=above)
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                else:
                    return None
                self._check_time()  # another process writes into it
        except _TimeIsUpError:
            pass
        except OSError as error:
            self._error = self._error or error
        finally:
            os.close(top)
        return Remains(max(len(self._stuck), 1 if self._error else 0), self._error)

    def _look(self, top: int) -> bool:
        """Go through the top folder once; False: nothing is left but what is stuck."""
        found = False
        with os.scandir(top) as entries:
            for entry in entries:
                if entry.name in self._stuck:
                    continue
                found = True
                self._check_time()
                try:
                    if not _remove_one(entry, top):
                        self._empty(entry.name, top)
                except FileNotFoundError:
                    continue  # another process removes it, too
                except OSError as error:
                    self._error = self._error or error
                    self._stuck.add(entry.name)
                    if len(self._stuck) > MOST_STUCK:
                        return False
        return found

    def _empty(self, name: str, top: int) -> None:
        """Remove a folder in the top one, after what is in it; its full folders go to the top."""
        folder = open_folder(name, top)
        stuck: OSError | None = None
        try:
            self._check_mount(folder, name)
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._check_time()
                    try:
                        if not _remove_one(entry, folder):
                            _move_up(entry.name, folder, top)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        stuck = stuck or error
        finally:
            os.close(folder)
        if stuck is not None:
            raise stuck
        with contextlib.suppress(FileNotFoundError):
            try:
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                # Another process writes into it: it is looked at again.

    def _check_mount(self, folder: int, name: str) -> None:
        """Leave alone what is mounted there: its files are elsewhere, and somebody else's."""
        if _mount_of(folder) != self._mount:
            raise OSError(errno.EBUSY, "something is mounted there", name)

    def _check_time(self) -> None:
        if self._clock() >= self._until:
            raise _TimeIsUpError


def _remove_one(entry: "os.DirEntry[str]", folder: int) -> bool:
    """Remove a file, a link or an empty folder; False: it is a folder with something in it."""
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.name, dir_fd=folder)
        return True
    try:
        os.rmdir(entry.name, dir_fd=folder)
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True


def _move_up(name: str, folder: int, top: int) -> None:
    new = f".removed-{secrets.token_hex(8)}"
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno not in _NO_RIGHT:
            raise
        _allow_all(name, folder)  # its own entry ".." is changed
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)


def open_folder(path: str | Path, dir_fd: int | None = None) -> int:
    """Open a folder of this user to read and change it, whatever its mode is, but no link to one.

    Raises:
        OSError: It is not there, no folder, or another user's.
    """
    try:
        folder = os.open(path, _FOLDER, dir_fd=dir_fd)
    except PermissionError:
        _allow_all(path, dir_fd)
        folder = os.open(path, _FOLDER, dir_fd=dir_fd)
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(OSError):  # another user's: removing says what it must not
            os.fchmod(folder, stat.S_IRWXU)
    return folder


def _allow_all(path: str | Path, dir_fd: int | None) -> None:
    """Give this user all rights to a folder, which may not even be opened for reading."""
    handle = os.open(path, _HANDLE, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
    finally:
        os.close(handle)


def _mount_of(folder: int) -> tuple[int, str]:
    """Find the file system of an open folder, and the mount: a part of one may be mounted
    elsewhere.
    """
    device = os.fstat(folder).st_dev
    try:
        with open(f"/proc/self/fdinfo/{folder}") as info:
            return device, next((line for line in info if line.startswith("mnt_id:")), "")
    except OSError:
        return device, ""  # the system does not say
