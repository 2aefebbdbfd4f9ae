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
        os.close(handle)
    _check_mounts(whole)
    try:
        _remove(path, dir_fd)
        _allow_all(path, dir_fd)
        _remove(path, dir_fd)
        shutil.rmtree(path, dir_fd=dir_fd)  # says what is in the way
    except FileNotFoundError:  # nothing is left, or another process removes it
        return
    except RecursionError as error:
        what = "its folders are nested too deep for Python; remove it by rm -rf"
        raise OSError(errno.ELOOP, what, str(path)) from error


def _remove(path: str | Path, dir_fd: int | None) -> None:
    """Remove what can be removed."""
    try:
        shutil.rmtree(path, ignore_errors=True, dir_fd=dir_fd)
    except RecursionError:
        start = "" if dir_fd is None else f"/proc/self/fd/{dir_fd}/"
        command = ["rm", "-rf", "--one-file-system", "--", f"{start}{path}"]
        files = () if dir_fd is None else (dir_fd,)
        with contextlib.suppress(FileNotFoundError):  # an image without rm
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
