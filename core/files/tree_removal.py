"""Removing a folder with all that is in it, with whatever rights a program has given it.

``shutil.rmtree`` does the work: it follows no links. Added are rights to folders of this user that
may not be read or changed, what is nested too deep for Python (``rm`` removes it), and that what is
mounted below is left alone.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a folder with all that is in it.

    Args:
        path: Path of the folder.
        dir_fd: Folder in which a relative path begins; None: the current folder.

    Raises:
        OSError: Something cannot be removed, or the path is missing or not a folder. The rest has
            been removed nevertheless.
    """
    handle = os.open(path, _HANDLE, dir_fd=dir_fd)
    try:
        whole = os.readlink(f"/proc/self/fd/{handle}")
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
        is_there = False
        with os.scandir(top) as entries:
            for entry in entries:
                if entry.name in self._stuck:
                    continue
                is_there = True
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
        return is_there

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
        _remove(path, dir_fd)
        shutil.rmtree(path, dir_fd=dir_fd)  # says what is in the way


def _remove(path: str | Path, dir_fd: int | None) -> None:
    """Remove what can be removed."""
    try:
        shutil.rmtree(path, ignore_errors=True, dir_fd=dir_fd)
    except RecursionError:
        start = "" if dir_fd is None else f"/proc/self/fd/{dir_fd}/"
        command = ["rm", "-rf", "--one-file-system", "--", f"{start}{path}"]
        files = () if dir_fd is None else (dir_fd,)
        subprocess.run(command, stderr=subprocess.DEVNULL, pass_fds=files, check=False)


def _check_mounts(folder: str) -> None:
    """Leave alone what is mounted there: its files are elsewhere, and somebody else's."""
    with contextlib.suppress(FileNotFoundError):
        for mount in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
            if point == folder or point.startswith(f"{folder}/"):
                raise OSError(errno.EBUSY, "something is mounted there", point)


def _allow_all(path: str | Path, dir_fd: int | None) -> None:
    """Give this user all rights to the folders of a tree, as far as they are this user's."""
    _allow(path, dir_fd)
    for _, folders, _, folder in os.fwalk(path, dir_fd=dir_fd):
        for name in folders:
            with contextlib.suppress(OSError):  # a link, or another user's
                _allow(name, folder)


def _allow(path: str | Path, dir_fd: int | None) -> None:
    handle = os.open(path, _HANDLE, dir_fd=dir_fd)
    try:
        with contextlib.suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
    finally:
        os.close(handle)
